"""Every method over one trace: the detector at each sensitivity and with each signal, and its peers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.leak.alarms import Alarm
from benchmarks.leak.detector import judge
from benchmarks.leak.families import FAMILIES, make_trace
from benchmarks.leak.peers import PEERS, alarms_of
from benchmarks.leak.score import Facts, Outcome, facts_of
from benchmarks.leak.trace import Trace
from gpuagent_alerts.leak.settings import SENSITIVITIES

APP, NVML = "app", "nvml"
"""With the allocator's figures where the job tells them, and without."""


class Method(NamedTuple):
    """A row of the table."""

    name: str
    signal: str


GROWING = Method("gpuagent, the word `growing`", APP)
FAST = Method("gpuagent, the fast path", APP)
DETECTORS = tuple(Method(f"gpuagent, {name}", signal) for signal in (APP, NVML) for name in SENSITIVITIES)
METHODS = (
    *DETECTORS,
    GROWING,
    *(Method(peer.name, NVML) for peer in PEERS),
    *(Method(peer.name, APP) for peer in PEERS if not peer.device),
)


class Verdicts(NamedTuple):
    """One trace, judged by all."""

    facts: Facts
    alarms: Mapping[Method, tuple[Alarm, ...]]
    cost: Mapping[Method, tuple[float, int]]
    """Seconds and updates."""


def judge_trace(trace: Trace) -> Verdicts:
    """What every method says."""
    alarms: dict[Method, tuple[Alarm, ...]] = {}
    cost: dict[Method, tuple[float, int]] = {}
    for sensitivity in SENSITIVITIES:
        for signal in (APP, NVML):
            method = Method(f"gpuagent, {sensitivity}", signal)
            if signal == NVML and not trace.client:
                alarms[method] = alarms[Method(method.name, APP)]
                continue
            said = judge(trace, sensitivity, client=signal == APP)
            alarms[method], cost[method] = tuple(said.leaking), (said.seconds, said.updates)
            if (sensitivity, signal) == ("balanced", APP):
                alarms[GROWING], alarms[FAST], cost[GROWING] = tuple(said.growing), tuple(said.fast), cost[method]
    for peer in PEERS:
        for signal in (NVML,) if peer.device else (NVML, APP):
            begun = time.process_time()
            alarms[Method(peer.name, signal)] = tuple(alarms_of(peer, trace, client=signal == APP))
            updates = int((trace.end_seconds - trace.begin_seconds) / 60) + 1
            cost[Method(peer.name, signal)] = (time.process_time() - begun, updates)
    return Verdicts(facts_of(trace), alarms, cost)


def _judge_seed(job: tuple[str, int]) -> Verdicts:
    return judge_trace(make_trace(*job))


@dataclass
class Results:
    """All traces, judged by all."""

    verdicts: list[Verdicts] = field(default_factory=list)

    def outcomes(self, method: Method) -> list[Outcome]:
        """What one method said of each trace."""
        return [Outcome(one.facts, one.alarms[method]) for one in self.verdicts]

    def update_seconds(self, method: Method) -> float:
        """Mean cost of an update of one method."""
        costs = [one.cost[method] for one in self.verdicts if method in one.cost]
        return sum(seconds for seconds, _ in costs) / max(1, sum(updates for _, updates in costs))


def run(seeds: Iterable[int], workers: int, families: Iterable[str] = FAMILIES) -> Iterator[Verdicts]:
    """Traces of every family with every seed, judged; in any number of processes the same, in the same order."""
    jobs = [(family, seed) for family in families for seed in seeds]
    if workers == 1:
        yield from map(_judge_seed, jobs)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(_judge_seed, jobs, chunksize=4)
