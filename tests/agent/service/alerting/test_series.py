"""The series that rules see, evaluation after evaluation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuagent.core.metrics.series import series
from gpuagent.core.snapshot import Snapshot
from gpuagent_alerts.messages.snapshot_inputs import RuleSeries
from gpuagent_alerts.promql.series import SeriesIndex
from tests.fakes.snapshots import full_snapshot, snapshots

NOW = 100.0
USED = frozenset({"gpuagent_process_memory_used_bytes"})
BUSY = frozenset({"gpuagent_gpu_utilization_ratio", "gpuagent_process_memory_used_bytes"})
Names = frozenset[str] | None


def look(rules: RuleSeries, snapshot: Snapshot, names: Names) -> SeriesIndex:
    """At a tick."""
    return rules.index(snapshot, NOW, names, alerting=None, preallocates=(), further=())


def told(index: SeriesIndex) -> dict[str, list[tuple[str, dict[str, str], float]]]:
    """All that an index has."""
    return {name: list(index.elements(name)) for name in index.names()}


@pytest.mark.slow
@given(looks=st.lists(st.tuples(snapshots() | st.just(full_snapshot()), st.sampled_from([None, USED, BUSY]))))
@settings(max_examples=10)
def test_it_changes_nothing(looks: list[tuple[Snapshot, Names]]) -> None:
    """EXP-05: whatever was seen before, rules see this tick's series and no others."""
    rules = RuleSeries("")
    for snapshot, names in looks:
        assert told(look(rules, snapshot, names)) == told(SeriesIndex.of(series(snapshot, NOW, only=names)))


def test_what_has_not_changed_is_the_same_object() -> None:
    """EXP-08: also where groups that read other metrics were evaluated in between."""
    rules, snapshot = RuleSeries(""), full_snapshot()
    (name,) = USED
    first = look(rules, snapshot, USED).elements(name)
    other = look(rules, snapshot, BUSY).elements(name)
    later = replace(snapshot, ticks=snapshot.ticks + 1)

    assert first
    assert look(rules, later, USED).elements(name) is first
    assert look(rules, later, BUSY).elements(name) is other


def test_what_is_kept_is_bounded() -> None:
    """EXP-01: a reload brings other rules, and many reloads bring many."""
    rules, snapshot = RuleSeries(""), full_snapshot()
    for number in range(100):
        look(rules, snapshot, frozenset({f"gpuagent_number_{number}"}))

    assert len(rules._kept) <= 8
