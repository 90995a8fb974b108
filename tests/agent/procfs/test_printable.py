"""Text that a process chose becomes one short line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuagent.procfs.files import decode, printable


def test_a_cut_splits_no_escape() -> None:
    """An escape is kept whole or not at all, and the dots say that something is missing."""
    assert printable("abcd\n\n\n\n", 8) == "abcd..."
    assert printable("abc\n\n\n\n", 8) == "abc\\n..."


def test_a_cut_splits_no_character() -> None:
    """The bound is in bytes; a character of several bytes is kept whole or not at all."""
    assert printable("\u00e9" * 5, 8) == "\u00e9\u00e9..."


def test_what_fits_exactly_is_not_cut() -> None:
    """The dots need room only where something is left out."""
    assert printable("abcdefgh", 8) == "abcdefgh"


@given(st.binary(max_size=100))
def test_every_byte_leaves_a_trace(data: bytes) -> None:
    """PROC-07: a byte that is no UTF-8 is shown by its number, not dropped."""
    shown = printable(decode(data), 4 * 10 * len(data) + 3)

    assert shown.isprintable()
    assert len(shown.encode()) >= len(data)
