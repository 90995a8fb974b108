"""Protocol version 1: one JSON object per line over a Unix stream socket, which the app opens towards the agent.

Both sides bound what they read, ignore what they do not know, and close the connection of a peer whose line is no
message. The golden lines that both are tested with are in `tests/golden/protocol`.
"""

from __future__ import annotations

import json
from typing import Any

VERSION = 1
MAX_SENT_BYTES = 64 * 1024
"""A longer line costs the client its connection to the agent."""
MAX_RECEIVED_BYTES = 1024 * 1024

Message = dict[str, Any]


class Malformed(ValueError):
    """What came is no message of this protocol."""


class TooLong(ValueError):
    """A message does not fit into a line."""


def encode(message: Message) -> bytes:
    """A message as a line.

    Raises:
        TooLong: it is beyond MAX_SENT_BYTES.
        TypeError, ValueError: it holds what JSON cannot.
    """
    line = json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"
    if len(line) > MAX_SENT_BYTES:
        raise TooLong(f"{len(line)} bytes in one message")
    return line


def decode(line: bytes) -> Message:
    """The message in a line.

    Raises:
        Malformed: there is none.
    """
    try:
        message = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:  # a thousand brackets are a RecursionError
        raise Malformed("not JSON") from error
    if not isinstance(message, dict) or not isinstance(message.get("t"), str):
        raise Malformed("no object with a text t")
    return message


def _refuse_constant(name: str) -> None:
    """NaN and the infinities are Python's own addition to JSON."""
    raise ValueError(name)


class LineReader:
    """Puts lines together from pieces of any size."""

    def __init__(self, max_bytes: int = MAX_RECEIVED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._begun = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are complete now.

        Raises:
            Malformed: a line is no message, or too long. The reader is of no further use.
        """
        *ended, rest = data.split(b"\n")
        messages = []
        for piece in ended:
            self._append(piece)
            messages.append(decode(bytes(self._begun)))
            self._begun.clear()
        self._append(rest)
        return messages

    def _append(self, piece: bytes) -> None:
        if len(self._begun) + len(piece) >= self._max_bytes:  # the line feed counts too
            raise Malformed(f"a line of more than {self._max_bytes} bytes")
        self._begun += piece
