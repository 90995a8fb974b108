"""What a person was shown has to be so still when they say yes: everything that they know a process by."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import pytest

from gpuagent.acting.shown import CARD, card_of, read_shown, shown_as
from gpuagent.cli import kill_prompt
from gpuagent.identity import ProcessId
from gpuagent.reading import ProcessInfo

INFO = ProcessInfo(
    ProcessId("boot", 7, 70), "python3", 1000, "alice", command="serve", pid_namespace=1, unit="a.service",
    container_id="c" * 64, slurm_job="7",
)  # fmt: skip
CHANGES: dict[str, Any] = {
    "uid": 8, "user": "mail", "name": "production-db", "command": "db", "unit": "b.service", "container_id": "d" * 64,
    "slurm_job": "8",
}  # fmt: skip
ROW_NAMES = {"name": "process"}
"""How the prompt calls a field."""


def request(info: ProcessInfo) -> dict[str, Any]:
    """What the command sends back of what it was given."""
    return {"start_ticks": 70, "boot_id": "boot", "pid_namespace": 1, "card": card_of(info)}


def test_every_fact_of_the_card_is_compared() -> None:
    """KILL-01: another program, user, unit, container or job than the one that was shown is not ended."""
    assert CHANGES.keys() == set(CARD)
    assert read_shown(request(INFO)).difference(7, INFO) == ""
    for name, value in CHANGES.items():
        now = replace(INFO, **{name: value})
        assert "not what was shown any more" in read_shown(request(INFO)).difference(7, now)


def test_the_prompt_shows_nothing_that_is_not_compared() -> None:
    """Each text by which the prompt describes a process is in the digest: a new one has to be put into it."""
    source = inspect.getsource(kill_prompt)
    shown = {name for name in vars_of(INFO) if f'"{ROW_NAMES.get(name, name)}"' in source}
    figures = {"id", "parent_pid", "container_name"}  # its number, a parent on the GPU, a name that is told late
    assert shown - figures <= set(CARD)


def vars_of(info: ProcessInfo) -> list[str]:
    """The names of all facts."""
    return list(info.__dataclass_fields__)


def test_who_sends_no_card_is_compared_by_identity() -> None:
    """A caller that shows nobody anything may leave it out."""
    given = request(INFO)
    del given["card"]
    assert read_shown(given).difference(7, replace(INFO, name="other")) == ""


def test_figures_are_no_part_of_it() -> None:
    """What changes all the time makes no other process."""
    assert shown_as(INFO).card == shown_as(replace(INFO, resident_bytes=5, state="D")).card


def test_a_card_is_a_text() -> None:
    """Anything else is refused in words."""
    with pytest.raises(ValueError, match="card must be a text"):
        read_shown({**request(INFO), "card": 3})
