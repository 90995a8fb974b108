r"""Text that a process chose, made fit for a label, a terminal and a log line."""

from __future__ import annotations

_CUT = "..."
_LONGEST_CHARACTER_BYTES = 4
_FOREIGN_BYTE = 0xDC00  # plus a byte that is no UTF-8: PEP 383, "surrogateescape"


def decode(data: bytes) -> str:
    r"""Decode UTF-8; `printable` turns a byte that is none into an escape such as \xff."""
    return data.decode("utf-8", "surrogateescape")


def printable(text: str, limit_bytes: int) -> str:
    r"""Escape what cannot be printed and cut the result to `limit_bytes` of UTF-8.

    Control characters, line breaks and the marks that turn the direction of writing become \n,
    \x1b, \u202e. A cut is shown by three dots and splits no character and no escape. `limit_bytes`
    is 3 or more.
    """
    if len(text) * _LONGEST_CHARACTER_BYTES <= limit_bytes and text.isprintable():
        return text
    kept: list[str] = []
    length = fitting = 0
    for character in text:
        piece = character if character.isprintable() else _escape(character)
        length += len(piece.encode())
        if length > limit_bytes:
            return "".join(kept[:fitting]) + _CUT
        kept.append(piece)
        if length <= limit_bytes - len(_CUT):
            fitting = len(kept)
    return "".join(kept)


def _escape(character: str) -> str:
    if _FOREIGN_BYTE <= ord(character) < _FOREIGN_BYTE + 256:
        return f"\\x{ord(character) - _FOREIGN_BYTE:02x}"
    return character.encode("unicode_escape").decode("ascii")
