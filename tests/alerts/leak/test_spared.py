"""A detector is spared readings in which nothing has changed, and says the same at the same moment."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuagent.core.growth import Growth
from gpuagent.core.snapshot import GpuState
from gpuagent.core.units import GIB
from gpuagent_alerts.leak.blocks import BLOCK_SECONDS
from gpuagent_alerts.leak.detector import FIRST_BLACKOUT_SECONDS, MemoryLeakDetector
from gpuagent_alerts.leak.gpu_sensor import FORGET_SECONDS
from gpuagent_alerts.leak.histories import AGAIN_SECONDS, Histories, History
from gpuagent_alerts.leak.sensor import LeakSensor
from tests.alerts.leak.test_sensor import GROWS, Bench, on
from tests.fakes.readings import NOW, absent_gpu, process, snapshot

LEARNED = int(FIRST_BLACKOUT_SECONDS) + 2


class RealBench(Bench):
    """A sensor over real detectors; beside the one of pid 7 another that is given every reading."""

    def __init__(self) -> None:
        super().__init__()
        self.histories = Histories("balanced")
        self.sensor = LeakSensor(self.histories)

    def watched(self) -> History:
        return next(history for history in self.histories if history.id.pid == 7)


def slow(said: Growth | None) -> Growth | None:
    """Without the fast tier, which looks at the last dozen readings that it was given."""
    return None if said is None else replace(said, fast=False, fast_exhaustion_seconds=None)


@pytest.mark.exhaustive
@pytest.mark.slow
@settings(max_examples=12)
@given(
    st.lists(
        st.tuples(st.integers(1, 240), st.integers(0, 5), st.sampled_from([0.0, 0.01, 0.02, 0.3, -0.2])),
        min_size=10, max_size=60,
    ),
    st.sampled_from([0.4, 1.0, 1.3, 7.0]),
)  # fmt: skip
def test_no_verdict_differs(stretches: list[tuple[int, int, float]], interval_seconds: float) -> None:
    """LEAK-02: whatever the memory does and however often it is read, the slow judgment is the same at each tick."""
    bench, used = RealBench(), 2.0
    bench.show(on(process(7, used_gib=used)))
    beginning = bench.watched().beginning
    every = MemoryLeakDetector(
        total_bytes=beginning.total_bytes, started_seconds=beginning.started_seconds, phase=beginning.phase
    )
    every.update(bench.watched().seen_seconds, int(used * GIB), bench.watched().free_bytes)
    for ticks, others, growth in stretches:
        used = max(0.5, used + growth)
        for _ in range(ticks):
            seen = on(process(7, used_gib=used), used_gib=used + others)
            bench.show(seen, interval_seconds)
            history, memory = bench.watched(), seen.gpus[0].memory
            assert memory is not None
            said = every.update(history.seen_seconds, int(used * GIB), memory.free_bytes)
            assert slow(history.detected) == slow(said)


def test_what_it_is_spared() -> None:
    """Once it judges, one unchanged reading in five; what is new at once, with the last one before it."""
    assert BLOCK_SECONDS % AGAIN_SECONDS == 0
    bench = Bench()
    for _ in range(LEARNED):
        bench.show(on(process(7)))
    fed = bench.of(7).readings
    assert len(fed) == LEARNED
    for _ in range(20):
        bench.show(on(process(7)))
    assert len(fed) == LEARNED + 20 // AGAIN_SECONDS
    while fed[-1][0] == NOW + bench.seconds:
        bench.show(on(process(7)))
    bench.show(on(process(7, used_gib=9.0)))
    now = NOW + bench.seconds
    assert [reading[:2] for reading in fed[-2:]] == [(now - 1, 12.25 * GIB), (now, 9 * GIB)]


def test_free_memory_is_news() -> None:
    """A process that stands still on a GPU that fills up is judged by what is free now."""
    bench = Bench()
    for _ in range(LEARNED):
        bench.show(on(process(7)))
    for used in range(3, 13):
        bench.show(on(process(7), used_gib=float(used)))
    free = [reading[2] for reading in bench.of(7).readings[-10:]]
    assert free == [int((23.75 - used) * GIB) for used in range(3, 13)]


def test_who_leaves_when_all_stood_still() -> None:
    """Nothing is said of it at once, and it is remembered for ten minutes from when it was seen last."""
    bench = Bench()
    for _ in range(LEARNED + 60):
        seen = bench.show(on(process(7), process(8)))
    assert process(7).key in seen.growth
    seen = bench.show(on(process(8)))
    assert process(7).key not in seen.growth
    assert process(8).key in seen.growth
    for _ in range(int(FORGET_SECONDS) - 16):
        bench.show(on(process(8)))
    assert bench.histories.watching.histories == 3  # with nobody's
    for _ in range(32):
        bench.show(on(process(8)))
    assert bench.histories.watching.histories == 2


def test_who_leaves_while_its_gpu_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its service hears of it with the first reading after that, once, and of none that is still there."""
    bench, left = Bench(), []
    for _ in range(LEARNED):
        bench.show(on(process(7), process(8)))
    monkeypatch.setattr(bench.histories, "leave", lambda history: left.append(history.id.pid))
    for _ in range(5):
        bench.show(snapshot([absent_gpu(0, GpuState.BLIND)], []))
    assert left == []
    for _ in range(5):
        bench.show(on(process(8)))
    assert left == [7]


def test_a_word_while_all_stand_still() -> None:
    """What a detector says of a process that has not changed is told at the same tick."""
    bench = Bench()
    for _ in range(LEARNED + 10):
        bench.show(on(process(7), process(8)))
    bench.of(7).said = GROWS
    told = [bench.show(on(process(7), process(8))).growth[process(7).key].verdict for _ in range(AGAIN_SECONDS)]
    assert told[-1] is GROWS.verdict
    assert bench.of(7).readings[-1][0] == NOW + bench.seconds - (AGAIN_SECONDS - 1 - told.index(GROWS.verdict))
