"""Colors and marks. A color belongs to a process, the same in its row and in its GPU's bar; red is for danger alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from rich.text import Text

from gpuagent.core.palette import ON_DARK, ColorAssignment, Drawn

Document = dict[str, Any]

SEVERITY_STYLES = {
    "critical": "bold #ffffff on #b3261e",
    "warning": "bold #1a1a1a on #e0a030",
    "info": "bold #10202a on #5fa8c8",
    "ok": "#6fbf73",
    "simulated": "bold #1a1a1a on #e0a030",
}
VERDICT_STYLES = {"leaking": "bold #ff6b5e", "growing": "#e0a030", "learning": "#808a94"}
TEXT_STYLES = {"critical": "bold #ff6b5e", "warning": "#e0a030", "info": "#5fa8c8"}
_PLAIN_MARKS = ("█", "▓", "▒")
SWATCH = "▌"


class _BarMarks(NamedTuple):
    rest: str = "▒"
    host: str = "▚"
    free: str = "·"
    curve_style: str = "#a4a9ae"


BAR_MARKS = _BarMarks()


_ANSI = {"1;31": "1;38;2;255;107;94", "33": "38;2;224;160;48", "36": "38;2;95;168;200", "32": "38;2;111;191;115"}
"""The colors of printed screens, as this one has them: a terminal's own red may be pink."""


def from_printed(line: str) -> Text:
    """Return a line of a printed screen in the colors of this one."""
    for theirs, ours in _ANSI.items():
        line = line.replace(f"\x1b[{theirs}m", f"\x1b[{ours}m")
    return Text.from_ansi(line, end="", no_wrap=True)


class ProcessColors:
    """Gives each process a color for as long as it is there; neighbors in a bar have different ones."""

    rest = "#8a8a8a"
    free = "#4a4a4a"

    def __init__(self, *, plain: bool = False) -> None:
        """`plain`: there is no color, so the pieces of a bar differ by their marks."""
        self.plain = plain
        self._assignment = ColorAssignment()
        self._given: Mapping[Drawn, int] = {}

    def update(self, processes: Sequence[Document]) -> None:
        """Give colors to those that are new, and forget those that are gone."""
        bars: dict[str, dict[Drawn, None]] = {}
        for process in processes:
            bars.setdefault(process["gpu_uuid"], {})[process["pid"], None] = None
        shown = [list(bar) for bar in bars.values()]
        self._given = self._assignment.assign(shown, frozenset(chain.from_iterable(shown)))

    def style_of(self, process: Document) -> str:
        """Return the style of a process."""
        return ON_DARK[self._given.get((process["pid"], None), 0)]

    def mark_of(self, number: int) -> str:
        """Return what its piece of a bar is made of; `number` is its place there."""
        return _PLAIN_MARKS[number % len(_PLAIN_MARKS)] if self.plain else "█"
