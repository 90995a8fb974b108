"""The detector as its users see it: verdicts, figures, reasons, gaps and nonsense."""

from __future__ import annotations

import math

import pytest

from gpuagent.core.growth import Evidence, Growth, Verdict
from gpuagent_alerts.leak.detector import MemoryLeakDetector
from gpuagent_alerts.leak.settings import SENSITIVITIES, Sensitivity
from tests.alerts.leak.curves import GIB, HOUR, MIB, TOTAL_BYTES, day, detector, first, leak, plateau, saw_tooth, show


def test_a_leak_of_tensors() -> None:
    """LEAK-02: with the allocator's figures a leak is told with its onset, slope, forecast and reasons."""
    watched = detector()
    changes = show(watched, leak(2), 14_100, client=True)

    assert [change.growth.verdict for change in changes] == [
        Verdict.LEARNING,
        Verdict.STEADY,
        Verdict.GROWING,
        Verdict.LEAKING,
    ]
    seconds, growth = changes[-1]
    assert seconds == 14_040
    assert growth.evidence is Evidence.ALLOCATOR
    assert growth.slope is not None
    assert growth.slope == pytest.approx((2 * MIB,) * 3)
    assert growth.since_seconds == pytest.approx(1200, abs=600)
    assert growth.exhaustion is not None
    left = (80 * 1024 - 20_000 - 2 * (14_040 - 1200)) / 2
    assert growth.exhaustion == pytest.approx((left, left / 2, left * 2), rel=0.06)
    assert growth.reasons == (
        "floor of tensors rose in 8 of 8 parts of 3 h 4 min, did not slow down",
        "+21.6 GiB, with 35.4 GiB left",
    )


@pytest.mark.parametrize("sensitivity", SENSITIVITIES)
def test_without_a_client_the_evidence_is_the_strictest_that_is_met(sensitivity: Sensitivity) -> None:
    """The verdict waits for the configured criterion; the evidence is that or a stricter one, and rises."""
    watched = detector(sensitivity)
    changes = show(watched, leak(2), 15_600)
    last = watched.update(15_600, leak(2)(15_600) * MIB, TOTAL_BYTES - leak(2)(15_600) * MIB)

    assert changes[-1].growth.verdict is Verdict.LEAKING
    assert changes[-1].growth.evidence in list(Evidence)[1 : list(Evidence).index(Evidence(sensitivity)) + 1]
    assert last.evidence is Evidence.STRICT


def test_the_sensitivities_are_in_order() -> None:
    """The more sensitive, the sooner, of the same leak."""
    strict, balanced, sensitive = (
        first(show(detector(name), leak(2), 16_000), Verdict.LEAKING) for name in SENSITIVITIES
    )

    assert strict is not None
    assert balanced is not None
    assert sensitive is not None
    assert sensitive < balanced <= strict


@pytest.mark.slow
def test_a_cache_that_fills_and_stops() -> None:
    """LEAK-01: growth that takes a third of what was free and stops is never a leak."""
    changes = show(detector(), plateau(2, 20_000), 24 * HOUR, client=True)

    assert first(changes, Verdict.LEAKING) is None
    assert changes[-1].growth.verdict is Verdict.STEADY


def test_an_allocators_cache_is_named() -> None:
    """LEAK-01: what rises outside the tensors, within the allocator, is its cache."""
    watched = detector()
    verdicts = set()
    for seconds in range(0, 20_000, 5):
        reserved = leak(2)(seconds) * MIB
        growth = watched.update(seconds, reserved + GIB, TOTAL_BYTES - reserved - GIB, 15 * GIB, reserved)
        verdicts.add(growth.verdict)

    assert Verdict.LEAKING not in verdicts
    assert growth.verdict is Verdict.CACHED
    assert growth.reasons[0].endswith("its tensors did not")
    assert "is the allocator's cache, which it can give back" in growth.reasons[1]


def test_memory_outside_the_allocator() -> None:
    """Growth that the allocator knows nothing of is a leak too, and is named so."""
    watched = detector()
    for seconds in range(0, 20_000, 5):
        used = leak(2)(seconds) * MIB
        growth = watched.update(seconds, used, TOTAL_BYTES - used, 8 * GIB, 10 * GIB)

    assert (growth.verdict, growth.evidence) == (Verdict.LEAKING, Evidence.ALLOCATOR)
    assert growth.reasons[0].startswith("floor of memory outside the allocator rose")


