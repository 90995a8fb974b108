"""What a detector was shown is kept, of bounded size, and a replay of it says what the detector said."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuagent.core.growth import Verdict
from gpuagent_alerts.leak.blocks import EMPTY
from gpuagent_alerts.leak.detector import MemoryLeakDetector
from gpuagent_alerts.leak.replay.exported import csv_of, read_document, rows_of, trace_document
from gpuagent_alerts.leak.replay.rows import ProcessFacts, TraceError
from gpuagent_alerts.leak.replay.run import Labelled, Replayed, replay_rows, score
from gpuagent_alerts.leak.replay.trace_files import read_csv
from gpuagent_alerts.leak.settings import SENSITIVITIES, Sensitivity
from gpuagent_alerts.leak.signals import Lows
from gpuagent_alerts.leak.trace import LEAST_RUNS, MOST_RUNS, Trace, TraceBudget

GIB: Final = 2**30
TOTAL: Final = 80 * GIB
UNIX: Final = 1_795_000_003.0
"""Of the detector's second 0."""


def watched(
    seed: int,
    sensitivity: Sensitivity = "balanced",
    *,
    client: bool = False,
    seconds: float = 20_000.0,
    leak: bool = True,
) -> tuple[MemoryLeakDetector, list[float]]:
    """Return a detector that has watched a process with peaks and gaps, and when its verdict became a leak."""
    draw = random.Random(seed)
    one = MemoryLeakDetector(total_bytes=TOTAL, started_seconds=900.0, sensitivity=sensitivity, phase=seed % 15)
    one.keep_trace(Trace())
    now, used, pace, alarms, leaked = 1200.0, 6.0 * GIB, draw.choice([12, 20]) * 2**20, [], False
    while now < seconds and used < TOTAL - GIB:
        now += draw.choice([1, 2, 5]) + (draw.choice([20, 90]) if draw.random() < 0.001 else 0)
        used += draw.random() * pace if leak and now > 4000 else 0.0
        seen = int(used) + (draw.randrange(GIB // 4) if draw.random() < 0.3 else 0)
        told = (int(used * 0.8) + draw.randrange(2**20), int(used * 0.9)) if client else ()
        leaks = one.update(now, seen, TOTAL - seen, *told).verdict is Verdict.LEAKING
        alarms += [now] if leaks and not leaked else []
        leaked = leaks
    return one, alarms


def document_of(one: MemoryLeakDetector) -> dict[str, Any]:
    """Return its trace as it crosses to a command: through JSON."""
    assert one.trace is not None
    made = trace_document(one.trace, "app:7/gpu0", total_bytes=TOTAL, started_seconds=900.0, clock_to_unix_seconds=UNIX)
    read: dict[str, Any] = json.loads(json.dumps(made, allow_nan=False))
    return read


def replayed(one: MemoryLeakDetector, sensitivity: Sensitivity) -> Replayed:
    """Return what a replay of its file says."""
    facts: dict[str, ProcessFacts] = {}
    lines = list(csv_of([read_document(document_of(one))]))
    rows = read_csv(lines, None, lambda line, what: pytest.fail(f"{line}: {what}"), facts)
    (found,) = replay_rows(rows, lambda *_: None, sensitivity=sensitivity, facts=facts)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("client", [False, True], ids=["driver alone", "with a client"])
@pytest.mark.parametrize("sensitivity", SENSITIVITIES)
@pytest.mark.parametrize("seed", range(3))
def test_a_replay_says_what_was_said(seed: int, sensitivity: Sensitivity, client: bool) -> None:
    """At the same sensitivity: the same verdict at the end, and each alarm within a block of its time."""
    one, alarms = watched(seed, sensitivity, client=client)
    again = replayed(one, sensitivity)
    assert alarms or client
    assert [alarm.alarm_seconds - UNIX for alarm in again.alarms] == pytest.approx(alarms, abs=20)
    assert again.growth.verdict is (Verdict.LEAKING if alarms else again.growth.verdict)


@pytest.mark.slow
def test_what_would_have_been_said_at_another() -> None:
    """The history of an agent at one sensitivity answers for the others as an agent at those would have."""
    for seed in range(3):
        balanced, _ = watched(seed)
        for sensitivity in SENSITIVITIES:
            _, alarms = watched(seed, sensitivity)
            told = [alarm.alarm_seconds - UNIX for alarm in replayed(balanced, sensitivity).alarms]
            assert told == pytest.approx(alarms, abs=20)


@pytest.mark.slow
def test_scores() -> None:
    """Each sensitivity is told how many leaks it found, how many alarms were false, and when."""
    leak, healthy = (watched(seed, leak=is_leak)[0] for seed, is_leak in ((0, True), (1, False)))
    named = [
        Labelled("1", True, read_document(document_of(leak))),
        Labelled("2", False, read_document(document_of(healthy))),
    ]
    for one in score(named):
        assert (one.true_positives, one.leaks, one.false_positives) == (1, 1, 0)
        assert [each.right for each in one.outcomes] == [True, True]
    (wrong, *_) = score([named[0]._replace(is_leak=False)])
    assert (wrong.false_positives, wrong.leaks) == (1, 0)


blocks = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.booleans()), min_size=1, max_size=600)


