"""Services under recorded load are what they are called, and are counted as an on-call person would."""

from __future__ import annotations

import random
import struct
import zipfile
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.leak.load.arrivals import generated, recorded
from benchmarks.leak.load.families import FAMILIES, Group, Run, loads_of
from benchmarks.leak.load.judge import Said, Told
from benchmarks.leak.load.peers import HamedRao, hamed_rao_z, judge_by, peers, ranks_of, sens_slope
from benchmarks.leak.load.score import Judged, rows
from benchmarks.leak.load.services import Life, lives_of
from benchmarks.leak.recorded.days import CASES, steps

from gpuagent.core.growth import Evidence, Range

LOADS = generated(3, 1)
DAY = 86_400.0


def npz(path: Path, name: str, numbers: list[int], shape: str) -> None:
    """Write an array as numpy does."""
    head = f"{{'descr': '<i4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + array("i", numbers).tobytes()
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"{name}.npy", data)


def test_recorded_counts_are_read_without_numpy(tmp_path: Path) -> None:
    """A file of counts and of tokens becomes loads whose mean is 1."""
    path = tmp_path / "arrivals.npz"
    npz(path, "series", [1, 3, 2, 2], "(4,)")
    npz(path, "tokens", [10, 5, 20, 10], "(2, 2)")

    (load,) = recorded(path)

    assert load.counts == [0.5, 1.5, 1.0, 1.0]
    assert load.sizes == pytest.approx([2 / 3, 4 / 3])
    assert load.rate(150.0) == 1.0


def test_a_file_without_counts_is_refused(tmp_path: Path) -> None:
    """What is no file of arrays is a ValueError, not a traceback."""
    path = tmp_path / "arrivals.npz"
    path.write_text("no archive")

    with pytest.raises(ValueError, match="no file of arrays"):
        recorded(path)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_does_not_leak_lives_within_its_gpu(family: str) -> None:
    """LEAK-01, LEAK-02: of two days, only what leaks runs out of memory, and no reading is impossible."""
    group, draw = FAMILIES[family]
    rng = random.Random(3)
    plan = replace(draw(rng, LOADS[0]), days=2.0, interval=120.0)

    lives = lives_of(plan, rng)

    leaks = group not in (Group.BENIGN, Group.FILL, Group.HEALTHY_POD)
    assert bool(plan.leak_request or plan.leak_second) is leaks
    assert leaks or not any(life.exhausted for life in lives)
    for life in lives:
        assert min(life.free) >= 0
        assert all(a <= r < u for a, r, u in zip(life.allocated, life.reserved, life.used, strict=True))


def test_a_third_of_the_loads_is_kept_back() -> None:
    """What was tuned with is not what is scored."""
    seen, unseen = (loads_of(LOADS, unseen=unseen) for unseen in (False, True))

    assert (len(seen), len(unseen)) == (2, 1)
    assert unseen[0] not in seen


def test_leaks_and_fills_are_counted() -> None:
    """A slow fill told with the grade for remedies, a leak told in time, and a forecast that held."""
    strict = Told(2 * DAY, Range(DAY, DAY / 2, 2 * DAY), (Evidence.BALANCED, Evidence.STRICT), (2 * DAY, 2.1 * DAY))
    fill = Judged(Run("slow_fill", Group.FILL, 0, 1.0, ()), [Said(None, 0.0, 10 * DAY, False, [strict])])
    leak = Judged(Run("leak_of_days", Group.LEAK, 0, 1.0, ()), [Said(DAY, 0.0, 3 * DAY, True, [strict])])

    found = {row.name: row.value for row in rows([fill, leak], [Evidence.STRICT])}

    assert found["slow fill: false alarms in 100 days"] == 10.0
    assert found["slow fill: told at the grade in the first life"] == 1.0
    assert found["leak: told before the memory is gone"] == 1.0
    assert found["leak: share of the life that had passed"] == 0.5
    assert found["forecast: the range holds"] == 1.0


def test_hamed_rao_is_that_of_pymannkendall() -> None:
    """Its z and slope for numbers that are correlated with themselves, as version 1.4.3 has them."""
    rng, value = random.Random(5), 0.0
    values = []
    for place in range(60):
        value = 0.7 * value + rng.gauss(0, 1)
        values.append(round(0.03 * place + value, 3))

    assert sens_slope(values) == pytest.approx(0.0597136170212766, rel=1e-12)
    assert hamed_rao_z(values, sens_slope(values)) == pytest.approx(3.297546437236196, rel=1e-9)
    assert ranks_of([3.0, 1.0, 3.0]) == [2.5, 1.0, 2.5]


@pytest.mark.parametrize(("pace", "told"), [(0.0, 0), (2.0 * 2**30 / 86_400, 1)])
def test_a_peer_tells_a_leak_of_days_and_nothing_of_what_stands(pace: float, told: int) -> None:
    """It has a day of the life, says when the memory is gone, and says it once."""
    life, rng = Life(0.0, leak_seconds=0.0, end=2 * DAY), random.Random(1)
    for place in range(2 * 24 * 60):
        at, jitter = 60.0 * place, rng.uniform(0, 256) * 2**20
        figures = (at, 8 * 2**30 + pace * at + jitter, 12 * 2**30 - pace * at - jitter, 0.0, 0.0)
        for column, number in zip(life.columns(), figures, strict=True):
            column.append(number)
    peer = next(one for one in peers() if one.make is HamedRao)

    (said,) = judge_by(peer, Run("leak", Group.LEAK, 0, 24 * 2.0**30, [life]))

    assert len(said.told) == told
    for alarm in said.told:
        assert DAY <= alarm.at < 1.1 * DAY
        assert alarm.exhaustion is not None
        assert alarm.exhaustion.value == pytest.approx(5 * DAY, rel=0.05)


def test_recorded_days_are_asked_what_the_arrivals_say() -> None:
    """A step for each minute of the days, with so many requests on average, the same at each run."""
    case, load = CASES[0], LOADS[0]
    found = list(steps(case, load, 7, 1, 2))

    assert [at for at, _ in found[:2]] == [DAY + 60, DAY + 120]
    assert len(found) == 2 * 24 * 60
    asked = sum(len(words) for _, words in found)
    expected = case.requests_a_minute * sum(load.rate(DAY + 60 * place) for place in range(2 * 24 * 60))
    assert asked == pytest.approx(expected, rel=0.05)
    assert found == list(steps(case, load, 7, 1, 2))
