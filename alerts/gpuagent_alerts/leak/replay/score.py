"""How well a sensitivity would have done on histories of which somebody has said whether they are leaks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpuagent_alerts.leak.replay.exported import TraceDocument, rows_of
from gpuagent_alerts.leak.replay.run import replay_rows
from gpuagent_alerts.leak.settings import SENSITIVITIES, Sensitivity


class Labelled(NamedTuple):
    """A history, and what somebody said of it."""

    name: str
    """Tells it from the others."""
    is_leak: bool
    trace: TraceDocument


class Outcome(NamedTuple):
    """What a sensitivity would have said of one history. Times are Unix time."""

    name: str
    process: str
    is_leak: bool
    alarm_seconds: float | None
    """Of its first alarm; None: it would have been silent."""
    begin_seconds: float
    """Of the history."""

    @property
    def right(self) -> bool:
        """An alarm of a leak, or silence of what is none."""
        return self.is_leak is (self.alarm_seconds is not None)


class Score(NamedTuple):
    """How one sensitivity did."""

    sensitivity: Sensitivity
    outcomes: Sequence[Outcome]

    @property
    def true_positives(self) -> int:
        """Leaks with an alarm."""
        return sum(one.is_leak and one.right for one in self.outcomes)

    @property
    def false_positives(self) -> int:
        """Alarms of what is no leak."""
        return sum(not one.is_leak and not one.right for one in self.outcomes)

    @property
    def leaks(self) -> int:
        """How many of the histories are leaks."""
        return sum(one.is_leak for one in self.outcomes)


def score(labelled: Sequence[Labelled], sensitivities: Iterable[Sensitivity] = SENSITIVITIES) -> list[Score]:
    """Replay every history at each sensitivity."""
    return [Score(each, [_outcome(one, each) for one in labelled]) for each in sensitivities]


def _outcome(labelled: Labelled, sensitivity: Sensitivity) -> Outcome:
    trace = labelled.trace
    facts = {trace.process: trace.facts}
    replayed = list(replay_rows(rows_of(trace), lambda *_: None, sensitivity=sensitivity, facts=facts))
    alarms = [alarm.alarm_seconds for one in replayed for alarm in one.alarms]
    begin = min((one.first_seconds for one in replayed), default=trace.origin_seconds)
    return Outcome(labelled.name, trace.process, labelled.is_leak, min(alarms, default=None), begin)
