"""Loading from a text: shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gpuagent.config.load import ConfigError, Fault, load_config
from gpuagent.config.models import Config
from gpuagent.core.sections import Section

COMPLETE = Path(__file__).with_name("complete.yaml")
"""A file with every part of the configuration in use."""

NO_ENVIRONMENT: Mapping[str, str] = {}


def write(folder: Path, text: str | bytes) -> Path:
    """A configuration file that only its owner may write."""
    file = folder / "gpuagent.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    file.chmod(0o644)
    return file


def load(file: Path) -> Config:
    """Load as root, with nothing in the environment."""
    return load_config(file, environ=NO_ENVIRONMENT, is_root=True)


def keys_of(section: Section) -> dict[str, object]:
    """The keys of a section that have a value."""
    values = {name: getattr(section, name) for name in section.keys}
    return {name: value for name, value in values.items() if value is not None}


def faults_of(file: Path) -> tuple[Fault, ...]:
    """The faults of a file that has some."""
    with pytest.raises(ConfigError) as caught:
        load(file)
    return caught.value.faults


def lines_of(file: Path) -> list[str]:
    """The faults as people see them, without the name of the file and what is allowed."""
    return [str(fault).removeprefix(f"{file}:").partition(" (allowed: ")[0] for fault in faults_of(file)]
