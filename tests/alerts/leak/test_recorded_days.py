"""Days of real services on CPU torch: leaks are confirmed before the end, bounded caches never, and forecasts hold.

tests/data/leaks/README.md says what is real in them; `python -m benchmarks.leak.recorded.days` records them again.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from benchmarks.leak.load.families import Group, Run
from benchmarks.leak.load.judge import Said, judge
from benchmarks.leak.load.services import Life
from benchmarks.leak.recorded.days import CASES, TOTAL_BYTES, DaysCase

from gpuagent.core.growth import Evidence

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "data" / "leaks" / "days"
HOUR = 3600.0
MOST_BYTES = 2**20
FULL_BYTES = 16 * 2**20
SINCE_BOOT = 1e6
LEAK, NIGHTLY, *HEALTHY = CASES
both_signals = pytest.mark.parametrize("client", [True, False], ids=["app", "nvml"])


def lives_of(case: DaysCase) -> list[Life]:
    """Each process of a file, by its figures."""
    found: dict[str, Life] = {}
    for line in gzip.decompress((FOLDER / f"{case.name}.csv.gz").read_bytes()).decode().splitlines()[1:]:
        *figures, process = line.split(",")
        at = float(figures[0]) + SINCE_BOOT
        life = found.setdefault(process, Life(at - 60.0, leak_seconds=at if case.kind == "outputs" else None))
        for column, value in zip(life.columns(), (at, *map(float, figures[1:])), strict=True):
            column.append(value)
        life.end, life.exhausted = at, life.free[-1] < FULL_BYTES
    return list(found.values())


def said_of(case: DaysCase, *, client: bool) -> list[Said]:
    """What the detector says of each life, with what the ones before have shown."""
    run = Run(case.name, Group.LEAK, 0, TOTAL_BYTES, lives_of(case))
    return judge(run, "balanced", client=client)[0]


def test_all_cases_are_recorded() -> None:
    """One file for each case and none beside them, a reading a minute, within what a checkout may weigh."""
    files = sorted(FOLDER.glob("*.gz"))
    assert [file.name.removesuffix(".csv.gz") for file in files] == sorted(case.name for case in CASES)
    assert sum(file.stat().st_size for file in files) <= MOST_BYTES
    for case in CASES:
        lives = lives_of(case)
        assert len(lives) == (case.days if case.nightly else 1)
        assert all(len(life.times) >= 60 * (24 if case.nightly else 96) for life in lives)


@both_signals
def test_a_leak_of_days_is_confirmed_before_the_end(client: bool) -> None:
    """LEAK-02: told in a third of its life, with more than one witness half a day before the end; the range holds."""
    (said,) = said_of(LEAK, client=client)
    (told,) = said.told
    left = said.end - told.at

    assert said.exhausted
    assert told.at - said.begin < (said.end - said.begin) / 3
    assert told.evidence == (Evidence.ALLOCATOR if client else Evidence.STRICT, Evidence.CONFIRMED)
    assert said.end - told.evidence_at[1] > 12 * HOUR
    assert told.exhaustion is not None
    assert told.exhaustion.low < left < told.exhaustion.high
    assert 0.5 < told.exhaustion.value / left < 2


@both_signals
@pytest.mark.parametrize("case", HEALTHY, ids=lambda case: case.name)
def test_a_bounded_cache_is_never_confirmed(case: DaysCase, client: bool) -> None:
    """LEAK-01: a prefix cache and adapters that fill over days may be called a leak until they stop, by one witness."""
    said = said_of(case, client=client)

    assert not any(Evidence.CONFIRMED in told.evidence for life in said for told in life.told)
    assert sum(len(life.told) for life in said) <= 1


def test_a_leak_that_each_night_cuts_short_is_told_by_the_allocator() -> None:
    """LEAK-02: in the lives that take a quarter of the room, the last of them sooner by what the others have shown."""
    said = said_of(NIGHTLY, client=True)
    taken = [life.used[-1] - life.used[30] for life in lives_of(NIGHTLY)]
    told = [life.told[0].at - life.begin if life.told else None for life in said]

    assert [at is not None for at in told] == [True, False, False, True, True]
    assert min(taken[place] for place in (0, 3, 4)) > 0.24 * NIGHTLY.room_mib * 2**20
    assert told[0] is not None
    assert told[4] is not None
    assert told[4] < told[0] - 3 * HOUR
