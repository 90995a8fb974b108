"""All families by name, and one seeded trace of any of them."""

from __future__ import annotations

import math
import random
import zlib
from typing import NamedTuple

from benchmarks.leak import benign, hard, leaking
from benchmarks.leak.trace import Kind, Samples, Trace
from benchmarks.leak.workload import Prepare, Workload, draw_sampling

_LATE_PROBABILITY = 0.15
"""Of agents that come to a process that has long been running."""
_DAYS = 86_400.0


class Family(NamedTuple):
    """How traces of a family are made, and how long they are (`shortest` to `longest` seconds, log-uniform)."""

    kind: Kind
    prepare: Prepare
    shortest: float = 7200.0
    longest: float = 2.5 * _DAYS


_BENIGN: tuple[Prepare, ...] = (
    benign.steady, benign.train_and_validate, benign.warm_up, benign.preallocated, benign.variable_length,
    benign.model_swap, benign.saturating_cache, benign.linear_cache, benign.adapter_cache, benign.flushed_cache,
    benign.fragmenting, benign.curriculum, benign.restarts, benign.periodic, benign.idle, benign.shared_gpu,
    benign.collected_garbage, benign.traffic_ramp,
)  # fmt: skip
_LEAKING: tuple[Prepare, ...] = (
    leaking.train, leaking.slow, leaking.request, leaking.stair, leaking.chunk, leaking.accelerating, leaking.late,
    leaking.collected, leaking.diurnal, leaking.preallocated, leaking.variable_length, leaking.outside,
)  # fmt: skip
_HARD: tuple[Prepare, ...] = (hard.linear_cache, hard.saturating_cache, hard.traffic_ramp, hard.gradual_batch)

FAMILIES: dict[str, Family] = {
    **{f"benign/{prepare.__name__}": Family(Kind.BENIGN, prepare) for prepare in _BENIGN},
    "benign/diurnal": Family(Kind.BENIGN, benign.diurnal, 1.5 * _DAYS, 4 * _DAYS),
    # The longest time: a leak's own life ends its trace sooner.
    **{f"leak/{prepare.__name__}": Family(Kind.LEAK, prepare, 2.5 * _DAYS, 2.5 * _DAYS) for prepare in _LEAKING},
    "collapse/sudden": Family(Kind.COLLAPSE, leaking.sudden, 900.0, 3600.0),
    **{f"hard/{prepare.__name__}": Family(Kind.HARD, prepare, 21_600.0) for prepare in _HARD},
}


def make_trace(name: str, seed: int) -> Trace:
    """The same trace for the same name and seed, everywhere."""
    family = FAMILIES[name]
    rng = random.Random(zlib.crc32(name.encode()) * 1_000_003 + seed)
    workload = Workload(rng, math.exp(rng.uniform(math.log(family.shortest), math.log(family.longest))))
    family.prepare(workload)
    sampling = draw_sampling(rng, workload.duration_seconds)
    first_look = rng.uniform(0.0, 0.4) * workload.duration_seconds if rng.random() < _LATE_PROBABILITY else 0.0
    samples, exhausted = workload.run(sampling)
    leak = workload.leak_seconds
    samples = _from(samples, min(first_look, 0.5 * samples.times[-1]))
    begin = samples.times[0]
    return Trace(
        family=name,
        kind=family.kind,
        seed=seed,
        total_bytes=workload.total_bytes,
        client=workload.client,
        samples=samples,
        starts=(0.0, *workload.restarts) if workload.starts_known else (0.0,),
        starts_known=workload.starts_known,
        leak_seconds=None if leak is None else max(leak, begin),
        exhausted_seconds=exhausted,
    )


def _from(samples: Samples, first_look: float) -> Samples:
    """What an agent has that came then."""
    begin = next((place for place, time in enumerate(samples.times) if time >= first_look), 0)
    return Samples(*(column[begin:] for column in samples.columns()))
