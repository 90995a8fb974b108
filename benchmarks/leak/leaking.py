"""Jobs that leak, each in its own way, on top of what such a job does anyway."""

from __future__ import annotations

import math

from benchmarks.leak import benign, jobs
from benchmarks.leak.allocator import MIB
from benchmarks.leak.workload import Workload

_LIFE_SECONDS = (360.0, 10 * 86_400.0)
"""From the leak's first byte to the last free one: six minutes to ten days."""
_SETTLE_SECONDS = (120.0, 900.0)


def end_after(w: Workload, life: float, settled: float) -> None:
    """The trace goes on until the memory is gone, if that is within its time."""
    w.duration_seconds = min(w.duration_seconds, settled + 2.5 * life)


def _evenly(w: Workload, *, after: float, life: float | None = None, traffic: jobs.Factor = jobs.one) -> None:
    life = life or w.log_uniform(*_LIFE_SECONDS)
    end_after(w, life, after)
    step = w.step_seconds(max(0.5, life / 4000))
    w.start(jobs.leak(w, rate=lambda _elapsed, free: traffic() * free / life, step=step, after=after))


def _settled(w: Workload) -> float:
    return w.uniform(*_SETTLE_SECONDS)


def train(w: Workload) -> None:
    """A loss that is kept with its graph, at every step."""
    _evenly(w, after=_settled(w))
    weights, room = benign.bulk(w)
    step = w.step_seconds(0.4) * 4
    w.start(jobs.training(w, weights=weights, activations=w.uniform(0.1, 0.5) * room, step=step))


def slow(w: Workload) -> None:
    """Half a MiB to 6 MiB a minute."""
    rate, after = w.log_uniform(0.5, 6) * MIB / 60, _settled(w)
    weights, room = benign.bulk(w)
    end_after(w, room / rate, after)
    w.start(jobs.leak(w, rate=lambda _elapsed, _free: rate, step=w.step_seconds(5), after=after))
    w.start(jobs.training(w, weights=weights, activations=w.uniform(0.1, 0.5) * room, step=w.step_seconds(0.4) * 4))


def request(w: Workload) -> None:
    """Something of each request stays, and the requests come in bursts."""
    weights, room = benign.bulk(w)
    traffic = jobs.bursts(w)
    _evenly(w, after=_settled(w), traffic=lambda: 2.3 * traffic())
    benign.serve(w, weights, room, traffic)


def stair(w: Workload) -> None:
    """One to 50 MiB a minute, a piece every few minutes."""
    rate, every, after = w.log_uniform(1, 50) * MIB / 60, w.log_uniform(60, 900), _settled(w)
    weights, room = benign.bulk(w)
    end_after(w, room / rate, after)
    w.start(jobs.stair_leak(w, size=rate * every, every=every, after=after))
    benign.serve(w, weights, room)


def chunk(w: Workload) -> None:
    """A hundred MiB to two GiB at once (of an 80 GiB card), every 5 to 60 minutes."""
    size, every, after = w.log_uniform(100, 2000) * MIB, w.log_uniform(300, 3600), _settled(w)
    size *= w.total_bytes / (80 * 1024 * MIB)
    weights, room = benign.bulk(w)
    end_after(w, room * every / size, after)
    w.start(jobs.stair_leak(w, size=size, every=every, after=after))
    benign.serve(w, weights, room)


def accelerating(w: Workload) -> None:
    """Ever faster: what has leaked is walked again and again."""
    life, power, after = w.log_uniform(1200, 3 * 86_400), w.uniform(1.3, 3), _settled(w)
    end_after(w, life, after)
    weights, room = benign.bulk(w)
    step = w.step_seconds(max(0.5, life / 4000))

    def rate(elapsed: float, free: float) -> float:
        return free * power / life * math.pow(max(elapsed / life, 1e-6), power - 1)

    w.start(jobs.leak(w, rate=rate, step=step, after=after))
    w.start(jobs.training(w, weights=weights, activations=w.uniform(0.1, 0.5) * room, step=w.step_seconds(0.4) * 4))


def late(w: Workload) -> None:
    """Well for one to twelve hours, then it begins."""
    _evenly(w, after=w.log_uniform(3600, 43_200), life=w.log_uniform(1200, 86_400))
    weights, room = benign.bulk(w)
    benign.serve(w, weights, room)


def collected(w: Workload) -> None:
    """The collector finds most of the garbage, not all."""
    _evenly(w, after=_settled(w), life=w.log_uniform(1800, 4 * 86_400))
    benign.collected_garbage(w)


def diurnal(w: Workload) -> None:
    """Under the day curve of a server."""
    weights, room = benign.bulk(w)
    traffic = jobs.day_curve(w, w.uniform(0.05, 0.4))
    _evenly(w, after=_settled(w), life=w.log_uniform(7200, 4 * 86_400), traffic=lambda: 1.8 * traffic())
    benign.serve(w, weights, room, traffic, share=w.uniform(0.2, 0.6))


def preallocated(w: Workload) -> None:
    """Beside a pool that fills the GPU, where little is free."""
    benign.preallocated(w)
    _evenly(w, after=_settled(w), life=w.log_uniform(1200, 2 * 86_400))


def variable_length(w: Workload) -> None:
    """Under batches of all lengths, whose cache grows too."""
    _evenly(w, after=_settled(w), life=w.log_uniform(1200, 4 * 86_400))
    benign.variable_length(w)


def outside(w: Workload) -> None:
    """In a library's own buffers, of which torch knows nothing."""
    life, after = w.log_uniform(1200, 4 * 86_400), _settled(w)
    end_after(w, life, after)
    weights, room = benign.bulk(w)
    piece = w.log_uniform(2, 64) * MIB
    w.start(jobs.outside_leak(w, rate=room / life, piece=piece, after=after))
    benign.serve(w, weights, room, share=0.2)


def sudden(w: Workload) -> None:
    """A healthy service that takes all that is free within 6 seconds to 5 minutes."""
    weights, room = benign.bulk(w)
    benign.serve(w, weights, room)
    life, after = w.log_uniform(6, 300), w.duration_seconds * w.uniform(0.5, 0.9)
    w.start(jobs.leak(w, rate=lambda _elapsed, free: free / life, step=life / 60, after=after))
