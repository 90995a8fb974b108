"""Whoever can write the configuration can make the agent kill: so nobody else may."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path


def writable_by_others(paths: Iterable[Path], own_uid: int | None = None) -> Iterator[str]:
    """In words, every file, and every directory above it, that others than root and the agent's user can change."""
    owners = {0, os.geteuid() if own_uid is None else own_uid}
    told: set[Path] = set()
    for path in paths:
        # Both ways to it: a link can be turned to another file, and a file replaced by another.
        for each in (path, *path.absolute().parents, *path.resolve().parents):
            if each in told:
                continue
            told.add(each)
            if (why := _why(each, owners)) is not None:
                yield f"{each} {why}: while remedies are on, only root and the agent's user may write it"


def _why(path: Path, owners: set[int]) -> str | None:
    try:
        found = path.stat()
    except OSError:
        return None  # what cannot be read is told by who reads it
    if found.st_uid not in owners:
        return f"belongs to uid {found.st_uid}"
    sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX  # as /tmp: nobody replaces others' files
    if found.st_mode & stat.S_IWOTH and not sticky:
        return "is writable by everybody"
    if found.st_mode & stat.S_IWGRP and found.st_gid != 0 and not sticky:
        return f"is writable by group {found.st_gid}"
    return None
