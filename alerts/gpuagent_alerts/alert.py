"""An alert, its incident and a message about both: the vocabulary of everything between a rule and a receiver.

Of a rule's annotations `summary`, `description` and `reasons` describe an alert that fires, `pending_summary` one that
is pending, and `resolved_summary` one that has ended, in the past tense and with the reason of its end. So it is said
of one that is only kept firing (`keep_firing_for`), too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NamedTuple


class CauseKind(StrEnum):
    """Kind of thing that an incident happened to."""

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
    RESTARTED = "restarted"
    """A service, container or job was started again, and what was true of it before is true again."""
    REMINDER = "reminder"
    ENDED = "ended"
    UPDATED = "updated"
    """It became better or worse and somebody is at it: what was said is rewritten, and nobody is called."""


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
    """Actions that were taken, or would be in a dry run."""
    next_command: str = ""
    links: Mapping[str, str] = field(default_factory=dict)
    """URLs by what they lead to: `page`, `plot`, `grafana`, `runbook`."""
    silence_command: str = ""
    end_reason: str = ""
    """Why it ended, in the past tense; empty while it goes on."""
    says_full: bool = False
    """Whether the headline says that the memory is full now."""


@dataclass(frozen=True, slots=True)
class LastRun:
    """The process that was started last in place of those of an incident."""

    labels: Mapping[str, str] = field(default_factory=dict)
    """What the labels of an alert would say of it; empty without restarts."""
    grew: bool = False
    """Whether it was seen to grow."""
    left_at: float | None = None
    """Unix time at which it was seen to be gone; None while it runs."""
    held_bytes: int = 0
    """GPU memory that it, and what was started with it, held before that; 0 if unknown."""


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
    restarts: int = 0
    """Number of times that the owner of its processes has started one in place of those that ended, since it began."""
    restarted_pids: tuple[int, ...] = ()
    """The processes that were started last; empty while none runs, and without restarts."""
    flat_seconds: float = 0.0
    """How long it was measured that those do not grow; 0 where it was not."""
    grows_by: float = 0.0
    """Bytes a second by which they grow, where that is known at the end."""
    grew_on: tuple[str, ...] = ()
    """UUIDs of the GPUs on which its processes have grown: an end is about all of them."""
    grew_together: int = 0
    """Most of its processes that grew at one time: an end is about all of them."""
    last_run: LastRun = field(default_factory=LastRun)

    @property
    def is_over(self) -> bool:
        """Whether it has ended, for the receiver of this message."""
        return self.news is News.ENDED or self.ends_at is not None


@dataclass(frozen=True, slots=True)
class DigestLine:
    """What a digest says of one incident, or of one alert that belongs to none."""

    headline: str
    """As the last message that was held back has it."""
    messages: int
    """Number of messages that it stands for."""
    is_over: bool


class Status(StrEnum):
    """State of an alert as a receiver is told of it."""

    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Alert:
    """One instance of a rule, as it is told. Its identity is its label set, `alertname` included."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    status: Status
    starts_at: float
    """Unix time at which it began to fire."""
    ends_at: float | None = None
    """Unix time at which it ended; None while it fires."""
    value: float = field(default=float("nan"))
    """Value of the expression when it was last true."""
    true_from: float | None = None
    """Unix time at which the condition began to hold, before `for` had passed; None if that is not known."""
    true_until: float | None = None
    """Unix time at which the condition ceased to hold, before `keep_firing_for` had passed; None while it holds."""
    kept_until: float | None = None
    """Unix time until which `keep_firing_for` keeps it; None while the condition holds, and where that is not known."""
    end_reason: str = ""
    """Why its condition ceased to hold, in the past tense; "" while it holds, and where nothing is known."""
    end_is_certain: bool = False
    """Whether that is a fact which does not undo itself: a process that ended, a driver that was initialized again."""
    unmeasured_seconds: float = field(default=0.0, compare=False)
    """Seconds for which its data was missing; 0 while it is measured, and in what is kept of it."""

    @property
    def fingerprint(self) -> str:
        """16 hex digits that stand for the label set, the same over restarts."""
        return fingerprint(self.labels)

    @property
    def name(self) -> str:
        """The rule's."""
        return self.labels.get("alertname", "")

    @property
    def state(self) -> str:
        """What it is called before a reader: `firing`, `ending` while it is only kept, or `resolved`."""
        return "ending" if self.is_kept else str(self.status)

    @property
    def begins_at(self) -> float:
        """Unix time at which its condition began to hold, as far as that is known."""
        return self.starts_at if self.true_from is None else min(self.true_from, self.starts_at)

    @property
    def holds(self) -> bool:
        """Whether its condition is true now: only then is it spoken of in the present tense."""
        return self.status is Status.FIRING and self.true_until is None

    @property
    def is_kept(self) -> bool:
        """Whether it fires only because of `keep_firing_for`: its condition is not true now."""
        return self.status is Status.FIRING and self.true_until is not None


