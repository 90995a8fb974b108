"""What docs/alerts.md says is what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from gpuagent.cli.app import app
from gpuagent.config.alerting import Receiver
from gpuagent.config.rules import unknown_metrics
from gpuagent.core.metrics.alerting import ALERTING_FAMILIES
from gpuagent_alerts.notify.outbox.attempt import CAP_SECONDS, MAX_RETRY_AFTER_SECONDS
from gpuagent_alerts.notify.outbox.eviction import OutboxBounds
from gpuagent_alerts.notify.receivers.http import DEADLINE_SECONDS
from gpuagent_alerts.notify.routes import Recipient, Routes
from gpuagent_alerts.notify.silences import MAX_SILENCES
from gpuagent_alerts.promql.lexer import MAX_BYTES, MAX_DEPTH
from gpuagent_alerts.rules.file import load_rule_text
from gpuagent_alerts.states.machine import MAX_INSTANCES
from gpuagent_alerts.states.persister import LATEST_SECONDS
from tests.agent.config.loading import load, write

DOCUMENT = (Path(__file__).parents[4] / "docs" / "alerts.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE)
RULES = [block for block in BLOCKS if block.startswith("groups:")]
BOUNDS = OutboxBounds()
CONFIGURATIONS = [block for block in BLOCKS if block not in RULES]


@pytest.mark.parametrize("block", CONFIGURATIONS)
def test_every_configuration_loads(tmp_path: Path, block: str) -> None:
    """Whoever copies an example has no fault in it, and routes that can be."""
    config = load(write(tmp_path, block))
    Routes(config.routes, [Recipient(receiver.name) for receiver in config.receivers])


@pytest.mark.parametrize("block", RULES)
def test_every_rule_loads_and_can_fire(block: str) -> None:
    """Likewise; its metrics are there."""
    assert unknown_metrics(load_rule_text(block)) == []


def test_every_kind_of_receiver_has_an_example() -> None:
    """A kind that the configuration takes and the document does not show fails."""
    shown = {
        key for block in CONFIGURATIONS for receiver in yaml.safe_load(block).get("receivers", ()) for key in receiver
    }

    missing = set(Receiver.key_names()) - shown
    assert not missing, f"docs/alerts.md, Receivers: a paragraph and an example (```yaml) are missing of {missing}"


def test_the_commands_are_there() -> None:
    """Every `gpuagent ...` of the document is a command, with these options."""
    words = [line.split("#")[0].split() for line in re.findall(r"gpuagent ((?:[a-z]+ ?)[^`\n]*)", DOCUMENT)]
    known = get_command(app)
    found = 0
    for first, *rest in words:
        command = known.commands.get(first)  # type: ignore[attr-defined]
        if command is None:
            continue
        found += 1
        if hasattr(command, "commands"):
            command = command.commands[rest[0]]
        options = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in rest if word.startswith("--")} <= options, (first, rest)
    assert found > 15


@pytest.mark.parametrize(
    "words",
    [
        f"at most {LATEST_SECONDS:.0f} s before",
        f"8 ... {CAP_SECONDS:.0f} s",
        f"no answer within {DEADLINE_SECONDS:.0f} s",
        f"`Retry-After`, {MAX_RETRY_AFTER_SECONDS / 3600:.0f} h at most",
        f"{BOUNDS.rows:,} messages or {BOUNDS.size_bytes // 2**20} MiB",
        f"The last {BOUNDS.dead:,} are kept",
        f"{MAX_SILENCES:,} silences",
        f"{MAX_BYTES // 1024} KiB and {MAX_DEPTH} levels an expression, {MAX_INSTANCES:,} results a rule",
    ],
)
def test_the_figures_are_those_of_the_code(words: str) -> None:
    """A bound that changes has to change here too."""
    assert words in " ".join(DOCUMENT.split())


def test_the_series_are_there() -> None:
    """Names of metrics of alerting are those of the catalogue."""
    names = set(re.findall(r"gpuagent_(?:notif|store|alerts)\w*", DOCUMENT)) - {"gpuagent_alerts"}

    assert names <= {family.name for family in ALERTING_FAMILIES}
