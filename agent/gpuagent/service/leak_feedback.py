"""Histories of which somebody has said whether they are leaks, kept as files: bounded, the oldest go.

A file is whole or not there: it is written beside its place, forced to the disk, and moved. What a killed agent has
left beside is removed at the next write.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple

from gpuagent.core.regular_files import read_regular_file
from gpuagent.runtime.state_files import make_own_directory

FOLDER: Final = "feedback"
"""In the state directory."""
SCHEMA: Final = 1
MOST_ENTRIES: Final = 200
MOST_BYTES: Final = 16 * 2**20
MOST_ENTRY_BYTES: Final = 2 * 2**20
"""A trace is at most 200 KiB of JSON, and a fifth of that compressed."""
_MOST_PLAIN_BYTES: Final = 8 * 2**20
_NAME: Final = re.compile(r"(\d{13})-(\d{1,10})-(\d{1,4})\.json\.gz")
_NEW: Final = ".new"

Document = dict[str, Any]


class FeedbackFailure(Exception):
    """It could not be kept, and why."""


class _File(NamedTuple):
    path: Path
    bytes: int


class _Signature(NamedTuple):
    """What changes with a file's content."""

    name: str
    inode: int
    bytes: int
    changed_ns: int


class FeedbackStore:
    """The files. It blocks: to be called in a thread."""

    def __init__(self, folder: Path | None, *, most_entries: int = MOST_ENTRIES, most_bytes: int = MOST_BYTES) -> None:
        """None: there is no directory that anything may be kept in."""
        self._folder = folder
        self._most_entries = most_entries
        self._most_bytes = most_bytes
        self._lock = Lock()
        self._known: dict[_Signature, Document | None] = {}
        """Entries without their histories, by file: to unpack all of them for each list would cost a second."""

    def add(self, entry: Mapping[str, Any], time_seconds: float, pid: int) -> tuple[str, list[str]]:
        """Keep an entry; returns its id, and the ids of those that were evicted for it. Raises FeedbackFailure."""
        if self._folder is None:
            raise FeedbackFailure("there is no state directory that may be written")
        packed = gzip.compress(json.dumps(entry, separators=(",", ":"), allow_nan=False).encode(), 6, mtime=0)
        if len(packed) > min(MOST_ENTRY_BYTES, self._most_bytes):
            raise FeedbackFailure(f"the history takes {len(packed)} bytes, more than is kept of one")
        with self._lock:
            try:
                make_own_directory(self._folder)
                self._remove_leftovers()
                path = self._free_name(time_seconds, pid)
                evicted = self._evict(len(packed))
                _write(path, packed)
            except OSError as error:
                raise FeedbackFailure(error.strerror or str(error)) from None
        return _id_of(path), evicted

    def entries(self) -> list[Document]:
        """All that can be read, the oldest first, without their histories."""
        known, self._known = self._known, {}
        for file in self._files():
            with suppress(OSError):
                status = file.path.lstat()
                signature = _Signature(file.path.name, status.st_ino, status.st_size, status.st_mtime_ns)
                entry = known[signature] if signature in known else self._read(file.path)
                self._known[signature] = entry and {key: value for key, value in entry.items() if key != "trace"}
        return [entry for entry in self._known.values() if entry is not None]

    def entry(self, entry_id: str) -> Document:
        """Return the entry with this id. Raise KeyError."""
        for file in self._files():
            if _id_of(file.path) == entry_id and (entry := self._read(file.path)) is not None:
                return entry
        raise KeyError(f"there is no feedback {entry_id[:50]!r}")

    def remove(self, entry_id: str) -> None:
        """Forget one. Raises KeyError and FeedbackFailure."""
        with self._lock:
            for file in self._files():
                if _id_of(file.path) == entry_id:
                    try:
                        file.path.unlink()
                    except OSError as error:
                        raise FeedbackFailure(error.strerror or str(error)) from None
                    return
        raise KeyError(f"there is no feedback {entry_id[:50]!r}")

    @property
    def limits(self) -> Document:
        """How much is kept."""
        return {"most_entries": self._most_entries, "most_bytes": self._most_bytes}

    def _read(self, path: Path) -> Document | None:
        entry = read_entry(path)
        return None if entry is None else {**entry, "id": _id_of(path)}

    def _files(self) -> list[_File]:
        return sorted(self._found())

    def _found(self) -> Iterator[_File]:
        if self._folder is None:
            return
        with suppress(OSError):
            for path in self._folder.iterdir():
                if _NAME.fullmatch(path.name):
                    with suppress(OSError):
                        yield _File(path, path.lstat().st_size)

    def _evict(self, room_for_bytes: int) -> list[str]:
        """Remove the oldest until one more of this size has room. Raises OSError."""
        files = self._files()
        evicted = []
        while files and (
            len(files) >= self._most_entries or sum(file.bytes for file in files) + room_for_bytes > self._most_bytes
        ):
            oldest = files.pop(0)
            oldest.path.unlink(missing_ok=True)
            evicted.append(_id_of(oldest.path))
        return evicted

    def _remove_leftovers(self) -> None:
        assert self._folder is not None  # noqa: S101  add() has looked
        for path in self._folder.iterdir():
            if path.name.endswith(_NEW) and _NAME.fullmatch(path.name.removesuffix(_NEW)):
                path.unlink(missing_ok=True)

    def _free_name(self, time_seconds: float, pid: int) -> Path:
        """Return a name that sorts behind all others, also where the clock was set back. Raises OSError."""
        assert self._folder is not None  # noqa: S101  likewise
        files = self._files()
        last = int(files[-1].path.name[:13]) if files else 0
        now = max(int(time_seconds * 1000), last)
        for number in range(10_000):
            path = self._folder / f"{now:013}-{pid}-{number}.json.gz"
            if not os.path.lexists(path):
                return path
        raise FileExistsError(None, "no name is free")


def read_entry(path: Path) -> Document | None:
    """Return an entry of the store, None where a file is none: damaged, too large, or something else."""
    try:
        packed = read_regular_file(path, MOST_ENTRY_BYTES, follow_links=False)
        unpacker = zlib.decompressobj(wbits=31)
        text = unpacker.decompress(packed, _MOST_PLAIN_BYTES)
        entry = json.loads(text) if unpacker.eof else None
    except (OSError, ValueError, RecursionError, zlib.error):
        return None
    known = isinstance(entry, dict) and entry.get("schema") == SCHEMA and isinstance(entry.get("trace"), dict)
    return entry if known else None


def _id_of(path: Path) -> str:
    return path.name.removesuffix(".json.gz")


def _write(path: Path, content: bytes) -> None:
    new = path.with_name(path.name + _NEW)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(new, flags, 0o600), "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(path)
    except OSError:
        with suppress(OSError):
            new.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
