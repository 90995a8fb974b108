"""Frames for the socket of apps: right ones, wrong ones, and everything in between, by a seeded chance."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

from tests.fakes.embedded import hello, stats

CORPUS = Path(__file__).parents[1] / "data" / "frames"
"""One frame to a file: what has ever been of interest, and where the changes begin."""
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, 0.5, -0.0, 1e308, float("nan"),
    float("inf"), "", "x", "x" * 5000, "\0", "\x1b[2J", "\ud800", "\u202e", [], [[]], {}, {"a": {"b": []}},
)  # fmt: skip
_KINDS = ("hello", "stats", "res", "event", "cmd", "", "hello ", "HELLO", "nonsense")
_DEEP = b"[" * 3000 + b"]" * 3000 + b"\n"


@cache
def corpus() -> tuple[bytes, ...]:
    """The frames that are kept."""
    kept = [path.read_bytes() for path in sorted(CORPUS.iterdir())]
    return (*kept, *(json.dumps(frame).encode() + b"\n" for frame in (hello(), stats())))


def any_frame(chance: random.Random) -> bytes:
    """One frame; most of them are nearly right, since those get furthest."""
    kind = chance.random()
    if kind < 0.5:
        return _changed_bytes(chance.choice(corpus()), chance)
    if kind < 0.95:
        return _changed_values(chance)
    if kind < 0.97:
        return _DEEP
    return chance.randbytes(chance.randint(0, 300)) + chance.choice((b"\n", b""))


def _changed_bytes(frame: bytes, chance: random.Random) -> bytes:
    data = bytearray(frame)
    for _ in range(chance.randint(0, 4)):
        at = chance.randrange(len(data) + 1)
        what = chance.random()
        if what < 0.3:
            data[at:at] = chance.randbytes(chance.randint(1, 4))
        elif what < 0.6:
            del data[at : at + chance.randint(1, 8)]
        elif what < 0.8 and at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        else:
            data[at:at] = data[: chance.randint(0, 64)]
    return bytes(data)


def _changed_values(chance: random.Random) -> bytes:
    frame: dict[str, Any] = chance.choice(
        (hello(), stats({"uuid": "GPU-0", "index": 0, "allocated_bytes": 1}), {"t": "event"})
    )
    for _ in range(chance.randint(1, 3)):
        key = chance.choice((*frame, "v", "pid", "dev", "caps", "fields", "id", "declared", "r", "x" * 40))
        frame[key] = chance.choice(_KINDS) if key == "t" else chance.choice(_VALUES)
    if chance.random() < 0.1 and isinstance(frame.get("dev"), list):
        frame["dev"] = frame["dev"] * chance.randint(2, 200)
    return json.dumps(frame, ensure_ascii=chance.random() < 0.8).encode("utf-8", "surrogatepass") + b"\n"
