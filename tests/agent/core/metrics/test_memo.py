"""Series that are read again and again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuagent.core.metrics.family import SampleCache
from gpuagent.core.metrics.series import series
from gpuagent.core.snapshot import Snapshot
from tests.fakes.snapshots import full_snapshot, snapshots

NOW = 100.0


@pytest.mark.slow
@given(looks=st.lists(st.tuples(snapshots() | st.just(full_snapshot()) | st.none(), st.sampled_from([0.0, NOW]))))
@settings(max_examples=15)
def test_it_changes_nothing(looks: list[tuple[Snapshot | None, float]]) -> None:
    """EXP-05: whatever was seen before, the series are those of the snapshot: never the last good values."""
    memo = SampleCache()
    for snapshot, now in looks:
        assert list(series(snapshot, now, top=3, memo=memo)) == list(series(snapshot, now, top=3))


def test_what_has_not_changed_is_not_made_again() -> None:
    """EXP-08: of an equal snapshot come the same lists, but for the families that have changed."""
    memo, snapshot = SampleCache(), full_snapshot()
    first = dict(_lists(snapshot, memo))
    for later in (replace(snapshot), replace(snapshot, ticks=snapshot.ticks + 1)):
        changed = {name for name, samples in _lists(later, memo) if samples is not first[name]}
        assert changed == ({"gpuagent_ticks_total"} if later.ticks != snapshot.ticks else set())


def test_it_keeps_nothing_of_what_is_gone() -> None:
    """EXP-03: families that no longer are there are forgotten at the second look without them."""
    memo = SampleCache()
    _lists(full_snapshot(), memo)
    for _ in range(2):
        _lists(None, memo)

    kept = {name: found.samples for name, found in (memo._last | memo._found).items() if found.samples}
    assert set(kept) == {name for name, _ in _lists(None, SampleCache())}


def _lists(snapshot: Snapshot | None, memo: SampleCache) -> list[tuple[str, object]]:
    return [(family.name, samples) for family, samples in series(snapshot, NOW, memo=memo)]
