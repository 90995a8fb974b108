"""Keeps an answer within what one line of the protocol may have."""

from __future__ import annotations

import json

MAX_BYTES = 60 << 10
CUT = "the answer was cut to its size limit"


def bounded(result: dict[str, object]) -> dict[str, object]:
    """The same, with the least important groups and lines left out until it fits."""
    while len(json.dumps(result).encode()) > MAX_BYTES:
        lists = [entry for entry in (result.get("groups"), result.get("lines"), result.get("notes")) if entry]
        longest = max(lists, key=lambda entry: len(json.dumps(entry)), default=None)
        if not isinstance(longest, list):
            return {"ok": False, "err": "the answer is larger than a line of the protocol may be"}
        longest.pop()
        notes = result.setdefault("notes", [])
        if isinstance(notes, list) and CUT not in notes:
            notes.insert(0, CUT)
    return result
