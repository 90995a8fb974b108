"""The files of a database: those that SQLite has open, those that it cannot use, what is kept and salvaged of them.

A file that was removed or replaced can be written as before, and nothing fails: what is committed there is gone with
the process. SQLite checks this for itself in other journal modes than ours (SQLITE_READONLY_DBMOVED).

Files that cannot be used are kept beside the state file, under a name with the time, for whoever wants to look.

The write-ahead log is looked at before SQLite opens it, which passes over what it cannot use and says nothing of it.
Its form: https://www.sqlite.org/fileformat2.html#the_write_ahead_log. Changes that were committed and are not in the
database yet are lost with it, so somebody has to be told.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import struct
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from sys import byteorder
from typing import Any, BinaryIO, Final

from gpuagent.core.regular_files import open_regular_file
from gpuagent_alerts.store.tables import LARGEST_INTEGER, decode_text, keep_copy

_Identity = tuple[int, int] | None
"""Device and inode; None where there is no file."""


class OpenedFiles:
    """A database and its write-ahead log, as they were when they were opened."""

    def __init__(self, path: Path) -> None:
        self._paths = (path, path.with_name(f"{path.name}-wal"))
        self._opened = tuple(map(_identity, self._paths))

    def difference(self) -> str:
        """Return what is not as it was opened, in words; "" where nothing is."""
        for path, opened in zip(self._paths, self._opened, strict=True):
            now = _identity(path)
            if now != opened and opened is not None:
                return f"{path.name} was removed" if now is None else f"another file is in the place of {path.name}"
        return ""

    def remove_log(self) -> None:
        """Remove the log if it is still the one that was opened: SQLite would apply it to whatever lies beside it."""
        if self._opened[1] is not None and _identity(self._paths[1]) == self._opened[1]:
            with suppress(OSError):
                self._paths[1].unlink()


def _identity(path: Path) -> _Identity:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


log = logging.getLogger(__name__)

KEPT = 3
"""Number of times at which something was moved aside that are kept, the newest: a damaged file may be large."""
COMPANIONS = ("-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite puts beside a database."""


def move_aside(path: Path, reason: str = "corrupt") -> Path:
    """Move a database and its companions, with a reason in the name; return where it is now. Raises OSError."""
    aside = _free_name(path, reason)
    for suffix in ("", *COMPANIONS):
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    _drop_oldest(path, reason)
    return aside


def move_if_any(path: Path, reason: str) -> None:
    """Move a database and its companions, if one of them is there. Raises OSError."""
    names = {path.name + suffix for suffix in ("", *COMPANIONS)}
    if any(each.name in names for each in path.parent.glob(f"{path.name}*")):
        log.warning("what was in the place of %s was moved to %s", path, move_aside(path, reason))


def move_companion_aside(path: Path, suffix: str) -> Path:
    """Move one companion of a database, whatever it is; return where it is now. Raises OSError."""
    aside = _free_name(path)
    kept = aside.with_name(aside.name + suffix)
    path.with_name(path.name + suffix).rename(kept)
    _drop_oldest(path)
    return kept


def copy_companion_aside(path: Path, suffix: str) -> Path:
    """Keep a copy of a companion that SQLite goes on with as far as it can. Raises OSError."""
    aside = _free_name(path)
    kept = aside.with_name(aside.name + suffix)
    shutil.copyfile(path.with_name(path.name + suffix), kept)
    kept.chmod(0o600)
    _drop_oldest(path)
    return kept


def _free_name(path: Path, reason: str = "corrupt") -> Path:
    stamp, number = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()), 0
    while True:
        name = f"{path.name}.{reason}-{stamp}" + (f".{number}" if number else "")
        if not any(path.with_name(name + suffix).exists() for suffix in ("", *COMPANIONS)):
            return path.with_name(name)
        number += 1


def _drop_oldest(path: Path, reason: str = "corrupt") -> None:
    found: dict[str, list[Path]] = {}
    for one in path.parent.glob(f"{path.name}.{reason}*"):
        stem = one.name
        for suffix in COMPANIONS:
            stem = stem.removesuffix(suffix)
        found.setdefault(stem, []).append(one)
    for stem in sorted(found)[:-KEPT]:
        for one in found[stem]:
            with suppress(OSError):  # a folder stays
                one.unlink()


