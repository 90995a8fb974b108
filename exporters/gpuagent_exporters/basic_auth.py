"""Basic authentication (RFC 7617) against bcrypt hashes, so dear that it has to be rationed.

One check takes 50 ms to seconds by design. So a password that was right is remembered, at most two
checks run at a time, few may wait, and a user who does not exist takes as long as one who does.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from http import HTTPStatus

import bcrypt
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gpuagent_exporters.guards import error_response

_AT_ONCE = 2
_MAX_WAITING = 8
_MAX_REMEMBERED = 64
_MAX_PASSWORD_BYTES = 72
"""bcrypt knows no more of a password; `htpasswd -B` cuts it off there too."""
_NOBODY = "$2b${cost}$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW"
"""A hash that is not compared for its result, only for its time."""


class Overloaded(Exception):
    """More passwords wait for their check than will be checked."""


class PasswordCheck:
    """Checks passwords of `users`, a callable so that a reload is seen at once."""

    def __init__(
        self,
        users: Callable[[], Mapping[str, str]],
        check: Callable[[bytes, bytes], bool] = bcrypt.checkpw,
    ) -> None:
        self._users = users
        self._check = check
        self._salt = os.urandom(32)
        self._remembered: OrderedDict[bytes, None] = OrderedDict()
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0

    async def allows(self, user: str, password: bytes) -> bool:
        """Whether this is the user's password. Raises Overloaded."""
        users = self._users()
        known = users.get(user)
        if known is None:
            cost = max((hashed.split("$")[2] for hashed in users.values()), default="10")
            await self._compare(password, _NOBODY.format(cost=cost))
            return False
        mark = self._mark(user, known, password)
        if mark in self._remembered:
            self._remembered.move_to_end(mark)
            return True
        good = await self._compare(password, known)
        if good:
            self._remembered[mark] = None
            if len(self._remembered) > _MAX_REMEMBERED:
                self._remembered.popitem(last=False)
        return good

    async def _compare(self, password: bytes, hashed: str) -> bool:
        if self._waiting >= _AT_ONCE + _MAX_WAITING:
            raise Overloaded
        self._waiting += 1
        try:
            async with self._turns:
                return await asyncio.to_thread(self._matches, password, hashed)
        finally:
            self._waiting -= 1

    def _matches(self, password: bytes, hashed: str) -> bool:
        try:
            return self._check(password[:_MAX_PASSWORD_BYTES], hashed.encode())
        except ValueError:  # a NUL in the password: there is none in any that was ever hashed
            return False

    def _mark(self, user: str, hashed: str, password: bytes) -> bytes:
        """What is remembered of a password that was right: nothing that says what it was."""
        parts = (user.encode(), hashed.encode(), password)
        digests = b"".join(hashlib.sha256(part).digest() for part in parts)
        return hashlib.blake2b(digests, key=self._salt).digest()


class BasicAuth:
    """Lets a request through to `app` with a right password; without users, all of them."""

    def __init__(self, app: ASGIApp, users: Callable[[], Mapping[str, str]]) -> None:
        self._app = app
        self._users = users
        self._passwords = PasswordCheck(users)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._users():
            await self._app(scope, receive, send)
            return
        credentials = _credentials(Headers(scope=scope).get("authorization", ""))
        try:
            if credentials is not None and await self._passwords.allows(*credentials):
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


def _credentials(header: str) -> tuple[str, bytes] | None:
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (user.decode("utf-8", errors="replace"), password) if colon else None
