"""Leak-free jobs of the shapes that are taken for leaks. What grows without bound here is nothing."""

from __future__ import annotations

from benchmarks.leak import jobs
from benchmarks.leak.allocator import MIB
from benchmarks.leak.workload import Actor, Workload

HEADROOM = 0.85
"""Of what the process may have: jobs are sized by people who leave some."""


def usable(w: Workload) -> float:
    """What a job can plan with."""
    return HEADROOM * (w.total_bytes - w.driver_bytes - w.context_bytes)


def bulk(w: Workload, low: float = 0.1, high: float = 0.5) -> tuple[float, float]:
    """A size for the weights, and what is left for the rest."""
    weights = w.uniform(low, high) * usable(w)
    return weights, usable(w) - weights


def serve(w: Workload, weights: float, room: float, traffic: jobs.Factor = jobs.one, share: float = 0.4) -> None:
    """A server of requests of all lengths that take up to `share` of the room."""
    in_flight = w.uniform(3, 24)
    each = share * room / (2 * in_flight) / 1.6
    w.start(w.load(weights, w.uniform(5, 90)))
    w.start(
        jobs.serving(
            w, in_flight=in_flight, request=lambda: each * min(4.0, w.rng.lognormvariate(0, 0.6)),
            step=w.step_seconds(0.5), traffic=traffic,
        ),
        after_seconds=95,
    )  # fmt: skip


def steady(w: Workload) -> None:
    """One batch after another, all of a size."""
    weights, room = bulk(w)
    w.start(jobs.training(w, weights=weights, activations=w.uniform(0.1, 0.7) * room, step=w.step_seconds(0.4) * 4))


def train_and_validate(w: Workload) -> None:
    """Training with a validation of another size, now and then."""
    weights, room = bulk(w)
    w.start(
        jobs.training(
            w, weights=weights, activations=w.uniform(0.1, 0.4) * room, step=w.step_seconds(0.4) * 5,
            validate_every=w.rng.randint(50, 1500), validation_size=w.uniform(0.5, 1.6),
        )
    )  # fmt: skip


def warm_up(w: Workload) -> None:
    """Kernels are compiled and graphs captured for each new shape, ever more seldom."""
    weights, room = bulk(w)
    w.client = False
    serve(w, weights, room, share=0.2)
    captures = w.rng.randint(8, 40)
    total, span = w.uniform(0.02, 0.2) * room, w.log_uniform(120, 2400)

    def capture() -> Actor:
        for number in range(captures):
            w.take_outside(int(total / captures))
            yield span / captures * 2 * (number + 1) / captures

    w.start(capture(), after_seconds=60)


def preallocated(w: Workload) -> None:
    """An inference server that takes 85 to 93 % of the GPU before its first request."""
    w.client = False
    share = w.uniform(0.85, 0.93) * w.total_bytes - w.driver_bytes - w.context_bytes
    weights = w.uniform(0.2, 0.6) * share
    room = share - weights
    w.start(w.load(weights, w.uniform(20, 90)))
    w.start(w.load(room * 0.93, 5, pieces=64), after_seconds=95)
    each = 0.05 * room / 6
    requests = jobs.serving(w, in_flight=2, request=lambda: each * w.uniform(0.2, 1), step=w.step_seconds(1))
    w.start(requests, after_seconds=110)


def variable_length(w: Workload) -> None:
    """Batches as long as their longest text: the cache grows with each new record."""
    weights, room = bulk(w)
    spread = w.uniform(0.2, 0.6)
    w.start(
        jobs.training(
            w, weights=weights, activations=0.2 * room, step=w.step_seconds(0.4) * 5,
            size=lambda: min(2.5, w.rng.lognormvariate(-0.3, spread)),
        )
    )  # fmt: skip


def diurnal(w: Workload) -> None:
    """A server that follows the day."""
    weights, room = bulk(w)
    serve(w, weights, room, jobs.day_curve(w, w.uniform(0.05, 0.4)), share=w.uniform(0.2, 0.7))


def model_swap(w: Workload) -> None:
    """One model after another, by what is asked for."""
    w.client = False
    models = [w.uniform(0.15, 0.7) * usable(w) for _ in range(w.rng.randint(2, 5))]
    every, empties = w.log_uniform(600, 7200), w.rng.random() < 0.5

    def swapping() -> Actor:
        while True:
            size, seconds = w.rng.choice(models), w.uniform(5, 40)
            blocks = []
            for _ in range(24):
                blocks.append(w.allocate(size / 24))
                yield seconds / 24
            yield every * w.uniform(0.4, 1.6)
            w.release(blocks)
            if empties:
                w.allocator.empty_cache()

    w.start(swapping())


def saturating_cache(w: Workload) -> None:
    """A cache that fills ever more slowly."""
    weights, room = bulk(w)
    serve(w, weights, 0.6 * room)
    waits = jobs.saturating_waits(w.log_uniform(300, 10_800))
    w.start(cache(w, w.uniform(0.03, 0.25) * room, waits), after_seconds=120)


def linear_cache(w: Workload) -> None:
    """A cache that fills evenly to a quarter of the room at most, then puts the oldest out."""
    weights, room = bulk(w)
    serve(w, weights, 0.6 * room)
    waits = jobs.linear_waits(w.log_uniform(600, 36_000))
    w.start(cache(w, w.uniform(0.03, 0.25) * room, waits), after_seconds=120)


