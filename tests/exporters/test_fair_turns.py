"""Turns that are shared out between peers and their users."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuagent_exporters.http.auth import FairTurns, Overloaded, peer_group
from tests.exporters.wire import run

FLOOD, OTHER = "192.0.2.1", "192.0.2.2"


class Room:
    """Asks for turns in tasks, notes the order in which they come, and ends them one by one."""

    def __init__(self, turns: FairTurns) -> None:
        self.order: list[tuple[str, str]] = []
        self.most_at_once = 0
        self._at_once = 0
        self._turns = turns
        self._ends: list[asyncio.Event] = []

    async def ask(self, peer: str, user: str = "") -> None:
        async with self._turns.turn(peer, user):
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            self.order.append((peer, user))
            self._ends.append(end := asyncio.Event())
            try:
                await end.wait()
            finally:
                self._at_once -= 1

    def end_all(self) -> None:
        """End the turns that are being had."""
        for end in self._ends:
            end.set()
        self._ends.clear()


async def settled() -> None:
    """Let every task go as far as it can."""
    for _ in range(6):
        await asyncio.sleep(0)


async def all_turns(room: Room, tasks: list[asyncio.Task[None]]) -> list[BaseException | None]:
    """End turn after turn until nobody waits."""
    while not all(task.done() for task in tasks):
        room.end_all()
        await settled()
    return await asyncio.gather(*tasks, return_exceptions=True)


def played(play: Callable[[Room, Callable[..., asyncio.Task[None]]], Awaitable[None]], **limits: int) -> Room:
    """Play a story of asking; everything that is asked for comes to an end."""
    bounds = {"at_once": 1, "waiting_per_peer": 4, "waiting": 8} | limits

    async def test() -> Room:
        room = Room(FairTurns(**bounds))
        tasks: list[asyncio.Task[None]] = []

        def ask(peer: str, user: str = "") -> asyncio.Task[None]:
            tasks.append(asyncio.create_task(room.ask(peer, user)))
            return tasks[-1]

        await play(room, ask)
        await all_turns(room, tasks)
        return room

    return run(test())


def test_another_peer_is_next() -> None:
    """However many of one peer wait, a newcomer's first one is behind one of them, not behind all."""

    async def play(_: Room, ask: Callable[..., asyncio.Task[None]]) -> None:
        for _each in range(5):
            ask(FLOOD)
        await settled()
        ask(OTHER)
        await settled()

    assert played(play).order.index((OTHER, "")) == 2


def test_another_user_of_the_same_peer_is_next() -> None:
    """Behind one address, guesses at one user do not keep another user waiting behind all of them."""

    async def play(_: Room, ask: Callable[..., asyncio.Task[None]]) -> None:
        for _each in range(5):
            ask(FLOOD, "root")
        await settled()
        ask(FLOOD, "prometheus")
        await settled()

    assert played(play).order.index((FLOOD, "prometheus")) == 2


def test_a_full_queue_gives_up_the_flood() -> None:
    """Where all places are taken, the peer and the user with the most of them lose their last one to a newcomer."""
    evicted: list[list[bool]] = []

    async def play(_: Room, ask: Callable[..., asyncio.Task[None]]) -> None:
        flood = [ask(f"198.51.100.{peer}") for peer in (1, 2) for _each in range(5)]
        flood += [ask(FLOOD, "root") for _each in range(4)]
        await settled()
        newcomers = [ask(OTHER, "prometheus"), ask(FLOOD, "prometheus")]
        await settled()
        evicted.append([task.done() and task.exception() is not None for task in [*flood, *newcomers]])

    room = played(play, at_once=2, waiting_per_peer=4, waiting=12)

    assert evicted[0][-2:] == [False, False]
    assert {(OTHER, "prometheus"), (FLOOD, "prometheus")} <= set(room.order)


def test_a_flood_is_refused() -> None:
    """What one peer sends for one user beyond its places is refused at once."""

    async def play(_: Room, ask: Callable[..., asyncio.Task[None]]) -> None:
        tasks = [ask(FLOOD, "root") for _each in range(20)]
        await settled()
        assert [task.done() for task in tasks] == [False] * 5 + [True] * 15
        with pytest.raises(Overloaded):
            tasks[-1].result()

    assert len(played(play).order) == 5


def test_a_turn_that_is_not_wanted_any_more_goes_on() -> None:
    """Whoever is cancelled, while waiting or as the turn comes, leaves no turn behind that nobody has."""

    async def play(room: Room, ask: Callable[..., asyncio.Task[None]]) -> None:
        tasks = [ask(FLOOD, str(number)) for number in range(4)]
        await settled()
        tasks[1].cancel()
        room.end_all()
        tasks[2].cancel()
        await settled()
        tasks[0].cancel()
        await settled()

    assert played(play).order == [(FLOOD, "0"), (FLOOD, "3")]


@settings(max_examples=50)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("ask"), st.integers(0, 3), st.integers(0, 2)),
            st.tuples(st.just("cancel"), st.integers(0, 40), st.just(0)),
            st.tuples(st.sampled_from(["end", "go on"]), st.just(0), st.just(0)),
        ),
        max_size=60,
    ),
    at_once=st.integers(1, 3),
)
def test_every_story_ends_with_all_turns_free(steps: list[tuple[str, int, int]], at_once: int) -> None:
    """In any order of asking, ending and cancelling: never too many at once, everyone ends, no turn is lost."""

    async def test() -> None:
        turns = FairTurns(at_once=at_once, waiting_per_peer=3, waiting=6)
        room = Room(turns)
        tasks: list[asyncio.Task[None]] = []
        for step, number, user in steps:
            if step == "ask":
                tasks.append(asyncio.create_task(room.ask(str(number), str(user))))
            elif step == "cancel" and number < len(tasks):
                tasks[number].cancel()
            elif step == "end":
                room.end_all()
            else:
                await settled()
        outcomes = await all_turns(room, tasks)
        assert {type(each) for each in outcomes} <= {type(None), Overloaded, asyncio.CancelledError}
        last = [asyncio.create_task(room.ask("last")) for _ in range(at_once)]
        had = len(room.order)
        await settled()
        assert len(room.order) == had + at_once
        await all_turns(room, last)
        assert room.most_at_once <= at_once

    run(test())


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("127.0.0.1", "loopback"),
        ("127.9.9.9", "loopback"),
        ("::1", "loopback"),
        ("::ffff:127.0.0.2", "loopback"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_addresses_of_one_peer_are_one(address: str, group: str) -> None:
    """Who has many addresses, of loopback or of IPv6, is one peer."""
    assert peer_group(address) == group
