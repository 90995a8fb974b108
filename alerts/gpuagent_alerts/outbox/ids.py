"""Names of messages: unique, and in the order in which they were made."""

from __future__ import annotations

import secrets
from collections.abc import Callable

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def message_id(wall_seconds: float, random_bits: Callable[[int], int] = secrets.randbits) -> str:
    """`gpa_` and a ULID (https://github.com/ulid/spec): 48 bits of milliseconds, 80 random bits, in base 32."""
    milliseconds = min(max(int(wall_seconds * 1000), 0), 2**48 - 1)
    number = milliseconds << 80 | random_bits(80)
    return "gpa_" + "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))