def adapter_cache(w: Workload) -> None:
    """Adapters that are loaded when they are first asked for, up to a number: a stair that ends."""
    weights, room = bulk(w)
    serve(w, weights, 0.6 * room)
    slots, cap = w.rng.randint(6, 32), w.uniform(0.03, 0.2) * room
    waits = jobs.saturating_waits(w.log_uniform(600, 10_800))
    w.start(jobs.filling_cache(w, cap=cap, waits=waits, entries=slots), after_seconds=120)


def flushed_cache(w: Workload) -> None:
    """A cache that is thrown away by a timer, every quarter of an hour to every eight hours."""
    weights, room = bulk(w)
    serve(w, weights, 0.6 * room)
    every = w.log_uniform(900, 28_800)
    step = max(5.0, every / 400)
    steps = int(every / step)
    size = w.uniform(0.03, 0.2) * room / steps
    w.start(jobs.garbage(w, size=size, step=step, steps=steps), after_seconds=120)


def fragmenting(w: Workload) -> None:
    """Small results that stay for a while between large ones that go: what is reserved grows, what is held does not."""
    weights, room = bulk(w)
    size = w.uniform(0.3, 0.6)
    w.start(
        jobs.training(
            w, weights=weights, activations=0.25 * room, step=w.step_seconds(0.4) * 5,
            size=lambda: min(2.0, w.rng.lognormvariate(-0.3, size)),
        )
    )  # fmt: skip
    waits = jobs.linear_waits(w.log_uniform(300, 1200))
    w.start(jobs.filling_cache(w, cap=0.02 * room, waits=waits, entries=150), after_seconds=100)


def curriculum(w: Workload) -> None:
    """Longer sequences, step by step, over hours."""
    weights, room = bulk(w)
    stages, every = w.rng.randint(3, 8), w.log_uniform(1800, 21_600)
    first = w.uniform(0.1, 0.4)
    w.start(
        jobs.training(
            w, weights=weights, activations=0.6 * room, step=w.step_seconds(0.4) * 5,
            size=lambda: first + (1 - first) * min(1.0, (w.now // every) / stages),
        )
    )  # fmt: skip


def restarts(w: Workload) -> None:
    """A process that ends and comes again; in two of five traces under its old pid, unnoticed."""
    w.client = False
    w.starts_known = w.rng.random() >= 0.4
    weights, room = bulk(w, 0.2, 0.7)
    every = w.log_uniform(1200, 21_600)

    def supervisor() -> Actor:
        while True:
            serve(w, weights * w.uniform(0.9, 1.0), room, share=0.3)
            yield every * w.uniform(0.4, 1.6)
            w.restart()
            yield w.uniform(1, 30)

    w.start(supervisor())


def periodic(w: Workload) -> None:
    """A batch that comes every quarter of an hour to every few hours, takes its memory at once, and gives it back."""
    w.client = False
    weights, room = bulk(w, 0.02, 0.2)
    every, empties = w.log_uniform(900, 10_800), w.rng.random() < 0.6
    share, load = w.uniform(0.2, 0.9), w.log_uniform(5, 120)
    w.start(w.load(weights, 20))
    w.start(batches(w, peak=share * room, every=every, load=load, empties=empties), after_seconds=60)


def batches(w: Workload, *, peak: float, every: float, load: float, empties: bool) -> Actor:
    """Batches of nearly a size that take their memory over `load` seconds and keep it for a part of the time."""
    while True:
        size = w.uniform(0.9, 1.0) * peak
        blocks = []
        for _ in range(12):
            blocks.append(w.allocate(size / 12))
            yield load / 12
        yield every * w.uniform(0.1, 0.4)
        w.release(blocks)
        if empties:
            w.allocator.empty_cache()
        yield every * w.uniform(0.4, 0.6)


def idle(w: Workload) -> None:
    """A notebook that somebody left open."""
    w.client = False
    w.start(w.load(w.uniform(0.01, 0.5) * usable(w), 30))


def shared_gpu(w: Workload) -> None:
    """A steady process beside another that comes and goes."""
    weights, room = bulk(w, 0.1, 0.3)
    serve(w, weights, 0.4 * room)
    w.start(jobs.neighbor(w, most=0.5 * room, every=w.log_uniform(900, 21_600)))


def collected_garbage(w: Workload) -> None:
    """Reference cycles hold tensors until Python's collector comes."""
    weights, room = bulk(w)
    step = w.step_seconds(0.4) * 5
    w.start(jobs.training(w, weights=weights, activations=w.uniform(0.1, 0.5) * room, step=step))
    period = w.log_uniform(60, 7200)
    each = max(2.0, period / 300, step / 4)
    steps = max(4, int(period / each))
    size = w.uniform(0.03, 0.2) * room / steps
    w.start(jobs.garbage(w, size=size, step=each, steps=steps), after_seconds=100)


def traffic_ramp(w: Workload) -> None:
    """A service that is rolled out: ever more requests at once, then no more."""
    weights, room = bulk(w)
    traffic = jobs.ramp(w, low=w.uniform(0.2, 0.5), begin=w.uniform(300, 3600), length=w.log_uniform(1800, 28_800))
    serve(w, weights, room, traffic, share=w.uniform(0.15, 0.5))


def cache(w: Workload, cap: float, waits: jobs.Waits) -> Actor:
    """A cache of entries of a likely size."""
    entries = min(1500, max(20, int(cap / (w.log_uniform(1, 60) * MIB))))
    return jobs.filling_cache(w, cap=cap, waits=waits, entries=entries)