_HEADER: Final = struct.Struct(">8I")
_FRAME: Final = struct.Struct(">6I")
_MAGIC: Final = 0x377F0682
"""With the lowest bit set, checksums are of big-endian words."""
_VERSION: Final = 3007000
MOST_BYTES: Final = 32 * 2**20
"""Most bytes of which checksums are worked out: about a second. The agent lets the log grow to 4 MiB."""

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


_MOST_SECONDS = 5.0
_MOST_BYTES = 256 * 2**20
_STEPS = 100_000
"""Steps of SQLite's virtual machine between two looks at the clock."""


def salvage(old: sqlite3.Connection, new: sqlite3.Connection) -> None:
    """Copy every row that can be read into the tables of `new`, which are empty. Never raises for what is in `old`.

    The order of rows is kept. What a table of `new` does not take goes into `set_aside`.
    """
    until = time.monotonic() + _MOST_SECONDS
    old.set_progress_handler(lambda: time.monotonic() > until, _STEPS)
    tables = [name for (name,) in new.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    new.execute("BEGIN IMMEDIATE")
    for table in tables:
        if not table.startswith("sqlite_"):
            _salvage_table(old, new, table)
    new.execute("COMMIT")
    with suppress(sqlite3.Error):
        old.set_progress_handler(None, 0)


def salvage_file(path: Path, new: sqlite3.Connection) -> None:
    """Salvage from a copy of a file: SQLite would write to the file itself."""
    copy = path.with_name(f"{path.name}.copy")
    try:
        for suffix in ("", "-wal"):
            part = path.with_name(path.name + suffix)
            if part.is_file() and part.stat().st_size <= _MOST_BYTES:
                shutil.copyfile(part, copy.with_name(copy.name + suffix))
        old = sqlite3.connect(str(copy), isolation_level=None)
        old.text_factory = decode_text
        try:
            salvage(old, new)
        finally:
            old.close()
    except OSError:
        return  # no room for a copy: then the old state is only kept aside
    finally:
        for suffix in ("", "-wal", "-shm", "-journal"):
            with suppress(OSError):
                copy.with_name(copy.name + suffix).unlink()


def _salvage_table(old: sqlite3.Connection, new: sqlite3.Connection, table: str) -> None:
    columns = new.execute(f"PRAGMA table_info({table})").fetchall()
    names = [str(column[1]) for column in columns]
    needed = [bool(column[3] or column[5]) for column in columns]
    marks = ", ".join("?" for _ in names)
    insert = f"INSERT OR IGNORE INTO {table} ({', '.join(names)}) VALUES ({marks})"  # noqa: S608  names of ours
    counter = names[0] if names[0] == "seq" else ""
    for row in _readable(old, table, names, [str(column[1]) for column in columns if column[5]]):
        fault = _fault(row, needed, counted=bool(counter))
        if fault:
            keep_copy(new, table, dict(zip(names, row, strict=True)), fault)
        else:
            try:
                new.execute(insert, row)
            except sqlite3.Error as error:
                keep_copy(new, table, dict(zip(names, row, strict=True)), str(error))


def _fault(row: Sequence[Any], needed: Sequence[bool], *, counted: bool) -> str:
    if any(value is None and must for value, must in zip(row, needed, strict=True)):
        return "a value is missing"
    if counted and not (isinstance(row[0], int) and 0 <= row[0] <= LARGEST_INTEGER):
        return "its number is out of range"
    return ""


def _readable(
    old: sqlite3.Connection, table: str, names: Sequence[str], key: Sequence[str]
) -> Iterator[tuple[Any, ...]]:
    """Yield rows from the front to the damage, then from the back: rows in between are lost."""
    chosen = f"SELECT {', '.join(names)} FROM {table}"  # noqa: S608  names of ours
    try:
        yield from old.execute(chosen)
    except sqlite3.Error:
        order = ", ".join(f"{name} DESC" for name in key)
        with suppress(sqlite3.Error):
            yield from old.execute(f"{chosen} ORDER BY {order}")
