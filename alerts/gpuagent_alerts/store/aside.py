"""Files that cannot be used are kept beside the state file, under a name with the time, for whoever wants to look."""

from __future__ import annotations

import logging
import shutil
import time
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

KEPT = 3
"""Of the times at which something was moved aside, the newest: a damaged file may be large."""
COMPANIONS = ("-wal", "-shm", "-journal")
"""What SQLite puts beside a database."""


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
