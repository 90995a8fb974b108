"""Severity of problems and of memory that grows, and the form in which both are told.

The leak detector decides what is said of growth (`snapshot.growth`, which the metrics and the rules read as it is)
except for the severity: that of the gravest alert that fires about it, and where none does, it follows from the
verdict. The status document, the page, the command and the problems show this, and decide nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gpuagent.core.displaced import name_displaced
from gpuagent.core.growth import Growth, GrowthState, MemoryKey, Range, Verdict
from gpuagent.core.identity import NO_INSTANCE
from gpuagent.core.metrics.alerting import FiringAlert
from gpuagent.core.snapshot import GpuIdentity
from gpuagent.core.xids import Severity


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that a person should know of the node.

    `kind` is for programs and does not change with the wording. `text` says what is the case and
    `advice` what to do next. `gpu` is an NVML index, None for the node as a whole.
    """

    severity: Severity
    kind: str
    text: str
    advice: str = ""
    gpu: int | None = None
    pid: int | None = None
    gpus: tuple[int, ...] = ()
    """NVML indices of several GPUs, where it is about no single one: none of them is well."""
    uuid: str = ""
    """UUID of the GPU that it is about, where that is known and the problem may outlive the GPU's index."""
    displaced: GpuIdentity | None = None
    """The GPU that it is about, where another GPU has its index now; `gpu` is None then."""
    gpu_instance_id: int = NO_INSTANCE
    """MIG instance whose memory it is about; `NO_INSTANCE` for the GPU's."""
    xid: int | None = None
    """Code of the Xid that it tells of."""
    seconds_left: float | None = None
    """Seconds until the memory is full that it tells of; None where that is not what it tells."""

    def is_about(self, gpu: GpuIdentity) -> bool:
        """Return whether this GPU has it."""
        if self.displaced is not None:
            return self.displaced.uuid == gpu.uuid
        if self.uuid and gpu.uuid:
            return self.uuid == gpu.uuid
        return gpu.index == self.gpu or gpu.index in self.gpus

    @property
    def sentence(self) -> str:
        """`text` with the GPU that it is about: it stands alone."""
        if self.displaced is not None:
            return f"{name_displaced(self.displaced)}: {self.text}"
        return self.text if self.gpu is None else f"GPU {self.gpu}: {self.text}"


_ABOUT_TELLING = frozenset({"undelivered"})
_RANK = {severity: rank for rank, severity in enumerate(Severity)}


def gravest(severities: Iterable[Severity]) -> Severity | None:
    """Return the first in rank; None of none."""
    return min(severities, key=_RANK.__getitem__, default=None)


_UNREAD = frozenset({"gpu_lost", "gpu_blind", "gpu_gone", "gpu_failed", "gpu_missing"})
"""Kinds of problems in which a GPU is not there to work with."""


def _urgency(problem: Problem) -> tuple[int, float]:
    """Return the rank among problems of one severity: what has failed, what is full, what will be, the rest."""
    if problem.kind in _UNREAD:
        return 0, 0.0
    if problem.kind == "memory_full" and problem.severity is Severity.CRITICAL:  # a warning: nearly full
        return 1, 0.0
    return (3, 0.0) if problem.seconds_left is None else (2, problem.seconds_left)


def most_severe_first(problems: Iterable[Problem]) -> list[Problem]:
    """Sort by severity, then the node before its GPUs, then by urgency; who is not told comes after what is wrong.

    Every surface has this order: lost and blind GPUs, full memory, memory that will be full by the time left, the rest.
    """
    return sorted(
        problems,
        key=lambda one: (
            _RANK[one.severity],
            one.kind in _ABOUT_TELLING,
            not _is_about_node(one),
            *_urgency(one),
            -1 if one.gpu is None else one.gpu,
        ),
    )


def _is_about_node(problem: Problem) -> bool:
    return problem.gpu is None and not problem.gpus and problem.displaced is None and not problem.uuid


def joined(parts: Iterable[object], most: int = 5) -> str:
    """Return a list for a sentence, cut where nobody reads on: `1, 2, 3 and 4 more`."""
    texts = [str(part) for part in parts]
    shown = ", ".join(texts[:most])
    return f"{shown} and {len(texts) - most} more" if len(texts) > most else shown


MINUTES_LEFT_SECONDS = 1800.0
"""A leak that fills the memory sooner is critical, as for `GpuMemoryExhaustionSoon`."""
HOURS_LEFT_SECONDS = 4 * 3600.0
"""Growth that is suspected and fills it sooner is worth a word."""

Document: TypeAlias = dict[str, object]


