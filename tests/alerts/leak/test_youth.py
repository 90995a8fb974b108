"""A window over most of a process's life is its start, and no leak yet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuagent.core.growth import Verdict
from gpuagent_alerts.leak.settings import SENSITIVITIES, SETTINGS, Evenness, Sensitivity
from gpuagent_alerts.leak.verdict import STILL
from tests.alerts.leak.curves import HOUR, MIB, TOTAL_BYTES, Curve, detector, first, leak, show
from tests.alerts.leak.test_vectors import told

FOUR = Evenness(eighths=4, largest_eighth=0.45, increments=3.5)
"""As many steps are enough for these tests of age."""


def steps(begin: float) -> Curve:
    """Six steps of 8,000 MiB, half an hour apart, that take four fifths of what was free, and no more."""
    return lambda seconds: 20_000 + 8_000 * min(6, max(0, (seconds - begin) // 1800 + 1))


@pytest.mark.parametrize("sensitivity", SENSITIVITIES)
def test_steps_from_the_start_on_are_no_leak(sensitivity: Sensitivity) -> None:
    """LEAK-01: a curriculum that takes most of the memory in a few steps, and stops, is not called a leak."""
    changes = show(detector(sensitivity), steps(0.5 * HOUR), 24 * HOUR, every=15)

    assert first(changes, Verdict.LEAKING) is None


def test_the_life_of_a_process_is_what_tells_them() -> None:
    """Without regard to the process's age the same steps are called a leak: nothing else in them differs."""
    ageless = replace(SETTINGS["balanced"], life_windows=0.0, life_windows_urgent=0.0, even_urgent=FOUR)

    assert list(told(steps(0.5 * HOUR), ageless))[1:2] == ["plateau"]
    assert list(told(steps(0.5 * HOUR), SETTINGS["balanced"])) == []


def test_the_same_steps_late_in_a_life_are_a_leak() -> None:
    """LEAK-02: a process that was steady for six hours and then grows by steps is told before the last of them."""
    begin = 6.5 * HOUR
    alarm = first(show(detector(), steps(begin), begin + 3 * HOUR, every=15), Verdict.LEAKING)

    assert alarm is not None
    assert alarm < begin + 5 * 1800


def test_a_leak_from_the_first_minute_on_is_found() -> None:
    """LEAK-02: a line that begins with the process is told when little more than half of the free memory is gone."""
    alarm = first(show(detector(), leak(2, begin=0), 24 * HOUR, every=15), Verdict.LEAKING)

    assert alarm is not None
    assert 2 * alarm < 0.55 * (TOTAL_BYTES / MIB - 20_000)


def test_growth_in_a_young_process_says_why_it_is_not_told() -> None:
    """Even growth over most of a life is named as that, until the process has lived for longer."""
    watched = detector()
    show(watched, leak(2, begin=0), 7000, every=15)
    used = leak(2, begin=0)(7000) * MIB

    assert watched.update(7000, used, TOTAL_BYTES - used).reasons == (
        "rose by 10.8 GiB in 1 h 32 min, but has run for hardly longer than that",
    )


def test_what_rises_is_not_called_still_before_that_can_be_known() -> None:
    """No pace of 0 beside memory that rises: of a young process, and of one that stood still until two minutes ago."""
    young, known = detector(), detector()
    for seconds in range(0, 480, 15):
        used = leak(40, begin=0)(seconds) * MIB
        said = young.update(seconds, used, TOTAL_BYTES - used)
        assert (said.verdict, said.slope) != (Verdict.STEADY, STILL)
    show(known, leak(60, begin=7200), 7380, every=15)
    used = leak(60, begin=7200)(7380) * MIB
    said = known.update(7380, used, TOTAL_BYTES - used)
    assert (said.verdict, said.slope) == (Verdict.STEADY, None)
    assert said.reasons[0].startswith("rose by ")


def test_another_length_of_window_is_a_witness() -> None:
    """Windows of two lengths that meet the criterion at one block save the wait for another, though not all of it."""
    one = replace(SETTINGS["balanced"], most_lengths=1)
    alone, both = (next(told(steps(6.5 * HOUR), settings)) for settings in (one, SETTINGS["balanced"]))

    assert (alone, both) == (32_460, 31_980)  # a block of 8 min
