"""A concurrency limit that is fair between peers, and between the users that one peer asks for.

Whoever floods it waits behind themselves: turns go round the peers, and within a peer round the users, and a full queue
gives up what the busiest peer has sent last. So the work is bounded, and nobody's flood shuts anybody else out.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

_Waiter = asyncio.Future[None]
_Users = OrderedDict[str, deque[_Waiter]]


class Overloaded(Exception):
    """More wait for a turn than will get one."""


class FairTurns:
    """Hands out turns, at most `at_once` at a time.

    Args:
        at_once: Turns that are taken at the same time.
        waiting_per_peer: The most that wait of one peer.
        waiting: The most that wait in all.
    """

    def __init__(self, *, at_once: int, waiting_per_peer: int, waiting: int) -> None:
        self._free = at_once
        self._per_peer = waiting_per_peer
        self._in_all = waiting
        self._queue: OrderedDict[str, _Users] = OrderedDict()

    @asynccontextmanager
    async def turn(self, peer: str, user: str) -> AsyncIterator[None]:
        """Wait for a turn, and have it inside the `with` block. Raises Overloaded."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(peer, user)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, peer: str, user: str) -> None:
        self._make_room(peer, user)
        waiter: _Waiter = asyncio.get_running_loop().create_future()
        self._queue.setdefault(peer, OrderedDict()).setdefault(user, deque()).append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                self._remove(peer, user, waiter)
            elif waiter.exception() is None:  # the turn came and is not wanted any more
                self._pass_on()
            raise

    def _make_room(self, peer: str, user: str) -> None:
        """Give up one that waits, if there is no room for this one. Raises Overloaded where this one has to go."""
        own = _count(self._queue.get(peer, {}))
        if own >= self._per_peer:
            busiest = peer
        elif sum(map(_count, self._queue.values())) >= self._in_all:
            busiest = max(self._queue, key=lambda each: _count(self._queue[each]))
            if _count(self._queue[busiest]) <= own + 1:
                busiest = peer
        else:
            return
        users: _Users = self._queue.get(busiest, OrderedDict())
        greediest = max(users, key=lambda each: len(users[each]), default=None)
        if greediest is None or (busiest == peer and len(users[greediest]) <= len(users.get(user, ())) + 1):
            raise Overloaded
        evicted = users[greediest][-1]
        self._remove(busiest, greediest, evicted)
        if not evicted.done():
            evicted.set_exception(Overloaded())

    def _pass_on(self) -> None:
        """Give the turn that has ended to the next one: of the next peer, for its next user."""
        while self._queue:
            peer = next(iter(self._queue))
            user = next(iter(self._queue[peer]))
            waiter = self._queue[peer][user][0]
            self._queue.move_to_end(peer)
            self._queue[peer].move_to_end(user)
            self._remove(peer, user, waiter)
            if not waiter.done():  # done: cancelled a moment ago
                waiter.set_result(None)
                return
        self._free += 1

    def _remove(self, peer: str, user: str, waiter: _Waiter) -> None:
        """Take one out of the queue, if it is still there."""
        users = self._queue.get(peer, OrderedDict())
        if waiter not in users.get(user, ()):
            return
        users[user].remove(waiter)
        if not users[user]:
            del users[user]
        if not users:
            del self._queue[peer]


def _count(users: Mapping[str, deque[_Waiter]]) -> int:
    return sum(map(len, users.values()))


def peer_group(address: str) -> str:
    """Return what stands for a client's address where turns are shared out.

    One machine has all of loopback, and one subscriber a whole /64 of IPv6 (RFC 6177).
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped:
        found = found.ipv4_mapped
    if found.is_loopback:
        return "loopback"
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((found, 64), strict=False))
    return str(found)
