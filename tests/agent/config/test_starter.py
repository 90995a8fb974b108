"""The configuration file of a first installation."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from gpuagent.config.load import load_config
from gpuagent.config.models import Config
from gpuagent.config.reference import starter

BY_THE_UNIT = {"state_dir", "runtime_dir", "client_dir"}


def uncommented() -> str:
    """Every `#` taken away that stands before a key, as somebody would."""
    return re.sub(r"(?m)^#(?! \S|$)", "", starter())


def test_it_sets_nothing() -> None:
    """Installing the file changes no default, of this version or a later one."""
    assert yaml.safe_load(starter()) is None


def test_it_has_every_key() -> None:
    """Whoever opens it sees all there is."""
    assert set(yaml.safe_load(uncommented())) == set(Config.keys) - BY_THE_UNIT


def test_every_line_can_be_taken_in(tmp_path: Path) -> None:
    """With all of it uncommented it loads; what is no example is the default."""
    file = tmp_path / "gpuagent.yaml"
    file.write_text(uncommented())
    file.chmod(0o600)
    loaded = load_config(file, environ={}, is_root=True)
    examples = {"receivers", "routes", "budgets", "remedies"}
    for name in set(Config.keys) - BY_THE_UNIT - examples:
        assert getattr(loaded, name) == getattr(Config(), name), name
    assert loaded.receivers
    assert loaded.remedies.dry_run


def test_lines_are_short() -> None:
    """Read in a terminal, at night."""
    assert max(map(len, starter().splitlines())) <= 120
