"""What the agent would refuse at its start besides faults of its own file: the files that this one names."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gpuagent.alerting.rules import load_rules, unknown_metrics
from gpuagent.config.models import Config
from gpuagent.config_notes import ConfigFile, Machine, config_notes
from gpuagent.doctor.agent_user import agent_may_trace, agent_uid
from gpuagent.remedying import RemediesRefused, acts_for_real, check_permissions, state_faults
from gpuagent_alerts.remedies.files.permissions import CheckedFiles
from gpuagent_alerts.rules.model import RuleFileError
from gpuagent_exporters.http.web_config import WebConfig, WebConfigError


class Beside(NamedTuple):
    """What was found, in the words of who refuses it."""

    faults: tuple[str, ...]
    notes: tuple[str, ...]
    """Rules that can never fire, ladders that can never act, secrets that are missing, alerts that go to nobody."""


def look_beside(config: Config, path: Path, machine: Machine | None = None, own_uid: int | None = None) -> Beside:
    """Rule files, TLS and passwords, and who may write what remedies go by; `path` is the configuration's.

    `own_uid` is the user of the agent, by default whoever `agent_uid` finds.
    """
    agent = agent_uid(config) if own_uid is None else own_uid
    machine = machine or Machine(may_trace=lambda: agent_may_trace(config))
    faults: list[str] = []
    notes: list[str] = []
    file = ConfigFile(path)

    def look_at_rules() -> None:
        groups = load_rules(config)
        notes.extend(str(note) for note in unknown_metrics(groups))
        notes.extend(config_notes(config, groups, file, machine, asked=True))

    looks: tuple[Callable[[], object], ...] = (
        look_at_rules,
        lambda: _check(config, path, agent),
        lambda: WebConfig(config.web_config_file),
    )
    for look in looks:
        try:
            look()
        except (RuleFileError, RemediesRefused, WebConfigError) as error:
            faults += [file.place(line) for line in str(error).splitlines()]
    return Beside((*faults, *_examine_state(config, agent)), tuple(notes))


def _check(config: Config, path: Path, own_uid: int) -> None:
    files = CheckedFiles(own_uid)
    with suppress(OSError):  # told by who reads it
        files.read(path)
    check_permissions(config, files)


def _examine_state(config: Config, own_uid: int) -> tuple[str, ...]:
    """Return what keeps remedies off, though the agent starts."""
    if not acts_for_real(config):
        return ()
    return tuple(f"{fault} (until then remedies are off)" for fault in state_faults(config, own_uid))
