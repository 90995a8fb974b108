"""A message in Slack's Block Kit as a picture: the blocks that the receiver uses, in the way of Slack's light theme."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

WIDTH = 760
_MARGIN = 64
_LINE = 22
_FONT = "Lato, 'Helvetica Neue', Arial, sans-serif"
_MONO = "Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_SIZES = {"section": 15, "context": 12}
_SPACE = 0.28
_NARROW = dict.fromkeys("ijlI|.,:;'!", 0.26) | dict.fromkeys("ftr()[]-/`", 0.34) | dict.fromkeys("mwMW%@", 0.86)
"""Widths of Helvetica's letters, in em. What is set has its width prescribed, so that it fits in any font."""


class Run(NamedTuple):
    """Words of one style, as they are set."""

    text: str
    style: str
    """`plain`, `bold`, `link` or `code`."""

    def width(self, size: float) -> float:
        """In pixels."""
        if self.style == "code":
            return len(self.text) * 12 * 0.6 + 8
        bold = 1.06 if self.style == "bold" else 1.0
        # Exactly, as the sum of floats differs in the last digit from Python 3.12 on.
        return size * bold * math.fsum(_advance(letter) for letter in self.text)


def _advance(letter: str) -> float:
    if letter == " ":
        return _SPACE
    return _NARROW.get(letter, 0.69 if letter.isupper() else 0.54)


def slack_svg(payload: dict[str, Any]) -> str:
    """The whole picture."""
    parts: list[str] = []
    y = 54.0
    for line in _lines({"type": "plain_text", "text": _unescaped(payload["text"])}, "section"):
        parts.extend(_set(line, y, "section"))
        y += _LINE
    top = y
    y += 8
    (attachment,) = payload["attachments"]
    for block in attachment["blocks"]:
        kind = block["type"]
        texts = block["elements"] if kind == "context" else [block["text"]]
        for text in texts:
            lines = list(_lines(text, kind))
            for line in lines:
                parts.extend(_set(line, y, kind))
                y += _LINE
        y += 8
    height = y + 2
    bar = f'x="{_MARGIN - 14}" y="{top - 10:.0f}" width="4" height="{y - top - 2:.0f}"'
    parts.insert(0, f'<rect {bar} rx="2" fill="{escape(attachment["color"])}"/>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" '
        f'viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(payload["text"], {chr(34): "&quot;"})}">\n'
        f'<rect width="100%" height="100%" rx="8" fill="#ffffff" stroke="#dddddd"/>\n'
        f'<rect x="16" y="16" width="36" height="36" rx="8" fill="#2a6f4e"/>\n'
        f'<text x="34" y="41" font-family="{_FONT}" font-size="20" fill="#ffffff" text-anchor="middle">G</text>\n'
        f'<text x="{_MARGIN}" y="30" font-family="{_FONT}" font-size="15" font-weight="bold" fill="#1d1c1d">gpuagent'
        f'<tspan dx="8" font-size="10" fill="#616061">APP</tspan></text>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _lines(text: dict[str, str], kind: str) -> Iterator[list[Run]]:
    """Broken at words. Marks count in `mrkdwn` alone."""
    size, most = _SIZES[kind], WIDTH - _MARGIN - 20
    for paragraph in text["text"].split("\n"):
        words = list(_words(paragraph)) if text["type"] == "mrkdwn" else _plain(paragraph, "bold")
        line: list[Run] = []
        used = 0.0
        for word in words:
            width = word.width(size) + size * _SPACE
            if line and used + width > most:
                yield _joined(line)
                line, used = [], 0.0
            line.append(word)
            used += width
        yield _joined(line)


def _joined(words: list[Run]) -> list[Run]:
    """Neighbors of one style as one run; code stands alone."""
    runs: list[Run] = []
    for word in words:
        if runs and runs[-1].style == word.style != "code":
            runs[-1] = Run(f"{runs[-1].text} {word.text}", word.style)
        else:
            runs.append(word)
    return runs


def _words(paragraph: str) -> Iterator[Run]:
    for piece in re.findall(r"\*[^*]+\*|`[^`]+`|<[^<>]+>|[^*`<]+", paragraph):
        if piece[0] == "<":  # a date in the words for those who cannot show it, or a link by its name
            style = "plain" if piece.startswith("<!date") else "link"
            yield from _plain(piece[1:-1].rpartition("|")[2], style)
        elif piece[0] == "`":
            yield Run(_unescaped(piece[1:-1]), "code")
        elif piece[0] == "*":
            yield from _plain(piece[1:-1], "bold")
        else:
            yield from _plain(piece, "plain")


def _plain(text: str, style: str) -> list[Run]:
    return [Run(_unescaped(word), style) for word in text.split()]


def _unescaped(text: str) -> str:
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def _set(runs: list[Run], y: float, kind: str) -> Iterator[str]:
    """One line."""
    size = _SIZES[kind]
    color = "#616061" if kind == "context" else "#1d1c1d"
    x = float(_MARGIN)
    for run in runs:
        width = run.width(size)
        if run.style == "code":
            box = f'x="{x:.1f}" y="{y - 14:.0f}" width="{width:.1f}" height="19"'
            yield f'<rect {box} rx="3" fill="#f8f8f8" stroke="#dddddd"/>'
            yield _text(run.text, x + 4, y, width - 8, f'font-family="{_MONO}" font-size="12" fill="#c01343"')
        else:
            weight = ' font-weight="bold"' if run.style == "bold" else ""
            fill = "#1264a3" if run.style == "link" else color
            yield _text(run.text, x, y, width, f'font-family="{_FONT}" font-size="{size}" fill="{fill}"{weight}')
        x += width + size * _SPACE


def _text(text: str, x: float, y: float, width: float, look: str) -> str:
    length = f'textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs"'
    return f'<text x="{x:.1f}" y="{y:.0f}" {length} {look}>{escape(text)}</text>'
