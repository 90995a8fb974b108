"""Bounded growth that takes 30 to 90 % of what is free and stops: until then no different from a leak."""

from __future__ import annotations

from benchmarks.leak import benign, jobs
from benchmarks.leak.workload import Workload


def _cap(w: Workload, weights: float, used: float) -> float:
    return w.uniform(0.3, 0.9) * (benign.usable(w) - weights - used)


def linear_cache(w: Workload) -> None:
    """As the benign one, but large."""
    weights, room = benign.bulk(w)
    benign.serve(w, weights, 0.3 * room)
    waits = jobs.linear_waits(w.log_uniform(600, 36_000))
    w.start(benign.cache(w, _cap(w, weights, 0.2 * room), waits), after_seconds=120)


def saturating_cache(w: Workload) -> None:
    """As the benign one, but large."""
    weights, room = benign.bulk(w)
    benign.serve(w, weights, 0.3 * room)
    waits = jobs.saturating_waits(w.log_uniform(300, 10_800))
    w.start(benign.cache(w, _cap(w, weights, 0.2 * room), waits), after_seconds=120)


def traffic_ramp(w: Workload) -> None:
    """A roll-out to nearly all that the GPU can do."""
    weights, room = benign.bulk(w)
    traffic = jobs.ramp(w, low=0.05, begin=w.uniform(300, 3600), length=w.log_uniform(1800, 28_800))
    benign.serve(w, weights, room, traffic, share=w.uniform(0.4, 0.8))


def gradual_batch(w: Workload) -> None:
    """Batches that take their memory evenly over a quarter of an hour to two hours, and then give it back."""
    weights, room = benign.bulk(w, 0.02, 0.2)
    load = w.log_uniform(900, 7200)
    w.start(w.load(weights, 20))
    peak = w.uniform(0.3, 0.9) * room
    w.start(benign.batches(w, peak=peak, every=load, load=load, empties=w.rng.random() < 0.6), after_seconds=60)
