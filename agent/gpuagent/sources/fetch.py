"""One question over HTTP, bounded in time and size, and what is read from its answer.

No redirect is followed and no proxy of the environment is used.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import re
import socket
import threading
import time
from collections.abc import Collection, Iterator
from typing import Any
from urllib.parse import urlsplit

_SAMPLE = re.compile(rb"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{.*\})?[ \t]+([^ \t\n]+)", re.MULTILINE)
_MOST = 2**63 - 1


class BadAnswer(ValueError):
    """An answer of another form, and what was missing."""


def document(body: bytes) -> Any:  # noqa: ANN401  whatever JSON can hold
    """Return the JSON in a body. Raises BadAnswer."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise BadAnswer("the answer is not JSON") from None


def samples(body: bytes, names: Collection[str]) -> Iterator[tuple[str, float]]:
    """Yield the finite values of metrics by these names, whatever their labels."""
    wanted = {name.encode() for name in names}
    for line in body.splitlines():
        found = _SAMPLE.match(line)
        if found is None or found[1] not in wanted:
            continue
        try:
            value = float(found[2])
        except ValueError:
            continue
        if math.isfinite(value):
            yield found[1].decode(), value


def count(value: object) -> int | None:
    """Return a count or a size in bytes; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
        return None
    return int(value)


MAX_BYTES = 4 * 1024**2
TIMEOUT_SECONDS = 5.0


class FetchError(Exception):
    """No answer that can be used, and why. The URL is not repeated: it may hold a password."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


def fetch(url: str, timeout_seconds: float = TIMEOUT_SECONDS, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the body that a GET of the URL answers with status 200. The time is for all of it, however it trickles in.

    Raises:
        FetchError: there is none.
    """
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    deadline = time.monotonic() + timeout_seconds
    try:
        connection = kind(parts.hostname or "", parts.port, timeout=timeout_seconds)
    except ValueError as error:
        raise FetchError(str(error)) from None
    guard = threading.Timer(timeout_seconds, _hang_up, (connection,))
    guard.daemon = True
    try:
        connection.connect()
        guard.start()
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path or "/", headers={"Accept": "application/json, text/plain"})
        with connection.getresponse() as response:
            body = response.read(max_bytes + 1)
            status = response.status
    except (OSError, http.client.HTTPException) as error:
        late = time.monotonic() >= deadline or isinstance(error, TimeoutError)
        reason = "no answer in time" if late else getattr(error, "strerror", None) or type(error).__name__
        raise FetchError(reason) from None
    finally:
        guard.cancel()
        connection.close()
    if time.monotonic() >= deadline:  # what has arrived was cut off
        raise FetchError("no answer in time")
    if status != http.HTTPStatus.OK:
        raise FetchError(f"HTTP {status}", status)
    if len(body) > max_bytes:
        raise FetchError(f"the answer is larger than {max_bytes // 1024**2} MiB")
    return body


def _hang_up(connection: http.client.HTTPConnection) -> None:
    """Shut the connection down from the guard's thread, so that whoever is reading sees the end."""
    sock = connection.sock
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
