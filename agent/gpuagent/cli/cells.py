"""Text in terminal cells: what a hostile process name may do to a screen, it may not do to ours."""

from __future__ import annotations

import os
import sys
import unicodedata

from rich.cells import cell_len, set_cell_size

BAR_FULL, BAR_EMPTY = "█", "░"
_SPARKS = "▁▂▃▄▅▆▇█"
_ASCII_SPARKS = "_.-=+*#@"
_STYLES = {"critical": "1;31", "warning": "33", "info": "36", "ok": "32", "bold": "1", "dim": "2"}


def clean(text: object) -> str:
    """Printable text on one line: no control or formatting characters (escapes, overrides of direction)."""
    return "".join(character if unicodedata.category(character)[0] != "C" else "?" for character in str(text))


def fit(text: object, width: int, *, right: bool = False) -> str:
    """Exactly `width` cells; what is too long ends in `…`.

    >>> fit("whisper", 4), fit("ab", 4), fit("ab", 4, right=True)
    ('whi…', 'ab  ', '  ab')
    """
    if width <= 0:
        return ""
    line = clean(text)
    length = cell_len(line)
    if length > width:
        return set_cell_size(line, width - 1) + "…"
    padding = " " * (width - length)
    return padding + line if right else line + padding


def cut(text: object, width: int) -> str:
    """At most `width` cells."""
    return fit(text, width).rstrip(" ")


class Paint:
    """Colours, where the output is a terminal and nobody asked for none; and ASCII, where asked for."""

    def __init__(self, *, color: bool | None = None, ascii_only: bool = False) -> None:
        if color is None:
            color = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        self._color = color
        self.ascii_only = ascii_only

    def __call__(self, text: str, style: str) -> str:
        """The text in a style; colour never carries a meaning that the words do not."""
        if not self._color or style not in _STYLES:
            return text
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m"

    def bar(self, ratio: float, width: int) -> str:
        """A bar of `width` cells."""
        full = round(min(max(ratio, 0.0), 1.0) * width)
        if self.ascii_only:
            return "#" * full + "." * (width - full)
        return BAR_FULL * full + BAR_EMPTY * (width - full)

    def sparkline(self, points: list[float | None], highest: float, width: int) -> str:
        """The last points, each against `highest`; a gap where there was no reading."""
        sparks = _ASCII_SPARKS if self.ascii_only else _SPARKS
        top = len(sparks) - 1
        return "".join(
            " " if point is None or highest <= 0 else sparks[min(top, int(point / highest * top + 0.5))]
            for point in points[-width:]
        ).rjust(width)

    def text(self, line: str) -> str:
        """A finished line, in ASCII where that was asked for."""
        return line.replace("…", "~").encode("ascii", "replace").decode() if self.ascii_only else line
