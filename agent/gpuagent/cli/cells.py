"""Text in terminal cells: what a hostile process name may do to a screen, it may not do to ours.

Only the widths come from rich: its Console and Table would take a fifth of the time that `gpuagent status` has.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from typing import TextIO

from rich.cells import cell_len, chop_cells, set_cell_size

from gpuagent.core.units import GIB, format_ratio

BAR_FULL, BAR_EMPTY = "█", "░"
PIPED_WIDTH = 80
UNCUT_WIDTH = 1_000_000
"""Of a line that nothing is cut from, as in a pipe: no command line is as long."""
_SPARKS = "▁▂▃▄▅▆▇█"
_ASCII_SPARKS = "_.-=+*#@"
_ESCAPE_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
"""Escape sequences of ECMA-48: a control sequence (colors), or an operating system command (titles, links)."""
_BREAKS = re.compile(r"[^\S\r\n]*[\r\n]+\s*")
_STYLES = {"critical": "1;31", "warning": "33", "info": "36", "ok": "32", "bold": "1", "dim": "2"}


def clean(text: object) -> str:
    r"""Printable text on one line: no control or formatting characters (escapes, overrides of direction).

    Whole escape sequences are left out, and breaks of lines are spaces. What nothing is left of is a question mark.

    >>> clean("a\x1b[31mb\u202ec\nd\n")
    'ab?c d'
    """
    line = str(text)
    if line.isprintable():
        return line
    line = " ".join(_BREAKS.split(_ESCAPE_SEQUENCE.sub("", line).strip("\r\n")))
    return "".join(character if character.isprintable() else "?" for character in line) or "?"


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
    """At most `width` cells.

    >>> cut("whisper", 4), cut("ab", 4)
    ('whi…', 'ab')
    """
    return fit(text, width).rstrip(" ")


def wrap(text: object, width: int) -> list[str]:
    """Return words on lines of at most `width` cells; a word that is longer than a line is broken.

    >>> wrap("the GPU is lost", 7), wrap("abcdefgh", 5), wrap("", 5)
    (['the GPU', 'is lost'], ['abcde', 'fgh'], [''])
    """
    lines: list[str] = []
    line = ""
    for word in clean(text).split():
        for piece in chop_cells(word, width) if cell_len(word) > width else [word]:
            longer = f"{line} {piece}" if line else piece
            if cell_len(longer) > width:
                lines.append(line)
                longer = piece
            line = longer
    return [*lines, line]


def gib_cell(count: float | None) -> str:
    """Return bytes as a number of GiB without the unit, "-" for None."""
    return "-" if count is None else f"{count / GIB:.1f}"


def percent_cell(ratio: float | None) -> str:
    """Return a ratio in percent, "-" for None."""
    return "-" if ratio is None else format_ratio(ratio)


def rounded_cell(value: float | None) -> str:
    """Return a figure as a whole number, "-" for None."""
    return "-" if value is None else f"{value:.0f}"


def width_of(stream: TextIO) -> int:
    """Columns of the terminal behind a stream (COLUMNS goes first); 80 where there is none."""
    return shutil.get_terminal_size((PIPED_WIDTH, 24)).columns if stream.isatty() else PIPED_WIDTH


class Paint:
    """Colors, bars and sparklines, as far as the output can show them."""

    def __init__(self, *, color: bool = False, ascii_only: bool = False) -> None:
        self._color = color
        self.ascii_only = ascii_only

    @classmethod
    def for_stream(cls, stream: TextIO, *, ascii_only: bool = False, environ: Mapping[str, str] = os.environ) -> Paint:
        """Return what this stream can show.

        No color in a pipe, on a dumb terminal, or where NO_COLOR is set and not empty (https://no-color.org). ASCII
        where it was asked for, or where the encoding is not UTF-8.
        """
        color = stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        encoding = (stream.encoding or "ascii").lower().replace("-", "")
        return cls(color=color, ascii_only=ascii_only or encoding != "utf8")

    def __call__(self, text: str, style: str) -> str:
        """Return the text in a style; color never carries a meaning that the words do not."""
        if not self._color or style not in _STYLES:
            return text
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m"

    def bar(self, ratio: float, width: int) -> str:
        """Return a bar of `width` cells."""
        full = round(min(max(ratio, 0.0), 1.0) * width)
        if self.ascii_only:
            return "#" * full + "." * (width - full)
        return BAR_FULL * full + BAR_EMPTY * (width - full)

    def sparkline(self, points: Sequence[float | None], highest: float, width: int) -> str:
        """Return the last points, each against `highest`; a gap where there was no reading."""
        sparks = _ASCII_SPARKS if self.ascii_only else _SPARKS
        top = len(sparks) - 1
        return "".join(
            " " if point is None or highest <= 0 else sparks[max(0, min(top, int(point / highest * top + 0.5)))]
            for point in points[-width:]
        ).rjust(width)

    def text(self, line: str) -> str:
        """Return a finished line, in ASCII where that was asked for; it keeps its width."""
        if not self.ascii_only or line.isascii():
            return line
        return "".join(
            character if character.isascii() else "~" if character == "…" else "?" * cell_len(character)
            for character in line
        )
