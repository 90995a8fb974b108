"""Check basic authentication (RFC 7617) against bcrypt hashes, within bounds on the work that are fair between peers.

Whoever floods it waits behind themselves: turns go round the peers, and within a peer round the users, and a full queue
gives up what the busiest peer has sent last. So the work is bounded, and nobody's flood shuts anybody else out.

One check takes 50 ms to seconds by design. So a password that was right is remembered and needs neither bcrypt nor a
turn, few checks run at a time, and turns are shared out between peers. A refusal takes the same work whether or not
there is such a user, and whichever cost their hash has.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import ipaddress
import os
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gpuagent_exporters.http.middleware import error_response

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


__all__ = ["BasicAuth", "Overloaded", "PasswordCheck"]

_AT_ONCE = 2
_MAX_WAITING_OF_ONE_PEER = 8
_MAX_WAITING = 24
_MAX_REMEMBERED = 64
_MAX_PASSWORD_BYTES = 72
"""bcrypt knows no more of a password; `htpasswd -B` cuts it off there too."""
_LOWEST_COST = 10
"""The cost of the work for a refusal where there are no users at all."""
_NOBODY = "$2b${cost:02}$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW"
"""A hash that is not compared for its result, only for its time."""


def _with_bcrypt(password: bytes, hashed: bytes) -> bool:
    import bcrypt  # noqa: PLC0415  half a MiB that a node without passwords does not need

    return bcrypt.checkpw(password, hashed)


class PasswordCheck:
    """Checks passwords of `users`, a callable so that a reload is seen at once."""

    def __init__(
        self,
        users: Callable[[], Mapping[str, str]],
        check: Callable[[bytes, bytes], bool] = _with_bcrypt,
    ) -> None:
        self._users = users
        self._check = check
        self._key = os.urandom(32)
        self._remembered: OrderedDict[bytes, None] = OrderedDict()
        self._remembered_of: Mapping[str, str] = {}
        self._turns = FairTurns(at_once=_AT_ONCE, waiting_per_peer=_MAX_WAITING_OF_ONE_PEER, waiting=_MAX_WAITING)

    async def allows(self, user: str, password: bytes, peer: str = "") -> bool:
        """Return whether this is the user's password. `peer` is the client's address. Raises Overloaded."""
        password = password[:_MAX_PASSWORD_BYTES]
        users = self._users()
        self._forget_changed(users)
        known = users.get(user)
        highest = max(map(_cost, users.values()), default=_LOWEST_COST)
        mark = self._mark(user, known or _NOBODY, password)
        if self._remembers(mark):
            return True
        async with self._turns.turn(peer_group(peer), user):
            if self._remembers(mark):  # another request with the same password had its turn before
                return True
            good = await asyncio.to_thread(self._matches, password, known, highest)
        if good:
            self._remember(mark, user, known)
        return good

    def _matches(self, password: bytes, known: str | None, highest: int) -> bool:
        """Compare with bcrypt, in a thread. A refusal takes as much work as one comparison at cost `highest`.

        Work doubles with each step of the cost (bcrypt has 2^cost rounds), so 2^c and then 2^c + ... + 2^(highest-1)
        make 2^highest.
        """
        if known is None:
            self._compare(password, _NOBODY.format(cost=highest))
            return False
        if self._compare(password, known):
            return True
        for cost in range(_cost(known), highest):
            self._compare(password, _NOBODY.format(cost=cost))
        return False

    def _compare(self, password: bytes, hashed: str) -> bool:
        try:
            return self._check(password, hashed.encode())
        except ValueError:  # a NUL in the password, in older versions: there is none in any that was ever hashed
            return False

    def _remembers(self, mark: bytes) -> bool:
        if mark not in self._remembered:
            return False
        self._remembered.move_to_end(mark)
        return True

    def _remember(self, mark: bytes, user: str, known: str | None) -> None:
        if self._users().get(user) != known:  # the file has changed meanwhile
            return
        self._remembered[mark] = None
        if len(self._remembered) > _MAX_REMEMBERED:
            self._remembered.popitem(last=False)

    def _forget_changed(self, users: Mapping[str, str]) -> None:
        """Forget all passwords when users or hashes are others than before."""
        if users != self._remembered_of:
            self._remembered.clear()
            self._remembered_of = dict(users)

    def _mark(self, user: str, hashed: str, password: bytes) -> bytes:
        """Return what is remembered of a password that was right: nothing that says what it was.

        Looking it up is no comparison that leaks: without the key nobody can choose how two marks differ.
        """
        parts = (user.encode(), hashed.encode(), password)
        digests = b"".join(hashlib.sha256(part).digest() for part in parts)
        return hashlib.blake2b(digests, key=self._key).digest()


def _cost(hashed: str) -> int:
    return int(hashed.split("$")[2])


class BasicAuth:
    """Lets a request through to `app` with a right password; without users, all of them.

    A request without credentials is refused at once: that it names no user tells of none.
    """

    def __init__(
        self, app: ASGIApp, users: Callable[[], Mapping[str, str]], passwords: PasswordCheck | None = None
    ) -> None:
        self._app = app
        self._users = users
        self._passwords = passwords or PasswordCheck(users)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._users():
            await self._app(scope, receive, send)
            return
        credentials = _credentials(Headers(scope=scope).get("authorization", ""))
        try:
            if credentials is not None and await self._passwords.allows(*credentials, _peer(scope)):
                await self._app(scope, receive, send)
                return
        except Overloaded:
            message = "Too many passwords are being checked. Try again in a moment."
            response = error_response(
                HTTPStatus.SERVICE_UNAVAILABLE, message, {"retry-after": "1", "connection": "close"}
            )
        else:
            message = "A user and a password are needed: see basic_auth_users in the web configuration."
            challenge = {"www-authenticate": 'Basic realm="gpuagent", charset="UTF-8"'}
            response = error_response(HTTPStatus.UNAUTHORIZED, message, challenge)
        await response(scope, receive, send)


def _peer(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _credentials(header: str) -> tuple[str, bytes] | None:
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (user.decode("utf-8", errors="replace"), password) if colon else None
