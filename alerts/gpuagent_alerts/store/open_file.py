"""Whether the files that SQLite has open are still those at their paths.

A file that was removed or replaced can be written as before, and nothing fails: what is committed there is gone with
the process. SQLite checks this for itself in other journal modes than ours (SQLITE_READONLY_DBMOVED).
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_Identity = tuple[int, int] | None
"""Device and inode; None where there is no file."""


class OpenFiles:
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
