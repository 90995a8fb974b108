"""An incident: all alerts of one cause, told as one thread of messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class CauseKind(StrEnum):
    """What an incident happened to."""

    PROCESS = "process"
    GROUP = "group"
    """Processes of one unit, container, Slurm job or process group that grow together."""
    GPU = "gpu"
    NODE = "node"
    RECEIVER = "receiver"
    RULE = "rule"
    """An alert that names none of the others."""


class News(StrEnum):
    """Why a receiver is told of an incident."""

    BEGAN = "began"
    WORSENED = "worsened"
    REMINDER = "reminder"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds memory of the incident's GPU."""

    pid: int
    process: str
    user: str
    used_bytes: int


@dataclass(frozen=True, slots=True)
class Briefing:
    """What a person is told of an incident, in words that were true when the message was made."""

    headline: str = ""
    """One line that says everything, as a push notification shows it."""
    numbers: str = ""
    holders: tuple[Holder, ...] = ()
    """The largest first."""
    culprit: str = ""
    """The line of Python that holds the memory, where that is known."""
    remedies: tuple[str, ...] = ()
    """What was done, or would be done in a dry run."""
    next_command: str = ""
    links: Mapping[str, str] = field(default_factory=dict)
    """URLs by what they lead to: `page`, `grafana`, `runbook`."""
    silence_command: str = ""
    end_reason: str = ""
    """Why it ended, in the past tense; empty while it goes on."""


@dataclass(frozen=True, slots=True)
class Incident:
    """One incident, as a receiver is told of it."""

    key: str
    """Stands for it on every surface, the same over restarts."""
    kind: CauseKind
    labels: Mapping[str, str]
    """Labels of what it happened to: gpu, uuid, pid, process, user, unit, container and their like."""
    severity: str
    """The worst of its firing alerts; of one that has ended, the worst it had."""
    starts_at: float
    """Unix time."""
    ends_at: float | None = None
    news: News = News.BEGAN
    briefing: Briefing = field(default_factory=Briefing)

    @property
    def is_over(self) -> bool:
        """Whether it has ended, for the receiver of this message."""
        return self.news is News.ENDED or self.ends_at is not None