class Assessments:
    """What is said of each process, GPU and MIG instance. `firing` are the alerts about growth."""

    def __init__(self, growth: Mapping[MemoryKey, Growth], firing: Sequence[FiringAlert] = ()) -> None:
        self._growth = growth
        self._firing = tuple(alert for alert in firing if alert.about_growth)

    def of(self, key: MemoryKey) -> Growth | None:
        """Return what the leak detector says."""
        return self._growth.get(key)

    def severity(self, key: MemoryKey) -> Severity | None:
        """How grave that is; None for what is worth no word."""
        growth = self._growth.get(key)
        by_alerts = gravest(self._alerts(key, growth))
        by_itself = None if growth is None else _severity_of_growth(growth)
        # From the moment at which a leak has filled the memory, nobody waits for the alert that says so.
        is_full = growth is not None and growth.verdict is Verdict.LEAKING and growth.forecast_seconds == 0
        found = [each for each in (by_alerts, by_itself) if each is not None]
        return gravest(found) if is_full else by_alerts or by_itself

    def alerted(self, key: MemoryKey) -> Severity | None:
        """Return the severity of the gravest alert that fires about it; None while none does."""
        return gravest(self._alerts(key, self._growth.get(key)))

    def alerted_since(self, key: MemoryKey) -> float | None:
        """Return the Unix time from which on the longest of the alerts that name it has been true, over restarts."""
        named = [alert for alert in self._firing if (alert.uuid, alert.pid) == (key.gpu_uuid, key.pid)]
        return min((alert.began_at for alert in named if alert.began_at is not None), default=None)

    def _since(self, key: MemoryKey, growth: Growth | None) -> float | None:
        """Return since when it grows: at least since its alert began, should its history be lost."""
        if growth is None or growth.since_seconds is None or growth.verdict is not Verdict.LEAKING:
            return None if growth is None else growth.since_seconds
        known = self.alerted_since(key)
        return growth.since_seconds if known is None else min(growth.since_seconds, known)

    def document(self, key: MemoryKey) -> Document:
        """All keys, always; null is what is not known, or what will not come. Times are Unix time."""
        growth = self._growth.get(key)
        severity = self.severity(key)
        return {
            "verdict": str(growth.verdict) if growth else None,
            "growth_state": str(growth.state) if growth and growth.state else None,
            "evidence": str(growth.grade) if growth and growth.grade else None,
            "severity": str(severity) if severity else None,
            "growth_bytes_per_second": _value(growth.slope if growth else None),
            "growth_range_bytes_per_second": _range(growth.slope if growth else None),
            "growth_since_seconds": self._since(key, growth),
            "leak_since_seconds": self._since(key, growth) if growth and growth.verdict is Verdict.LEAKING else None,
            "exhaustion_seconds": growth.forecast_seconds if growth else None,
            "gpu_exhaustion_seconds": self._of_gpu(key, growth),
            "exhaustion_range_seconds": _range(_exhaustion(growth) if growth else None),
            "fast_exhaustion_seconds": growth.fast_exhaustion_seconds if growth and growth.fast else None,
            "reasons": list(growth.reasons) if growth else [],
        }

    def _of_gpu(self, key: MemoryKey, growth: Growth | None) -> float | None:
        """Return when the GPU, or the MIG instance, is full in which this grows: several that grow fill it sooner.

        None also where others give back as much as grows: then it is not going to be full.
        """
        own = growth.forecast_seconds if growth else None
        whole = self._growth.get(MemoryKey(key.gpu_uuid, 0, key.gpu_instance_id))
        return own if own is None or whole is None else whole.forecast_seconds

    def _alerts(self, key: MemoryKey, growth: Growth | None) -> Iterable[Severity]:
        """Yield the alerts that name it; an alert about its GPU, or its instance, is about what grows there.

        What has stopped, with room left, fills nothing any more, nor does what takes again what it held before.
        """
        grows = growth is not None and (growth.verdict in (Verdict.LEAKING, Verdict.GROWING) or growth.fast)
        grows = grows and growth is not None and growth.state is not GrowthState.STOPPED and not growth.held_before
        for alert in self._firing:
            if alert.uuid != key.gpu_uuid or alert.severity is None:
                continue
            here = alert.gpu_instance_id == key.gpu_instance_id
            of_process = alert.pid == key.pid and (here or alert.gpu_instance_id == NO_INSTANCE)
            of_all = not alert.pid and here and (grows or not key.pid)
            if (alert.pid and of_process) or of_all:
                yield Severity(alert.severity)


def _severity_of_growth(growth: Growth) -> Severity | None:
    """Return the severity of growth by itself: what is no leak is never critical."""
    left = growth.forecast_seconds
    soon = left is not None and left < MINUTES_LEFT_SECONDS
    if growth.verdict is Verdict.LEAKING:
        return Severity.CRITICAL if soon else Severity.WARNING
    if growth.verdict is Verdict.GROWING or growth.fast:
        if soon:
            return Severity.WARNING
        return Severity.INFO if left is not None and left < HOURS_LEFT_SECONDS else None
    return Severity.INFO if growth.verdict is Verdict.CACHED else None


def _exhaustion(growth: Growth) -> Range | None:
    """Return the range of the forecast; None for one of the last half minute, which has none."""
    slow = growth.exhaustion
    return slow if slow is not None and slow.value == growth.forecast_seconds else None


def _value(figure: Range | None) -> float | None:
    return None if figure is None else figure.value


def _range(figure: Range | None) -> list[float] | None:
    return None if figure is None else [figure.low, figure.high]