@pytest.mark.slow
@pytest.mark.parametrize("client", [True, False])
def test_a_leak_that_stops_has_levelled_off(client: bool) -> None:
    """An alarm ends on a plateau, is told as such for a stated time, and the plateau raises no other."""
    changes = show(detector(), plateau(2, 40_000), 72 * HOUR, client=client)
    verdicts = [change.growth.verdict for change in changes]

    assert verdicts[-3:] == [Verdict.LEAKING, Verdict.LEVELLED_OFF, Verdict.STEADY]
    assert "no new high for" in changes[-2].growth.reasons[0]
    assert changes[-1].seconds - changes[-2].seconds == pytest.approx(11_040, abs=120)  # the alarm's window


def test_a_leak_that_is_given_back_has_levelled_off() -> None:
    """An alarm ends within a block of the release."""
    changes = show(detector(), lambda seconds: leak(2)(seconds) if seconds < 20_000 else 20_000, 21_000, client=True)

    assert changes[-1].growth.verdict is Verdict.LEVELLED_OFF
    assert 20_000 < changes[-1].seconds <= 20_030
    assert changes[-1].growth.reasons[0] == "it gave back 36.6 GiB, and held 19.5 GiB then"


def test_a_server_that_allocates_first() -> None:
    """LEAK-02: 90 % of the GPU in the first minute and nothing more is steady."""
    changes = show(detector(), lambda seconds: min(73_000, 600 + 1000 * seconds), 24 * HOUR)

    assert {change.growth.verdict for change in changes} == {Verdict.LEARNING, Verdict.STEADY}


@pytest.mark.slow
def test_a_leak_behind_a_preallocation() -> None:
    """LEAK-02: 1 MiB a minute under noise, with 7 GiB left, is found within 26 hours."""
    changes = show(
        detector(),
        lambda seconds: 73_000 + 20 * math.sin(seconds) + max(0.0, seconds - 1800) / 60,
        30 * HOUR,
        every=15,
    )

    alarm = first(changes, Verdict.LEAKING)
    assert alarm is not None
    assert alarm < 26 * HOUR


@pytest.mark.slow
def test_saw_teeth_and_days() -> None:
    """LEAK-02: what comes back to its floor is no leak."""
    for curve in (saw_tooth(900, 20_000), saw_tooth(5400, 18_000), day(20_000)):
        changes = show(detector(), curve, 72 * HOUR, every=15, client=True)
        assert first(changes, Verdict.LEAKING) is None


def test_steps_of_epochs() -> None:
    """LEAK-02: a few jumps, each held, are no leak."""
    changes = show(detector(), lambda seconds: 20_000 + 6_000 * min(4, seconds // 4000), 24 * HOUR)

    assert first(changes, Verdict.LEAKING) is None


def test_a_gap_makes_no_slope() -> None:
    """LEAK-03: a jump over hours without readings is a jump, and what was seen before still counts."""
    watched = detector()
    show(watched, lambda _: 20_000, 4 * HOUR)
    changes = show(watched, lambda _: 60_000, 30 * HOUR, since=20 * HOUR)

    assert first(changes, Verdict.LEAKING) is None
    assert first(changes, Verdict.GROWING) is None


def test_a_leak_goes_on_through_a_gap() -> None:
    """LEAK-03: readings missing for a tenth of the time delay no alarm by more than a block of its level."""
    watched = detector()
    alarm = None
    for seconds in range(0, 16_000, 5):
        used = leak(2)(seconds) * MIB if seconds // 300 % 10 else None
        growth = watched.update(seconds, used, TOTAL_BYTES - leak(2)(seconds) * MIB)
        if growth.verdict is Verdict.LEAKING and alarm is None:
            alarm = seconds

    whole = first(show(detector(), leak(2), 16_000), Verdict.LEAKING)
    assert alarm is not None
    assert whole is not None
    assert abs(alarm - whole) <= 480


def test_after_a_long_gap_it_learns_again() -> None:
    """A day without a reading leaves nothing to be said of now."""
    watched = detector()
    show(watched, lambda _: 20_000, 2 * HOUR)

    growth = watched.update(26 * HOUR, 20_000 * MIB, 60_000 * MIB)

    assert growth.verdict is Verdict.LEARNING


def test_a_client_that_comes_and_goes() -> None:
    """Without the allocator's figures for 10 minutes, the driver's are judged, with all that they have seen."""
    watched = detector()
    show(watched, leak(2), 16_000, client=True)
    changes = show(watched, leak(2), 20_000, since=16_000)

    assert changes[-1].growth.verdict is Verdict.LEAKING
    assert changes[-1].growth.evidence is not Evidence.ALLOCATOR
    assert first(show(watched, leak(2), 24_000, since=20_000, client=True), Verdict.LEAKING) == 20_000


def test_an_agent_that_is_blind_does_not_lose_the_client() -> None:
    """LEAK-03: hours without any reading are no sign that the client has gone."""
    watched = detector()
    show(watched, leak(2), 16_000, client=True)
    changes = show(watched, leak(2), 25_000, since=24_000, client=True)

    assert {change.growth.evidence for change in changes} == {Evidence.ALLOCATOR}


def test_a_neighbor_changes_what_is_free_and_nothing_else() -> None:
    """Free memory that goes to another process is no growth of this one."""
    watched = detector()
    for seconds in range(0, 40_000, 5):
        growth = watched.update(seconds, 20_000 * MIB, max(0, 60_000 - seconds) * MIB)

    assert growth.verdict is Verdict.STEADY
    assert growth.slope == (0, 0, 0)


def test_the_same_object_while_nothing_changes() -> None:
    """A caller may compare identities: hours of the same are one object."""
    watched = detector()
    show(watched, lambda _: 20_000, 2 * HOUR)
    words = {id(watched.update(2 * HOUR + k, 20_000 * MIB, 60_000 * MIB)) for k in range(3600)}

    assert len(words) == 1


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -math.inf, -5.0, 2.0**64, 0.0])
def test_a_reading_that_cannot_be_is_missing(nonsense: float) -> None:
    """GPU-06: what the driver says instead of a figure leaves no trace in the history."""
    clean, dirty = detector(), detector()
    for seconds in range(0, 16_000, 5):
        used = leak(2)(seconds) * MIB
        expected = clean.update(seconds, used, TOTAL_BYTES - used, used / 2, used / 2)
        dirty.update(seconds + 1, nonsense, None, nonsense, nonsense)
        growth = dirty.update(seconds + 2, used, TOTAL_BYTES - used, used / 2, used / 2)

    assert growth.verdict is expected.verdict
    assert growth.reasons == expected.reasons


