"""What the agent may ask for, and the answer: in words, and within what one line of the protocol may hold."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from gpuagent_client.errors import Refused

DEFAULT_WINDOW_SECONDS = 60.0
MIN_WINDOW_SECONDS = 0.2
MAX_WINDOW_SECONDS = 3600.0
DEFAULT_TOP = 10
MAX_TOP = 50
# Of the window, this part is between the two looks; in the rest, what grew is watched whether it goes on.
FIRST_GAP = 0.6
MAX_PAUSE_SECONDS = 1.0


class Context(Protocol):
    """Facts that the client knows about its app."""

    @property
    def thread_id(self) -> int:
        """The client's own thread, whose frames hold nothing of the app's."""

    def requests_served(self) -> int | None:
        """Return the number of requests so far; None where nobody counts them."""

    def is_capturing(self) -> bool:
        """Return whether a CUDA graph is being captured: nothing may disturb that."""

    def wait(self, seconds: float) -> bool:
        """Wait; True as soon as the app is about to end, which ends the command."""


class CensusRequest(NamedTuple):
    """Arguments of a census: the seconds between the two looks, and those in which what grew is watched."""

    gaps: tuple[float, float]
    show_keys: bool
    top: int
    lines: bool = False
    """Also record which line allocated what is held, where that can be done."""
    max_pause_seconds: float = MAX_PAUSE_SECONDS
    """Longest pause of the app that a fork may be foretold to take."""

    @property
    def window_seconds(self) -> float:
        """Seconds from the first snapshot to the last."""
        return sum(self.gaps)


def census_request(args: Mapping[str, object], deadline_seconds: float, spare_seconds: float) -> CensusRequest:
    """Read the arguments from the wire.

    Raises:
        Refused: an argument is not what it should be, or the window does not fit into the deadline.
    """
    window = number(args, "window_seconds", DEFAULT_WINDOW_SECONDS, MIN_WINDOW_SECONDS, MAX_WINDOW_SECONDS)
    gaps = args.get("gaps", [window * FIRST_GAP, window * (1 - FIRST_GAP)])
    if not (isinstance(gaps, (list, tuple)) and len(gaps) == 2 and all(_is_number(gap) and gap >= 0 for gap in gaps)):
        raise Refused("gaps must be two numbers of seconds")
    top = int(number(args, "top", DEFAULT_TOP, 1, MAX_TOP))
    request = CensusRequest(
        (float(gaps[0]), float(gaps[1])),
        show_keys=args.get("show_keys") is True,
        top=top,
        lines=args.get("lines") is True,
        max_pause_seconds=number(args, "max_pause_seconds", MAX_PAUSE_SECONDS, 0.001, 60.0),
    )
    fits_into(request.window_seconds, deadline_seconds, spare_seconds)
    return request


def fits_into(window_seconds: float, deadline_seconds: float, spare_seconds: float) -> None:
    """Refuse a window that leaves no time to answer.

    Raises:
        Refused: it does not fit into the deadline.
    """
    if window_seconds + spare_seconds > deadline_seconds:
        raise Refused(
            f"a window of {window_seconds:g} s and {spare_seconds:g} s to look do not fit"
            f" into the deadline of {deadline_seconds:g} s"
        )


def number(args: Mapping[str, object], name: str, default: float, low: float, high: float) -> float:
    """Return a number from the wire, within its bounds.

    Raises:
        Refused: it is none, or outside.
    """
    value = args.get(name, default)
    if not _is_number(value) or not low <= value <= high:  # type: ignore[operator]
        raise Refused(f"{name} must be a number from {low:g} to {high:g}")
    return float(value)  # type: ignore[arg-type]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


WireGroup = Mapping[str, object]
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
STEP = 1024
ORDERED = ("list", "collections.deque")
# What a single finding must come to before the allocator's own figure is called unexplained.
EXPLAINED_PART = 0.5
SMALL_BYTES = 1 << 20


def verdict(groups: Sequence[WireGroup], window_seconds: float, grown: Mapping[str, int]) -> str:
    """Return a sentence about the holder that grows most, or that there is none."""
    growing = [group for group in groups if group["growing"]]
    explained = sum(int(str(group["growth_bytes"])) for group in growing)
    if growing:
        words = sentence(growing[0], f"{window_seconds:g} s")
    else:
        words = f"nothing to blame: no tensor made in {window_seconds:g} s is kept by anything that goes on growing"
    for device, change in sorted(grown.items()):
        if change > SMALL_BYTES and explained < change * EXPLAINED_PART:
            words += f"; {device} grew by {size(change)}, more than Python objects explain"
    return words


def sentence(group: WireGroup, span: str) -> str:
    """Return who holds how much, put there by which line, and what to do; `span` is in what it grew, such as `60 s`."""
    growth = f"+{size(int(str(group['growth_bytes'])))} in {span}"
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


def _kind(group: WireGroup) -> str:
    if not group["kind"]:
        return ""
    length = group["container_length"]
    return f" ({group['kind']}, {length} items)" if length is not None else f" ({group['kind']})"


def _added(group: WireGroup) -> str:
    if group["how"] == "added":
        return "appended" if group["kind"] in ORDERED else "stored"
    return ADDED.get(str(group["how"]), "by the code")


ADDED = {
    "carried": "assigned",
    "grown": "enlarged",
    "assigned": "assigned",
    "passed on": "passed on",
    "called": "passed on",
}


def size(number: int) -> str:
    """Return bytes as text, such as 1.9 GiB."""
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
