"""Hide secrets: the one place through which a text from outside goes before it is logged, stored, exported or shown.

A receiver that refuses a message may quote it, with address and headers: the secrets of the whole configuration are
hidden in every form that `secret` knows, however often it was escaped, and besides them whatever looks like a
credential.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuagent_alerts.secret import CUT_BYTES, Forms, Misconfigured, Secret, forms

HIDDEN = "<hidden>"
_KEPT_VALUES = 2
"""Values kept of each secret: the one in use, and the one before it, which a late answer may still quote."""
_SHORTEST_PART = 4
"""Shortest part that is hidden of a secret that is cut off at an end of the text."""

# Each takes time linear in the text: where a match can begin, what stands before it says that it has not begun yet.
_CREDENTIALS = (
    re.compile(rb"(?<![A-Za-z0-9+.-])[A-Za-z0-9+.-]*://\S+"),
    re.compile(rb"(?<![^\s/@\"'<>])[^\s/:@\"'<>]+:[^\s/@\"'<>]+@"),  # user:password@
    re.compile(
        rb"\bauthorization[\"'\]\\]{0,4}[ \t]{0,8}[:=]>?[ \t]{0,8}(\"[^\"\r\n]+|'[^'\r\n]+|[^\s\"'][^\r\n]*)",
        re.IGNORECASE,
    ),
    re.compile(
        rb"\b(?:basic|bearer|negotiate)[\s+:]{1,8}(?!(?:auth\w*|realm|token|error|required|is|or|and|header)\b)"
        rb"([\w.~+/=-]{3,})",
        re.IGNORECASE,
    ),
    re.compile(rb"\bdigest[\s+]{1,8}(\w+=[^\r\n]+)", re.IGNORECASE),
)
_BASE64 = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_=")

Span = tuple[int, int]


@dataclass(slots=True)
class _Known:
    secret: Secret
    values: list[str] = field(default_factory=list, repr=False)
    """The latest first."""

    def refresh(self) -> None:
        try:
            value = self.secret.read()
        except Misconfigured:  # the values of before still count
            return
        if value not in self.values:
            self.values = [value, *self.values][:_KEPT_VALUES]


class Masker:
    """Hides the secrets of a configuration, and what looks like a credential. For one thread."""

    def __init__(self, secrets: Iterable[Secret] = ()) -> None:
        self._known: list[_Known] = []
        self._texts: tuple[str, ...] = ()
        self.set_secrets(secrets)

    def set_secrets(self, secrets: Iterable[Secret], texts: Iterable[str] = ()) -> None:
        """Hide these from now on, and `texts`, which stand in the configuration as they are."""
        before = {known.secret: known for known in self._known}
        self._known = [before.get(secret) or _Known(secret) for secret in dict.fromkeys(secrets)]
        self._texts = tuple(texts)

    def hide(self, text: str | bytes, further: Iterable[str] = (), *, starts: bool = True, ends: bool = True) -> str:
        """Return the text on one line, without any of the secrets.

        `further` are secrets beside those of the configuration. Where the text does not start or end as it did when it
        was written, `starts` or `ends` is False: the word at the cut is left out, and what began there is hidden.
        """
        data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
        wanted = [forms(secret) for secret in dict.fromkeys([*self._secrets(), *further]) if secret]
        spans = [span for view in decoded_views(data) for span in _spans(view, wanted, starts=starts, ends=ends)]
        hidden = _replaced(data, spans).decode("utf-8", "replace")
        line = " ".join("".join(c if c.isprintable() else " " for c in hidden).split(" "))
        if not starts:
            line = line.partition(" ")[2]
        if not ends:
            line = line.rpartition(" ")[0]
        return " ".join(line.split())

    def _secrets(self) -> Iterator[str]:
        for known in self._known:
            known.refresh()
            for value in known.values:
                yield from [value, *value.split()]
        yield from self._texts


def _spans(view: DecodedView, wanted: Iterable[Forms], *, starts: bool, ends: bool) -> Iterator[Span]:
    """Yield where the original has something to hide."""
    data = view.data
    lower = data.lower()
    for pattern in _CREDENTIALS:
        for found in pattern.finditer(data):
            yield view.span(*found.span(pattern.groups))
    for each in wanted:
        for start, end in _places(data, lower, each):
            yield view.span(start, end)
        if not (starts and ends):
            for start, end in _cut_places(data, each, starts=starts, ends=ends):
                yield view.span(start, end)


def _places(data: bytes, lower: bytes, wanted: Forms) -> Iterator[Span]:
    for form in wanted.literal:
        yield from _occurrences(data, form)
    for form in wanted.lower:
        yield from _occurrences(lower, form)
    for form in wanted.cut:
        yield from _cut_anywhere(lower, form)
    for word in wanted.words:
        for found in re.finditer(rb"(?<![0-9A-Za-z])" + re.escape(word) + rb"(?![0-9A-Za-z])", data):
            yield found.span()
    for core in wanted.base64:
        start = data.find(core)
        while start >= 0:
            start, end = _extended(data, start, start + len(core))
            yield start, end
            start = data.find(core, end)


def _cut_places(data: bytes, wanted: Forms, *, starts: bool, ends: bool) -> Iterator[Span]:
    """Yield the beginning of the text if it is the end of a secret, and its end if a secret begins there.

    The word at the cut is left out anyway, so this is about secrets of several words.
    """
    for form in wanted.spaced:
        lengths = range(min(len(form), len(data)), _SHORTEST_PART - 1, -1)
        if not ends:
            yield from ((len(data) - k, len(data)) for k in lengths if data.endswith(form[:k]))
        if not starts:
            yield from ((0, k) for k in lengths if data.startswith(form[-k:]))


def _cut_anywhere(lower: bytes, form: bytes) -> Iterator[Span]:
    """Yield where a secret begins and breaks off, and where one ends of which the beginning is missing."""
    for start, end in _occurrences(lower, form[:CUT_BYTES]):
        length = CUT_BYTES
        while length < len(form) and lower[end : end + 1] == form[length : length + 1]:
            length, end = length + 1, end + 1  # noqa: PLW2901  it grows
        yield start, end
    for start, end in _occurrences(lower, form[-CUT_BYTES:]):
        length = CUT_BYTES
        while length < len(form) and start > 0 and lower[start - 1] == form[-length - 1]:
            length, start = length + 1, start - 1  # noqa: PLW2901  it grows
        yield start, end


def _occurrences(data: bytes, form: bytes) -> Iterator[Span]:
    start = data.find(form)
    while start >= 0:
        yield start, start + len(form)
        start = data.find(form, start + len(form))


def _extended(data: bytes, start: int, end: int) -> Span:
    """Take in the base64 on both sides, which holds the first and the last bits."""
    while start > 0 and data[start - 1] in _BASE64:
        start -= 1
    while end < len(data) and data[end] in _BASE64:
        end += 1
    return start, end


def _replaced(data: bytes, spans: Iterable[Span]) -> bytes:
    """Put `<hidden>` in the place of each span, and of spans that overlap only once."""
    parts: list[bytes] = []
    copied = 0
    for start, end in sorted(spans):
        if start >= copied:
            parts += [data[copied:start], HIDDEN.encode()]
        copied = max(copied, end)
    return b"".join([*parts, data[copied:]])


_DECODING_ROUNDS = 3
_ESCAPE = re.compile(
    rb"%[0-9A-Fa-f]{2}"
    rb"|\\u[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2}"  # a character above U+FFFF, in JSON
    rb"|\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}|\\[^ux]"
    rb"|&#[0-9]{1,7};|&#[xX][0-9A-Fa-f]{1,6};|&[A-Za-z][A-Za-z0-9]{1,8};",
    re.DOTALL,
)
_LETTERS = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f"}


class DecodedView(NamedTuple):
    """A text after some rounds of undoing escapes."""

    data: bytes
    starts: Sequence[int]
    """For each byte, where what it was made from begins in the original."""
    ends: Sequence[int]
    """For each byte, where what it was made from ends in the original."""

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return where `data[start:end]`, which is not empty, stands in the original."""
        return self.starts[start], self.ends[end - 1]


def decoded_views(text: bytes) -> Iterator[DecodedView]:
    """Yield the text itself, then what each round makes of it, as long as there is something to undo."""
    view = DecodedView(text, range(len(text)), range(1, len(text) + 1))
    yield view
    for _ in range(_DECODING_ROUNDS):
        decoded = _decode_once(view)
        if decoded is None:
            return
        view = decoded
        yield view


def _decode_once(view: DecodedView) -> DecodedView | None:
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
    return DecodedView(bytes(data), [*starts, *view.starts[copied:]], [*ends, *view.ends[copied:]])


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
    from html import unescape  # noqa: PLC0415  0.3 MiB, and most texts have no entity

    return unescape(escape.decode("ascii")).encode("utf-8", "replace")