class Report(NamedTuple):
    """Text that is sent at its time, whatever fires."""

    title: str
    text: str
    format: str
    """`markdown` or `html`."""


@dataclass(frozen=True, slots=True)
class Message:
    """Message to one receiver: alerts that belong together, some firing and some resolved.

    `id` stays the same over every attempt, so that a receiver can tell a repeat. Messages of one `group` arrive in
    order.
    """

    id: str
    receiver: str
    group: str
    alerts: tuple[Alert, ...]
    group_labels: Mapping[str, str] = field(default_factory=dict)
    incident: Incident | None = None
    """Incident that all its alerts belong to; None where a route groups by labels, and of a digest."""
    digest: tuple[DigestLine, ...] = ()
    """What the messages were about that were held back, in the one that stands for them."""
    written_at: float | None = None
    """Unix time at which it was written; None until it is in the outbox."""
    tells_beginning: bool = False
    """Whether this end is the first that its receiver hears of the incident: it was over before it could be told."""
    report: Report | None = None
    """What is told in place of alerts: the one alert beside it is over, and only names it."""

    @property
    def status(self) -> Status:
        """Firing while one of its alerts is, or its incident goes on in what was started again."""
        goes_on = self.incident is not None and not self.incident.is_over
        fires = goes_on or any(alert.status is Status.FIRING for alert in self.alerts)
        return Status.FIRING if fires else Status.RESOLVED


def fingerprint(labels: Mapping[str, str]) -> str:
    """Return 16 hex digits that stand for a label set."""
    return hashlib.sha256(_canonical(labels.items()).encode("utf-8", "replace")).hexdigest()[:16]


def _canonical(items: Iterable[tuple[str, str]]) -> str:
    return "\xff".join(f"{name}\xfe{value}" for name, value in sorted(items))


SUMMARY: Final = "summary"
PENDING_SUMMARY: Final = "pending_summary"
RESOLVED_SUMMARY: Final = "resolved_summary"
_OF_OTHER_STATES: Final = frozenset({PENDING_SUMMARY, RESOLVED_SUMMARY})
_OF_FIRING: Final = frozenset({SUMMARY, "description", "reasons"})
PROCESS_ENDED: Final = "the process ended"
"""Beginning of the reason of an end that is that of a process."""
UNKNOWN_END: Final = "no longer true"
_TELL_OF_THE_PAST: Final = frozenset({"GpuRemedy"})
"""Alerts about something that was over before they fired: without a reason, nothing is to be added at their end."""
_LATEST: Final = 253402300799.0
"""The end of the year 9999: datetime knows no later time."""


def shown_annotations(alert: Alert) -> dict[str, str]:
    """Return the annotations that are true of an alert in its state, for a receiver."""
    if alert.holds:
        return {name: text for name, text in alert.annotations.items() if name not in _OF_OTHER_STATES}
    others = {
        name: text
        for name, text in alert.annotations.items()
        if name not in _OF_OTHER_STATES and name not in _OF_FIRING
    }
    return {SUMMARY: resolved_summary(alert), **others}


def resolved_summary(alert: Alert) -> str:
    """Return what was and why it is over: `GPU 0: memory was full: memory back to 31.0 GiB`.

    Of an alert that is only kept also when its end is told, if it does not come back before that.
    """
    what = alert.annotations.get(RESOLVED_SUMMARY) or f"{alert.name} has ended"
    if alert.name in _TELL_OF_THE_PAST and not alert.end_reason:
        return what
    return f"{what}: {alert.end_reason or UNKNOWN_END}{kept_words(alert)}"


def kept_words(alert: Alert) -> str:
    """Return until when an alert is kept whose condition holds no more: ` (over at 10:14:30 UTC if that lasts)`."""
    over = "" if not alert.is_kept or not alert.kept_until else _time_of(alert.kept_until, "%H:%M:%S")
    return f" (over at {over} UTC if that lasts)" if over else ""


def clock_time(unix_seconds: float) -> str:
    """Return the time of day in UTC: `10:14`."""
    return _time_of(unix_seconds, "%H:%M")


def _time_of(unix_seconds: float, form: str) -> str:
    return datetime.fromtimestamp(min(max(unix_seconds, 0.0), _LATEST), UTC).strftime(form)


def moved_alert(alert: Alert, step: float) -> Alert:
    """Return an alert with its times moved by so many seconds, none before 1970: the wall clock was set."""

    def moved(time: float | None) -> float | None:
        return None if time is None else max(time + step, 0.0)

    return replace(
        alert, starts_at=max(alert.starts_at + step, 0.0), ends_at=moved(alert.ends_at),
        true_from=moved(alert.true_from), true_until=moved(alert.true_until), kept_until=moved(alert.kept_until),
    )  # fmt: skip


def condition_times(alert: Alert) -> tuple[float, float | None]:
    """Return the Unix times between which the condition held; None for the end of one that still holds."""
    begins = alert.begins_at
    ends = min((time for time in (alert.true_until, alert.ends_at) if time is not None), default=None)
    return begins, None if alert.holds or ends is None else max(begins, ends)
