"""What the agent may ask for, and the answer "no" with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

DEFAULT_WINDOW_SECONDS = 60.0
MIN_WINDOW_SECONDS = 0.2
MAX_WINDOW_SECONDS = 3600.0
DEFAULT_TOP = 10
MAX_TOP = 50
# Of the window, this part is for a leak to leave tensors behind, the rest for bounded caches to turn over:
# what was put into them in the first part has been pushed out of them by the end.
FIRST_GAP = 0.25


class Refused(Exception):
    """The app cannot or will not be looked into now; the text says why."""


class Context(Protocol):
    """What the client knows about its app."""

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
    """A census: two gaps between three looks, in seconds."""

    gaps: tuple[float, float]
    show_keys: bool
    top: int
    lines: bool = False
    """Also record which line allocated what is held, where that can be done."""

    @property
    def window_seconds(self) -> float:
        """From the first look to the last."""
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
