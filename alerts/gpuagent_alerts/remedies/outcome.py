"""What a run of a ladder came to, and how the end of an alert reports it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gpuagent.core.units import format_bytes, format_duration

_FIGURE = re.compile(r"\d+(\.\d+)?( ?(d|h|m|s|min))*\b")
NOTHING_DONE = "nothing is done"
"""What the reason begins with for which no remedy acts about an alert."""


class RunResult(StrEnum):
    """The end of a run, as metrics and the audit log name it."""

    RELEASED = "released"
    """The memory is back."""
    RESOLVED = "resolved"
    """The reason to act had gone before more was needed."""
    STILL_LISTED = "still_listed"
    """The process has ended, and the driver still counts its memory."""
    HELD_BY_OTHER = "held_by_other"
    """It has ended, and others hold the memory: who belonged to it, or was started in its place."""
    UNACCOUNTED = "unaccounted"
    """Nobody holds it, and it is not free."""
    UNREADABLE = "unreadable"
    """The process has ended, and its GPU cannot be read: nobody knows whether the memory came back."""
    UNKILLABLE = "unkillable"
    """SIGKILL is pending and the process is still there."""
    LIMITED = "limited"
    """The memory of its cgroup is limited, and the reason to act still holds: it may hold what it has, and no more."""
    NO_EFFECT = "no_effect"
    """Every step was taken, and the reason to act still holds."""
    REFUSED = "refused"
    """Nothing was done, or nothing more: the reasons say why."""
    FAILED = "failed"
    """A step could not be taken."""
    DRY_RUN = "dry_run"
    """Nothing was done on purpose."""
    INTERRUPTED = "interrupted"
    """The agent ended in the middle: what happened after the last record is not known."""
    EXITED = "exited"
    """The process ended by itself before it was acted on."""


HELPED = frozenset({RunResult.RELEASED, RunResult.RESOLVED})
USELESS = frozenset({
    RunResult.STILL_LISTED, RunResult.HELD_BY_OTHER, RunResult.UNACCOUNTED, RunResult.UNKILLABLE,
    RunResult.NO_EFFECT, RunResult.FAILED,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run ended, in detail."""

    result: RunResult
    detail: str = ""
    released_bytes: int | None = None
    seconds: float | None = None
    """From the last step to the memory's return."""
    general: bool = False
    """A refusal after which no other process may be chosen: only one by root's allow list passes the choice on."""
    acted: bool = False
    """A step beyond `release_cache` was taken (or would have been, in a dry run)."""
    answer: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What the app said, where a person had it asked."""
    reasons: tuple[str, ...] = field(default=(), compare=False)
    """The reasons of a refusal, one by one: `detail` has all of them."""

    @property
    def gist(self) -> str:
        """The same for two refusals that differ in nothing but how long ago something was."""
        return f"{self.result} {_FIGURE.sub('#', self.detail)}"

    @property
    def helped(self) -> bool | None:
        """For the breaker: None where nothing can be said."""
        if not self.acted:
            return None
        if self.result in HELPED:
            return True
        return False if self.result in USELESS else None


@dataclass(frozen=True, slots=True)
class RemedyEnding:
    """A remedy that helped. Never a dry run, and never one about another process."""

    step: str
    """The last step that was taken, as the record names it: `SIGTERM`, `restart_unit`, `release_cache` ..."""
    released_bytes: int | None = None
    seconds: float | None = None
    """From that step to the memory's return."""
    unit: str = ""
    asked_by: str = ""
    """Person who asked for it; "" where a rule did."""

    def __str__(self) -> str:
        took = f" after {format_duration(self.seconds)}" if self.seconds is not None else ""
        freed = f"; {format_bytes(self.released_bytes)} came back{took}" if self.released_bytes else ""
        return f"{self.act}{freed}"

    @property
    def act(self) -> str:
        """What was done, and at whose request: `gpuagent terminated it (SIGTERM) as alice (uid 1000) asked`."""
        return self._act() + (f" as {self.asked_by} asked" if self.asked_by else "")

    @property
    def participle(self) -> str:
        """The same of a process that is named before it: `terminated by gpuagent (SIGTERM)`."""
        verbs = {"SIGTERM": "terminated", "SIGKILL": "killed"}
        return f"{verbs.get(self.step, 'ended')} by gpuagent ({self.step})" + (
            f" as {self.asked_by} asked" if self.asked_by else ""
        )

    def _act(self) -> str:  # noqa: PLR0911  one for each step
        match self.step:
            case "SIGTERM":
                return "gpuagent terminated it (SIGTERM)"
            case "SIGKILL":
                return "gpuagent killed it (SIGKILL)"
            case "restart_unit":
                return f"gpuagent restarted {self.unit or 'its unit'}"
            case "release_cache":
                return "gpuagent had it release its cache"
            case "limit":
                return "gpuagent limited its memory"
            case "drop_caches":
                return "gpuagent had the kernel drop its page cache"
            case step:
                return f"gpuagent acted on it ({step})"


def no_remedy(_pid: str, _uuid: str) -> RemedyEnding | None:
    """Return None: no remedy is known."""
    return None
