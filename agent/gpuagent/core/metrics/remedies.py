"""Families of remedies and budgets: what was done to give memory back, and how much may be used."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from gpuagent.core.metrics.family import Family, LabeledValue, MetricType, Value, single

TARGET_LABELS = ("gpu", "uuid", "pid", "process", "user", "unit")


RELEASED = "released"
"""Result of a remedy after which the memory was back."""


class RemedyCount(NamedTuple):
    """Runs of ladders that came to one end."""

    result: str
    dry_run: bool
    number: int


class RemedyTarget(NamedTuple):
    """Process that a remedy acts on; values of `TARGET_LABELS`."""

    gpu: str
    uuid: str
    pid: str
    process: str
    user: str
    unit: str


class RemedyNote(NamedTuple):
    """A run that has just ended, or is about to act."""

    about: RemedyTarget
    run: str
    step: str
    result: str
    dry_run: bool
    time_seconds: float
    """Unix time at which it ended, or at which it will act."""
    step_taken: bool = True
    """A step was taken, or would have been in a dry run; False for what was only considered."""


def freed_by(notes: Iterable[RemedyNote]) -> dict[str, float]:
    """Return the Unix time at which remedies that gave the memory of a process back ended, by pid."""
    return {one.about.pid: one.time_seconds for one in notes if one.result == RELEASED and not one.dry_run}


class OutstandingStep(NamedTuple):
    """A process that a step may have ended, and that has not ended since."""

    about: RemedyTarget
    step: str
    time_seconds: float
    """Unix time at which the step was taken."""


class BudgetUse(NamedTuple):
    """What a budget's processes use of one GPU."""

    budget: str
    gpu: str
    uuid: str
    limit_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class RemedyFigures:
    """Remedies at a moment."""

    ladders: int
    stopped: bool
    """The breaker is open: nothing is done until a person has looked."""
    left_alone: int = 0
    """Users, units and containers whose processes rules leave alone until then."""
    running: int = 0
    counts: tuple[RemedyCount, ...] = ()
    released_bytes: int = 0
    ended: tuple[RemedyNote, ...] = ()
    announced: tuple[RemedyNote, ...] = ()
    outstanding: tuple[OutstandingStep, ...] = ()
    budgets: tuple[BudgetUse, ...] = ()
    under_way: frozenset[tuple[str, str]] = frozenset()
    """UUID of the GPU and pid of each process on which a remedy acts, or has acted just now; no series has them."""


RemedyFamily = Family[RemedyFigures]


def _counts(figures: RemedyFigures) -> Iterable[LabeledValue]:
    return (((one.result, _flag(one.dry_run)), one.number) for one in figures.counts)


def _ended(figures: RemedyFigures) -> Iterable[LabeledValue]:
    return (
        (
            (*note.about, note.run, note.step, note.result, _flag(note.dry_run), _flag(note.step_taken)),
            note.time_seconds,
        )
        for note in figures.ended
    )


def _announced(figures: RemedyFigures) -> Iterable[LabeledValue]:
    return ((tuple(note.about), note.time_seconds) for note in figures.announced)


def _outstanding(figures: RemedyFigures) -> Iterable[LabeledValue]:
    return (((*one.about, one.step), one.time_seconds) for one in figures.outstanding)


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _budget(read: Callable[[BudgetUse], int]) -> Callable[[RemedyFigures], Iterable[LabeledValue]]:
    return lambda figures: (((one.budget, one.gpu, one.uuid), read(one)) for one in figures.budgets)


def _single(name: str, kind: MetricType, text: str, read: Callable[[RemedyFigures], Value]) -> RemedyFamily:
    return Family(f"gpuagent_{name}", kind, text, "remedies", (), single(read))


REMEDY_FAMILIES: tuple[RemedyFamily, ...] = (
    _single("remedy_ladders", MetricType.GAUGE, "Ladders of the configuration.", lambda figures: figures.ladders),
    _single("remedies_running", MetricType.GAUGE, "Ladders that are being climbed.", lambda figures: figures.running),
    _single("remedies_stopped", MetricType.GAUGE,
            "1 while nothing is done until a person has looked (`gpuagent remedies reset`).",
            lambda figures: figures.stopped),
    _single("remedy_owners_left_alone", MetricType.GAUGE,
            "Users, units and containers whose processes rules leave alone, as actions on them gave no memory back,"
            " until a person has looked (`gpuagent remedies reset`).",
            lambda figures: figures.left_alone),
    _single("remedy_released_bytes_total", MetricType.COUNTER, "Memory that came back after a remedy.",
            lambda figures: figures.released_bytes),
    Family("gpuagent_remedies_total", MetricType.COUNTER, "Ladders that were climbed to an end, by what they came to.",
           "remedies", ("result", "dry_run"), _counts),
    Family("gpuagent_remedy_end_timestamp_seconds", MetricType.GAUGE,
           "Unix time at which a remedy ended; there for 15 minutes. Receivers are told of those that took a step.",
           "remedies", (*TARGET_LABELS, "run", "step", "result", "dry_run", "step_taken"), _ended),
    Family("gpuagent_remedy_announced_timestamp_seconds", MetricType.GAUGE,
           "Unix time at which a process that was warned will be acted on.",
           "remedies", TARGET_LABELS, _announced),
    Family("gpuagent_remedy_outstanding_timestamp_seconds", MetricType.GAUGE,
           "Unix time at which a step was taken that may end a process, while the process has not ended and no remedy"
           " for it is under way.", "remedies", (*TARGET_LABELS, "step"), _outstanding),
    Family("gpuagent_budget_limit_bytes", MetricType.GAUGE, "The most memory on one GPU.", "processes",
           ("budget", "gpu", "uuid"), _budget(lambda use: use.limit_bytes)),
    Family("gpuagent_budget_used_bytes", MetricType.GAUGE,
           "Memory of the processes that a budget matches, summed up on one GPU.", "processes",
           ("budget", "gpu", "uuid"), _budget(lambda use: use.used_bytes)),
)  # fmt: skip