@settings(max_examples=60, deadline=None)
@given(blocks, st.integers(1, 40))
def test_runs_are_bounded_in_order_and_never_higher(steps: list[tuple[int, int, bool]], traces: int) -> None:
    """However much changes: no more runs than the share, none overlaps, and none says more than was held."""
    budget = TraceBudget(together=256)
    budget.traces = traces
    trace, block, shown = Trace(budget), 0, {}
    for gap, pages, told in steps:
        block += 1 + gap
        used = pages * 1000
        own = used // 2 if told else EMPTY
        trace.add(block, Lows(used, own, EMPTY, own), 5000.0, 0.0)
        shown[block] = used
        assert len(trace) <= max(LEAST_RUNS, budget.share)
    runs = trace.runs()
    assert all(one.last < other.first for one, other in pairwise(runs))
    for run in runs:
        held = [used for number, used in shown.items() if run.first <= number <= run.last]
        assert run.used == min(held)
    assert runs[-1].last == block


def test_steady_memory_costs_one_run() -> None:
    """A process that holds the same for a week takes no room, and its file has few rows."""
    trace = Trace()
    for block in range(40_000):
        trace.add(block, Lows(1000, EMPTY, EMPTY), 5000.0, 0.0)
    assert len(trace) == 1
    made = trace_document(trace, "a", total_bytes=TOTAL, started_seconds=None, clock_to_unix_seconds=0.0)
    rows = list(rows_of(read_document(made)))
    assert len(rows) < 2000
    assert rows[-1][0] - rows[0][0] > 39_990 * 15
    assert LEAST_RUNS < MOST_RUNS


def test_a_restart_keeps_the_shape() -> None:
    """What a restored detector still has of its past begins the new trace: lows as coarse as they are kept."""
    one, _ = watched(0)
    again = MemoryLeakDetector.load(one.dump(), total_bytes=TOTAL)
    again.keep_trace(Trace())
    assert again.trace is not None
    assert one.trace is not None
    runs, before = again.trace.runs(), one.trace.runs()
    assert runs[-1].last >= before[-1].last
    assert runs[0].first <= before[0].first + 2
    assert all(run.free == EMPTY for run in runs)
    assert {run.used for run in runs} <= {run.used for run in before}
    assert replayed(again, "balanced").alarms == []


@given(
    st.recursive(
        st.none() | st.integers() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)
    )
)
def test_a_document_from_elsewhere(cell: object) -> None:
    """Whatever stands in the place of a value: it is read, or a fault in words."""
    trace = Trace()
    trace.add(3, Lows(1000, EMPTY, EMPTY), 5000.0, 0.0)
    good = trace_document(trace, "a", total_bytes=TOTAL, started_seconds=1.0, clock_to_unix_seconds=0.0)
    for key in good:
        try:
            list(rows_of(read_document({**good, key: cell})))
        except TraceError:
            continue
    with pytest.raises(TraceError, match="goes back in time"):
        read_document({**good, "runs": [*good["runs"], *good["runs"]]})
