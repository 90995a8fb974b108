"""The rule of the leak gate, without torch."""

from __future__ import annotations

import pytest

from gpuagent_client.testing import find_leak
from gpuagent_client.testing.gate import NODES, Figures, Growth, confirmed, suspects
from tests.tables import table

KIB = 1024


def series(name: str, *values: int | None) -> list[Figures]:
    """The figures of a run."""
    return [{name: value} for value in values]


@table(
    "name, values, allowed_bytes, suspected",
    [
        ("cpu", (0, 0, 0, 0, 0), 0, False),
        ("cpu", (0, 4, 8, 12, 16), 0, True),
        ("cpu", (0, 64, 128, 128, 128), 0, False),  # a cache that has filled
        ("cpu", (0, 0, 64, 64, 128), 0, True),  # one call of ten
        ("cpu", (128, 0, 0, 0, 64), 0, True),
        ("cpu", (0, 4, 8, 12, 16), 1, False),  # 8 bytes in ten calls
        ("cpu", (0, 4, 8, 12, 20), 1, True),
        ("cpu", (0, None, 8, 12, 16), 0, False),
        ("cuda:0", (0, 100, 200, 300, 400), 0, False),  # less than a block
        ("cuda:0", (0, 512, 1024, 1536, 2048), 0, True),
        (NODES, (0, 1, 2, 3, 4), KIB, True),
    ],
)
def test_what_is_suspected(name: str, values: tuple[int | None, ...], allowed_bytes: int, suspected: bool) -> None:
    """Growth in the second half of the run is looked into, if it is a block and more than is allowed."""
    assert suspects(series(name, *values), 5, allowed_bytes) == ([name] if suspected else [])


@table(
    "name, values, leaks",
    [
        ("cpu", (0, 60, 120, 180, 240), True),
        ("cpu", (0, 60, 120, 180, 180), False),  # it stops
        ("cpu", (0, 60, 120, 40, 100), False),  # it is emptied
        ("cpu", (0, 100, 155, 185, 202), False),  # it slows down, as a cache of random keys does
        ("cpu", (0, 60, 130, 180, 225), True),
        ("cpu", (0, 60, None, 180, 240), False),
        ("cuda:0", (0, 511, 1022, 1533, 2044), False),
        ("cuda:0", (0, 512, 1024, 1536, 2048), True),
    ],
)
def test_what_is_confirmed(name: str, values: tuple[int | None, ...], leaks: bool) -> None:
    """A leak grows in every part and does not slow down; a missing figure is no growth."""
    found = confirmed([name], [[one] for one in series(name, *values)], 60, 0)

    amounts = [value for value in values if value is not None]
    assert found == ([Growth(name, amounts[-1] - amounts[0], 240)] if leaks else [])


@table(
    "readings, leaks",
    [
        (((0,), (20, 40, 60), (80, 100, 120), (140, 160, 180), (200, 220, 240)), True),
        (((0,), (20, 70, 60), (65, 100, 120), (140, 160, 180), (200, 220, 240)), False),  # up and down
        (((0,), (5, 3, 9), (10, 12, 11), (13, 17, 15), (18, 20, 19)), True),
        (((0,), (5, 3, 9), (9, 12, 11), (13, 17, 15), (18, 20, 19)), False),
    ],
)
def test_what_goes_up_and_down(readings: tuple[tuple[int, ...], ...], leaks: bool) -> None:
    """The least of each part is more than the most of the one before, else the growth may be chance."""
    assert bool(confirmed(["cpu"], [series("cpu", *part) for part in readings], 60, 0)) == leaks


def test_gpus_come_first() -> None:
    """What leaks most on a GPU is told before the host's memory and the graphs."""
    figures: list[Figures] = [
        {NODES: step, "cpu": step * 4096, "cuda:1": step * 1024, "cuda:0": step * 512} for step in range(5)
    ]

    assert [one.name for one in confirmed([*figures[0]], [[one] for one in figures], 60, 0)] == [
        "cuda:1",
        "cuda:0",
        "cpu",
        NODES,
    ]


@table(
    "settings, words",
    [
        ({"warmup": 0}, "warmup must be 1 or more"),
        ({"calls": 3}, "calls must be 4 or more"),
        ({"confirm": 19}, "confirm must not be less than calls"),
        ({"allowed_bytes": -1}, "allowed_bytes must not be negative"),
    ],
)
def test_settings_out_of_range(settings: dict[str, int], words: str) -> None:
    """A number out of its range is said at once, before the function is called."""
    with pytest.raises(ValueError, match=words):
        find_leak(lambda: pytest.fail("called"), **settings)


def test_nothing_leaks_without_torch() -> None:
    """A function that has no torch to leak with is called and passes."""
    calls = []

    assert find_leak(lambda: calls.append(0), warmup=2, calls=8) is None
    assert len(calls) == 10
