"""The answer: in words, and within what one line of the protocol may have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

Group = Mapping[str, object]
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
STEP = 1024
ORDERED = ("list", "collections.deque")
# What a single finding must come to before the allocator's own figure is called unexplained.
EXPLAINED_PART = 0.5
SMALL_BYTES = 1 << 20


def verdict(groups: Sequence[Group], window_seconds: float, grown: Mapping[str, int]) -> str:
    """One sentence about the holder that grows most, or that there is none."""
    growing = [group for group in groups if group["growing"]]
    explained = sum(int(str(group["growth_bytes"])) for group in growing)
    if growing:
        words = sentence(growing[0], window_seconds)
    else:
        words = f"nothing to blame: no tensor made in {window_seconds:g} s is kept by anything that goes on growing"
    for device, change in sorted(grown.items()):
        if change > SMALL_BYTES and explained < change * EXPLAINED_PART:
            words += f"; {device} grew by {size(change)}, more than Python objects explain"
    return words


def sentence(group: Group, window_seconds: float) -> str:
    """Return who holds how much, put there by which line, and what to do."""
    growth = f"+{size(int(str(group['growth_bytes'])))} in {window_seconds:g} s"
    place = f", {_added(group)} at {group['file']}:{group['line']} in `{group['function']}`" if group["file"] else ""
    others = group.get("others")
    if isinstance(others, Sequence) and others:
        place += f" (or {', '.join(str(other) for other in others)})"
    if group.get("allocated_file"):
        made = f"{group['allocated_file']}:{group['allocated_line']} in `{group['allocated_function']}`"
        place += f", allocated at {made}"
    name = group["container"] or group["path"]
    held = f"{growth} is held by `{name}`{_kind(group)}{place}" if name else f"{growth} is held by {group['path']}"
    remedy = f": {group['remedy']}" if group["remedy"] else ""
    why = str(group["remedy"]) if str(group["cause"]).startswith("outputs") else f"{group['cause']}{remedy}"
    taken = group.get("taken_out")
    if isinstance(taken, Sequence) and taken:
        why += f"; {taken[0]} takes out of it again: it may be a bounded cache that is filling"
    return f"{held}; {why}"


def _kind(group: Group) -> str:
    if not group["kind"]:
        return ""
    length = group["container_length"]
    return f" ({group['kind']}, {length} items)" if length is not None else f" ({group['kind']})"


def _added(group: Group) -> str:
    if group["how"] == "added":
        return "appended" if group["kind"] in ORDERED else "stored"
    return {"carried": "assigned", "assigned": "assigned", "passed on": "passed on"}.get(
        str(group["how"]), "by the code"
    )


def size(number: int) -> str:
    """1.9 GiB."""
    value = float(number)
    for unit in UNITS:
        if abs(value) < STEP or unit == UNITS[-1]:
            return f"{value:.0f} {unit}" if unit == UNITS[0] else f"{value:.1f} {unit}"
        value /= STEP
    return f"{number} B"


MAX_BYTES = 60 << 10
CUT = "the answer was cut to its size limit"


def bounded(result: dict[str, object]) -> dict[str, object]:
    """Return the same, with the least important groups and lines left out until it fits."""
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