def test_free_memory_that_nobody_tells() -> None:
    """Without free memory there is no criterion to measure growth by: it grows, and nothing more is said of it."""
    watched = detector()
    for seconds in range(0, 16_000, 5):
        growth = watched.update(seconds, leak(2)(seconds) * MIB, None)

    assert (growth.verdict, growth.suspected) == (Verdict.GROWING, False)
    assert growth.exhaustion is None


def test_time_that_goes_back_is_ignored() -> None:
    """A reading from the past changes nothing."""
    watched = detector()
    show(watched, leak(2), 10_000)
    before = watched.dump()
    growth = watched.update(5_000, 70_000 * MIB, 0)

    assert growth.verdict is Verdict.GROWING
    assert watched.dump() == before


@pytest.mark.parametrize("time", [math.nan, math.inf, 1e300])
def test_a_time_that_is_none(time: float) -> None:
    """A clock that is broken is an error, at any moment."""
    watched = detector()
    with pytest.raises(ValueError, match="time"):
        watched.update(time, 1, 1)
    show(watched, leak(2), 1000)
    with pytest.raises(ValueError, match="time"):
        watched.update(time, 1, 1)


@pytest.mark.parametrize("total", [0, -1, 2**44])
def test_a_gpu_that_cannot_be(total: int) -> None:
    """Its size must be one."""
    with pytest.raises(ValueError, match="memory of a GPU"):
        MemoryLeakDetector(total_bytes=total, started_seconds=None)


def test_a_sensitivity_that_is_none() -> None:
    """The three are named."""
    with pytest.raises(ValueError, match="strict, balanced, sensitive"):
        MemoryLeakDetector(total_bytes=1, started_seconds=None, sensitivity="lax")  # type: ignore[arg-type]


def test_first_seen_late() -> None:
    """A process that is older than the agent is judged from 2 minutes on, and its age counts from its real start."""
    known = MemoryLeakDetector(total_bytes=TOTAL_BYTES, started_seconds=0)
    unknown = MemoryLeakDetector(total_bytes=TOTAL_BYTES, started_seconds=None)
    curve = leak(60, begin=0, base=10_000)
    told = []
    for watched in (known, unknown):
        suspected = None
        for seconds in range(100_000, 101_100, 5):
            used = curve(seconds - 100_000) * MIB
            growth = watched.update(seconds, used + 1000 * MIB, TOTAL_BYTES - used, used, used + 500 * MIB)
            suspected = suspected or (seconds if growth.suspected else None)
        told.append(suspected)

    assert told[0] is not None
    assert told[1] is None or told[0] < told[1]


@pytest.mark.slow
def test_phases_end_their_blocks_at_different_times() -> None:
    """Of 15 detectors one works at each second; the verdict is the same within a block."""
    told = [first(show(detector(phase=phase), leak(2), 16_000, every=1), Verdict.LEAKING) for phase in (0, 7, 14)]

    assert len(set(told)) == 3
    assert max(told) - min(told) < 15  # type: ignore[type-var, operator]


def test_growth_is_the_word_of_the_whole_api() -> None:
    """Nothing but `Growth` comes out, from the first reading on."""
    assert detector().update(0, None, None) == Growth(Verdict.LEARNING)
