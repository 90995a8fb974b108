"""Lines on the wire: one JSON object each. A stranger writes them, so everything is bounded.

Protocol version 1; the golden lines that both sides are tested with are in `tests/golden/protocol`.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

MAX_LINE_BYTES = 64 * 1024
"""Of a client, with its line feed."""

Message = dict[str, Any]


class Malformed(ValueError):
    """A line that is no message, and why: it costs the connection."""


class LineBuffer:
    """Puts lines together from pieces of any size."""

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_line_bytes = max_line_bytes
        self._data = bytearray()
        self._searched = 0

    @property
    def pending_bytes(self) -> int:
        """What has come and was not taken yet."""
        return len(self._data)

    def feed(self, data: bytes | memoryview) -> None:
        """Take what has come."""
        self._data += data

    def take(self) -> bytes | None:
        """The next line without its line feed; None if it has not come whole.

        Raises:
            Malformed: it is too long, or already longer than any may be.
        """
        end = self._data.find(b"\n", self._searched, self._max_line_bytes)
        if end < 0:
            if len(self._data) >= self._max_line_bytes:
                raise Malformed("a line is too long")
            self._searched = len(self._data)
            return None
        line = bytes(self._data[:end])
        del self._data[: end + 1]  # cheap: CPython moves a start pointer
        self._searched = 0
        return line

    def clear(self) -> None:
        """Forget what is left, of a connection that has ended."""
        self._data.clear()
        self._searched = 0


def decode(line: bytes) -> Message:
    """The message in a line.

    Raises:
        Malformed: it is not a JSON object with a text `t`.
    """
    try:
        message = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise Malformed("a line is not JSON") from None
    if not isinstance(message, dict) or not isinstance(message.get("t"), str):
        raise Malformed("a line is no message")
    return message


def encode(message: Message) -> bytes:
    """A message as a line: compact and in ASCII."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def _refuse(_: str) -> NoReturn:
    """NaN and Infinity are not JSON, whatever Python says."""
    raise ValueError
