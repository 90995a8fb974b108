"""Ids of messages, by which a receiver tells a repeated delivery from news."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable

from gpuagent_alerts.alert import Alert

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def message_id(wall_seconds: float, random_bits: Callable[[int], int] = secrets.randbits) -> str:
    """`gpa_` and a ULID (https://github.com/ulid/spec): 48 bits of milliseconds, 80 random bits, in base 32."""
    milliseconds = min(max(int(wall_seconds * 1000), 0), 2**48 - 1)
    return _written(milliseconds << 80 | random_bits(80))


def id_of_news(receiver: str, group: str, alerts: Iterable[Alert]) -> str:
    """Return the id of a message that tells of beginnings and ends: the same whenever the same is told.

    It follows from the receiver, the group, and of each alert the labels, the beginning and whether it fires. So what
    is told once more, as the note that it was told is lost, can be recognized by the receiver.
    """
    what = sorted(f"{alert.fingerprint} {alert.status} {alert.starts_at:.3f}" for alert in alerts)
    text = "\xff".join((receiver, group, *what))
    return _written(int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:16]))


def _written(number: int) -> str:
    return "gpa_" + "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))
