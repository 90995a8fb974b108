"""The write-ahead log before SQLite opens it: SQLite passes over what it cannot use, and says nothing of it.

Its form: https://www.sqlite.org/fileformat2.html#the_write_ahead_log. Changes that were committed and are not in the
database yet are lost with it, so somebody has to be told.
"""

from __future__ import annotations

import os
import struct
from array import array
from pathlib import Path
from sys import byteorder
from typing import BinaryIO, Final

from gpuagent.core.regular_files import open_regular_file

_HEADER: Final = struct.Struct(">8I")
_FRAME: Final = struct.Struct(">6I")
_MAGIC: Final = 0x377F0682
"""With the lowest bit set, checksums are of big-endian words."""
_VERSION: Final = 3007000
MOST_BYTES: Final = 32 * 2**20
"""As far as checksums are worked out: about a second. The agent lets the log grow to 4 MiB."""

Sums = tuple[int, int]


def damage_in_log(path: Path) -> str:
    """Return why a write-ahead log cannot be used, or not to its end; "" where it can. Raises OSError.

    A log that breaks off is what a power cut leaves of a transaction that was never committed. It is damaged where a
    commit of the same log follows the break.
    """
    with os.fdopen(open_regular_file(path, follow_links=False), "rb") as file:
        header = file.read(_HEADER.size)
        if not header:
            return ""
        if len(header) == _HEADER.size and not header.strip(b"\0") and not file.read(1):
            return ""  # a header alone, of which nothing had reached the disk: nothing was committed
        if len(header) < _HEADER.size:
            return ""
        magic, version, page_size, _, *salts_and_sums = _HEADER.unpack(header)
        big = bool(magic & 1)
        sums = _checksum(header[:24], (0, 0), big=big)
        sound = magic & ~1 == _MAGIC and version == _VERSION and page_size >= 512 and not page_size & (page_size - 1)
        if not sound or sums != tuple(salts_and_sums[2:]):
            return "" if file.seek(0, 2) <= _HEADER.size else "its header is damaged"
        file.seek(_HEADER.size)
        return _damage_in_frames(file, page_size, header[16:24], sums, big=big)


def _damage_in_frames(file: BinaryIO, page_size: int, salts: bytes, sums: Sums, *, big: bool) -> str:
    whole, number = True, 0
    while file.tell() < MOST_BYTES:
        frame = file.read(_FRAME.size + page_size)
        if len(frame) < _FRAME.size + page_size:
            return ""
        number += 1
        _, commits_pages, _, _, *expected = _FRAME.unpack_from(frame)
        is_of_this_log = frame[8:16] == salts
        if whole:
            sums = _checksum(frame[_FRAME.size :], _checksum(frame[:8], sums, big=big), big=big)
            whole = is_of_this_log and sums == tuple(expected)
        if not whole and is_of_this_log and commits_pages:
            return f"it is damaged at or before its page {number}"
    return ""


def _checksum(data: bytes, sums: Sums, *, big: bool) -> Sums:
    words = array("I", data)
    if big != (byteorder == "big"):
        words.byteswap()
    first, second = sums
    numbers = iter(words)
    for word, following in zip(numbers, numbers, strict=True):
        first = (first + word + second) & 0xFFFFFFFF
        second = (second + following + first) & 0xFFFFFFFF
    return first, second
