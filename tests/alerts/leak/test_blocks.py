"""The store of blocks: what it keeps, at what size, and a gap of any length."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuagent_alerts.leak.blocks import EMPTY, LEVELS, RECENT, RING, SLOT_SECONDS, SLOTS, BlockStore, to_pages


def contents(store: BlockStore) -> object:
    """Everything in it."""
    return (
        [list(store.ring(level)) for level in range(store.levels)],
        [list(store.highs_of(level)) for level in range(store.levels)],
        store.recent_low,
        store.base_count,
    )


@given(st.lists(st.one_of(st.integers(1, 10**6), st.just(EMPTY)), max_size=300), st.integers(0, 5000))
@settings(max_examples=40)
def test_a_gap_at_once_is_a_gap_one_by_one(values: list[int], gap: int) -> None:
    """LEAK-03: so many empty blocks in one step are the same as one after another."""
    at_once, one_by_one = BlockStore(), BlockStore()
    for store in (at_once, one_by_one):
        for value in values:
            store.push(value)
    at_once.push_empty(gap)
    for _ in range(gap):
        one_by_one.push(EMPTY)

    assert contents(at_once) == contents(one_by_one)
    for store in (at_once, one_by_one):  # and in what comes next, which takes up what waits for its second
        for value in range(1, 40):
            store.push(value)
    assert contents(at_once) == contents(one_by_one)


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=600))
@settings(max_examples=40)
def test_a_level_holds_the_lowest_of_two_blocks_below(values: list[int]) -> None:
    """The ring of level l is the minima of the last 32 groups of 2**l values."""
    store = BlockStore()
    for value in values:
        store.push(value)
    for level in range(LEVELS):
        size = 2**level
        groups = [min(values[k : k + size]) for k in range(0, len(values) - size + 1, size)]
        assert (level < store.levels, store.count(level)) == (bool(groups), len(groups[-RING:]))
        if groups:
            assert list(store.ring(level)) == groups[-RING:]
            assert list(store.ring(level, 5)) == groups[-5:]
            assert store.newest(level) == groups[-1]
    assert store.recent_low == min(values[-RECENT:])


def test_what_falls_out_is_remembered_as_a_high() -> None:
    """LEAK-02: the highest of 6 hours outlives the ring, for 42 to 48 hours."""
    store = BlockStore()
    store.push(70_000)
    for _ in range(RING):
        store.push(10)
    assert max(store.highs_of(0)) == 70_000
    for number in range(1, SLOTS):
        store.enter_slot(number * SLOT_SECONDS)
        assert max(store.highs_of(0)) == 70_000
    store.enter_slot(SLOTS * SLOT_SECONDS)
    assert max(store.highs_of(0)) == 0


def test_a_gap_of_years_is_bounded_work() -> None:
    """Months of suspend cost no more than a few hundred steps, and leave nothing but empty blocks."""
    store = BlockStore()
    for value in range(1, 100):
        store.push(value)
    store.push_empty(10**9)

    assert store.levels == LEVELS
    assert all(set(store.ring(level)) == {EMPTY} for level in range(LEVELS))


def test_pages() -> None:
    """Whole pages, never more than fit."""
    assert (to_pages(4095), to_pages(4096), to_pages(2.0**50)) == (0, 1, EMPTY - 1)
