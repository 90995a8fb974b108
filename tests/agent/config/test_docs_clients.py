"""The examples in docs/clients.md."""

from __future__ import annotations

import re
from pathlib import Path

from gpuagent.cli.app import app
from gpuagent.core.metrics import FAMILIES
from gpuagent_alerts.rules.file import load_rule_file
from gpuagent_alerts.shipped import RULES_FILE
from tests.agent.config.loading import load, write

TEXT = (Path(__file__).parents[3] / "docs" / "clients.md").read_text(encoding="utf-8")


def test_its_configuration_loads(tmp_path: Path) -> None:
    """Whoever copies it has a configuration."""
    (block,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)

    assert len(load(write(tmp_path, block)).sources) == 4


def test_what_it_names_is_there() -> None:
    """Metrics, alerts and commands by their real names."""
    names = {family.name for family in FAMILIES}
    alerts = {rule.name for group in load_rule_file(RULES_FILE) for rule in group.rules}
    commands = {command.callback.__name__ for command in app.registered_commands if command.callback}

    assert set(re.findall(r"`(gpuagent_(?!client`)\w+)`", TEXT)) <= names
    assert set(re.findall(r"alert `(\w+)`", TEXT)) <= alerts
    assert set(re.findall(r"`gpuagent ([a-z]+)", TEXT)) <= commands
