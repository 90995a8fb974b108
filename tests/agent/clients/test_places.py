"""Whose place goes when there are not enough."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.clients.admission import ConnectionSlots, NoFreeSlot

MOST = 6
NOBODY: frozenset[int] = frozenset()


def places(*accounts: str) -> ConnectionSlots:
    """Process 1 of the first account, process 2 of the second ..., in this order."""
    made = ConnectionSlots()
    for pid, account in enumerate(accounts, 1):
        made.add(pid, account)
    return made


def leaving(
    made: ConnectionSlots, account: str, on_gpu: frozenset[int] = NOBODY, *, pid: int = 99, most: int = MOST
) -> int | None:
    """Who goes when process 99 of an account says hello."""
    return made.newest_of_largest(pid, account, on_gpu, most=most, most_of_account=4)


def test_while_there_is_room_nobody_goes() -> None:
    """Not for an app, and not for a connection that waits."""
    made = places("a", "a", "b")
    assert leaving(made, "c") is None
    assert made.oldest_of_largest(4, NOBODY) is None


def test_the_largest_account_gives_up_its_newest_app() -> None:
    """Apps that have been served for longer are served on."""
    assert leaving(places("a", "b", "a", "b", "a", "b"), "c") == 5
    assert leaving(places("b", "b", "a", "a", "a", "a"), "c") == 6


def test_an_account_does_not_take_a_place_from_one_that_would_then_have_fewer() -> None:
    """Else two accounts would take the same place from each other for ever."""
    for accounts in (("a", "a", "a", "c", "c", "c"), ("a", "a", "a", "b", "c", "c")):
        with pytest.raises(NoFreeSlot, match="there are 6 clients already"):
            leaving(places(*accounts), "c")
    assert leaving(places("a", "a", "a", "b", "b", "c"), "c") == 3


def test_an_account_has_a_limit_of_its_own() -> None:
    """Also while there is room; processes on a GPU are not counted."""
    with pytest.raises(NoFreeSlot, match="a has 4 connections already"):
        leaving(places("a", "a", "a", "a"), "a", most=100)
    assert leaving(places("a", "a", "a", "a"), "a", frozenset({2}), most=100) is None


def test_a_process_on_a_gpu_always_gets_a_place_and_keeps_it() -> None:
    """Of its own account, of another, as the newest or the oldest; only GPU processes alone can fill the house."""
    made = places("a", "b", "c", "d", "e", "f")
    assert leaving(made, "f", frozenset({99})) == 1
    assert leaving(made, "f", frozenset({99, 1, 2})) == 3
    with pytest.raises(NoFreeSlot):
        leaving(made, "f", frozenset({99, 1, 2, 3, 4, 5, 6}))
    assert leaving(places("a", "a", "a", "a"), "a", frozenset({99}), most=100) is None


def test_of_those_that_wait_the_oldest_of_the_largest_account_goes() -> None:
    """It has had the most time to say hello. A process on a GPU goes only when there is nobody else."""
    made = places("b", "a", "c", "a")
    assert made.oldest_of_largest(4, NOBODY) == 2
    assert made.oldest_of_largest(4, frozenset({2})) == 1
    assert made.oldest_of_largest(4, frozenset({1, 2, 3, 4})) == 1


ARRIVALS = st.lists(st.tuples(st.integers(1, 60), st.sampled_from("abcde")), max_size=80)


@given(ARRIVALS, st.sets(st.integers(1, 60), max_size=MOST - 1))
def test_whatever_others_do_an_account_without_a_place_gets_one(arrivals: list[tuple[int, str]], gpu: set[int]) -> None:
    """With fewer accounts than places left by GPU processes; and no process on a GPU ever loses its place."""
    on_gpu, most = frozenset(gpu), MOST + len(gpu)
    made = ConnectionSlots()
    owners: dict[int, str] = {}
    for pid, account in arrivals:
        if pid in made:
            continue
        try:
            gone = made.newest_of_largest(pid, account, on_gpu, most=most, most_of_account=4)
        except NoFreeSlot:
            assert pid not in on_gpu
            continue
        if gone is not None:
            assert gone not in on_gpu
            made.remove(gone)
            del owners[gone]
        made.add(pid, account)
        owners[pid] = account
        assert len(made) == len(owners) <= most
    gone = made.newest_of_largest(99, "a newcomer", on_gpu, most=most, most_of_account=4)
    if gone is not None:
        assert list(owners.values()).count(owners[gone]) >= 2
