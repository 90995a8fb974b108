"""The recipe's vectors: what was computed with another implementation of it, to the second."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest

from gpuagent_alerts.leak.blocks import PAGE_BYTES, to_pages
from gpuagent_alerts.leak.criterion import BlockContext
from gpuagent_alerts.leak.settings import ALLOCATOR_SETTINGS, ALLOCATOR_SUSPECTED, EVEN, Settings
from gpuagent_alerts.leak.signals import Signal
from tests.alerts.leak.curves import MIB, TOTAL_BYTES, Curve, leak, plateau, saw_tooth

IN_APP, SUSPECTED = replace(ALLOCATOR_SETTINGS["balanced"], growth_share=0.6), ALLOCATOR_SUSPECTED
STRICT = replace(
    Settings(),
    growth_share=0.6,
    blackout_seconds=600.0,
    waive_bend_growth_share=math.inf,
    urgent_growth_share=math.inf,
    even=replace(EVEN, eighths=7),
)
"""The recipe's own strict; the shipped one asks for a third window and more certainty, not for a seventh eighth."""


def _stairs(seconds: float) -> float:
    return 20_000 + 500 * (max(0.0, seconds - 1200) // 600)


def _released(seconds: float) -> float:
    return leak(2)(seconds) if seconds < 20_000 else 20_000


def _saturating(seconds: float) -> float:
    return 20_000 + 30_000 * (1 - math.exp(-max(0.0, seconds - 1200) / 3600))


VECTORS: dict[str, tuple[Curve, list[float | str], list[float | str], list[float | str]]] = {
    "1 line": (leak(2), [14_040], [6_840], [14_520]),
    "2 stairs": (_stairs, [32_760], [16_440], [33_240]),
    "3 slow": (leak(0.05), [80_760], [80_760], [81_240]),
    "4 slower": (leak(0.005), [80_760], [80_760], [81_240]),
    "5 plateau": (
        plateau(2, 40_000),
        [14_040, "plateau", 32_190],
        [6_840, "plateau", 26_730],
        [14_520, "plateau", 32_190],
    ),
    "6 released": (
        _released,
        [14_040, "released", 20_010],
        [6_840, "released", 20_010],
        [14_520, "released", 20_010],
    ),
    "7 takes 32 %": (plateau(2, 20_000), [], [6_840, "plateau", 16_710], []),
    "8 saturates": (_saturating, [], [3_000, "plateau", 22_185], []),
    "9 saw-tooth": (saw_tooth(900, 20_000), [], [870, "released", 915], []),
}


def told(curve: Curve, settings: Settings) -> Iterator[float | str]:
    """When one criterion's alarms begin, how and when they end: ticks every 5 s, the process alone."""
    signal = Signal([settings], TOTAL_BYTES)
    (criterion,) = signal.criteria
    for begin in range(int(settings.blackout_seconds), 100_000, 15):
        readings = [curve(seconds) * MIB for seconds in (begin, begin + 5, begin + 10)]
        if readings[-1] >= TOTAL_BYTES:
            return
        end = float(begin + 15)
        if signal.close(
            to_pages(min(readings)), BlockContext(end, (TOTAL_BYTES - readings[-1]) / PAGE_BYTES, end), [criterion]
        ):
            if criterion.alarm is None and criterion.ending is not None:
                yield "released" if criterion.ending.released else "plateau"
            yield end


@pytest.mark.parametrize("name", VECTORS)
def test_the_allocators_standard(name: str) -> None:
    """LEAK-01, LEAK-02: a growth share of 0.6 alarms, and ends, at these seconds."""
    curve, expected, _, _ = VECTORS[name]
    assert list(told(curve, IN_APP)) == expected


@pytest.mark.parametrize("name", VECTORS)
def test_the_suspicion(name: str) -> None:
    """A growth share of 0.2 alarms, and ends, at these seconds."""
    curve, _, expected, _ = VECTORS[name]
    assert list(told(curve, SUSPECTED)) == expected


@pytest.mark.parametrize("name", VECTORS)
def test_the_strict_standard(name: str) -> None:
    """Strict, with its blackout of 600 s, alarms and ends at these seconds."""
    curve, _, _, expected = VECTORS[name]
    assert list(told(curve, STRICT)) == expected


def test_what_the_first_vector_was_raised_on() -> None:
    """Growth, window and floor are those of the recipe, too."""
    signal = Signal([IN_APP], TOTAL_BYTES)
    (criterion,) = signal.criteria
    curve = leak(2)
    for begin in range(120, 14_040, 15):
        free = (TOTAL_BYTES - curve(begin + 10) * MIB) / PAGE_BYTES
        signal.close(to_pages(curve(begin) * MIB), BlockContext(begin + 15.0, free, begin + 15.0), [criterion])

    assert criterion.alarm is not None
    assert (criterion.alarm.growth * PAGE_BYTES, criterion.alarm.window_seconds) == (22_080 * MIB, 11_040)
    assert criterion.alarm.growth / criterion.alarm.free == pytest.approx(0.609, abs=0.001)
