"""What the detector says of a service's lives, one after another."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from benchmarks.leak.load.families import Run
from benchmarks.leak.load.services import Life
from gpuagent.core.growth import Evidence, Growth, Range, Verdict
from gpuagent_alerts.leak.detector import MemoryLeakDetector
from gpuagent_alerts.leak.lives import ServiceMemory
from gpuagent_alerts.leak.settings import Sensitivity

_LOOK_SECONDS: Final = 1800.0
"""Lives are compared so often."""
_NOTHING: Final = Growth(Verdict.LEARNING)


class Told(NamedTuple):
    """A leak as it was told first, until it was not told any more."""

    at: float
    exhaustion: Range | None
    evidence: tuple[Evidence, ...]
    """Each standard that it met while it was told, and when."""
    evidence_at: tuple[float, ...]


@dataclass
class Said:
    """What was said of one life."""

    leak_seconds: float | None
    begin: float
    end: float
    exhausted: bool
    told: list[Told] = field(default_factory=list)


def judge(run: Run, sensitivity: Sensitivity, *, client: bool) -> tuple[list[Said], float, int]:
    """Return what was said of each life, the CPU seconds it took, and the readings."""
    said, begun, count = [], time.process_time(), 0
    service = ServiceMemory(0)
    for life in run.lives:
        said.append(_judge_life(run, life, sensitivity, service, client=client))
        count += len(life.times)
    return said, time.process_time() - begun, count


def _judge_life(run: Run, life: Life, sensitivity: Sensitivity, service: ServiceMemory, *, client: bool) -> Said:
    found = Said(life.leak_seconds, life.begin, life.end, life.exhausted)
    detector = MemoryLeakDetector(total_bytes=int(run.total), started_seconds=life.begin, sensitivity=sensitivity)
    growth, look = _NOTHING, life.begin
    columns = life.columns() if client else life.columns()[:3]
    for at, *figures in zip(*columns, strict=True):
        if at >= look:
            look = at + _LOOK_SECONDS
            detector.use_prior(service.prior())
            service.note_life(detector.life())
        new = detector.update(at, *figures)
        if new is not growth:
            note(found, at, growth, new)
            growth = new
    service.end_life(detector.life())
    return found


def note(found: Said, at: float, before: Growth, now: Growth) -> None:
    """Note what is new in this verdict."""
    if now.verdict is not Verdict.LEAKING or now.evidence is None:
        return
    if before.verdict is not Verdict.LEAKING:
        found.told.append(Told(at, now.exhaustion, (), ()))
    for evidence in (now.evidence, now.grade):
        last = found.told[-1]
        if evidence is not None and evidence not in last.evidence:
            found.told[-1] = last._replace(evidence=(*last.evidence, evidence), evidence_at=(*last.evidence_at, at))
