r"""Views of a text with its escapes undone, so that a secret is found however a program wrote it.

One round undoes `%2F`, `\/`, `\u002f`, `\x2f`, `&amp;` and `&#47;` alike; a second and a third round undo what was
escaped twice. A view knows for each of its bytes where that byte came from in the text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_ROUNDS = 3
_ESCAPE = re.compile(
    rb"%[0-9A-Fa-f]{2}"
    rb"|\\u[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2}"  # a character above U+FFFF, in JSON
    rb"|\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}|\\[^ux]"
    rb"|&#[0-9]{1,7};|&#[xX][0-9A-Fa-f]{1,6};|&[A-Za-z][A-Za-z0-9]{1,8};",
    re.DOTALL,
)
_LETTERS = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f"}


class View(NamedTuple):
    """A text after some rounds of undoing escapes."""

    data: bytes
    starts: Sequence[int]
    """For each byte, where what it was made from begins in the original."""
    ends: Sequence[int]
    """For each byte, where what it was made from ends in the original."""

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return where `data[start:end]`, which is not empty, stands in the original."""
        return self.starts[start], self.ends[end - 1]


def views(text: bytes) -> Iterator[View]:
    """Yield the text itself, then what each round makes of it, as long as there is something to undo."""
    view = View(text, range(len(text)), range(1, len(text) + 1))
    yield view
    for _ in range(_ROUNDS):
        decoded = _decoded(view)
        if decoded is None:
            return
        view = decoded
        yield view


def _decoded(view: View) -> View | None:
    """Undo one round of escapes; None if there are none."""
    data = bytearray()
    starts: list[int] = []
    ends: list[int] = []
    copied = 0
    for escape in _ESCAPE.finditer(view.data):
        data += view.data[copied : escape.start()]
        starts += view.starts[copied : escape.start()]
        ends += view.ends[copied : escape.start()]
        copied = escape.end()
        made = _character(escape[0])
        start, end = view.span(escape.start(), escape.end())
        data += made
        starts += [start] * len(made)
        ends += [end] * len(made)
    if not copied:
        return None
    data += view.data[copied:]
    return View(bytes(data), [*starts, *view.starts[copied:]], [*ends, *view.ends[copied:]])


def _character(escape: bytes) -> bytes:
    """Return what an escape stands for; an entity that HTML does not know stands for itself."""
    kind = escape[:2]
    if kind == b"\\u":
        units = bytes.fromhex(escape.replace(b"\\u", b"").decode("ascii"))
        return units.decode("utf-16-be", "replace").encode()
    if kind == b"\\x" or kind[:1] == b"%":
        return bytes.fromhex(escape.lstrip(b"\\x%").decode("ascii"))
    if kind[:1] == b"\\":
        return _LETTERS.get(escape[1:], escape[1:])
    return html.unescape(escape.decode("ascii")).encode("utf-8", "replace")
