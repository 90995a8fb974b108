"""Real cgroups: directories of root and of ordinary users below the machine's own hierarchy of version 2."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from tests.attack.processes import as_user
from tests.integration.waiting import until


def hierarchy() -> Path:
    """Return where version 2 is mounted, alone or beside version 1. Skips where it cannot be written."""
    for root in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")):
        if (root / "cgroup.controllers").exists():
            if not os.access(root / "cgroup.procs", os.W_OK):
                pytest.skip(f"{root} cannot be written, so no cgroup can be made")
            return root
    pytest.skip("no cgroup hierarchy of version 2 is mounted here")


def container_id() -> str:
    """Return the id of a container that nobody has."""
    return secrets.token_hex(32)


class Cgroups:
    """Makes cgroups and removes them at last, the innermost first."""

    def __init__(self) -> None:
        self.root = hierarchy()
        self._made: list[Path] = []

    def make(self, path: str, owner: int = 0) -> Path:
        """Make a cgroup as its manager would; `owner` is whom it is delegated to. Those above it are root's."""
        current = self.root
        for name in path.strip("/").split("/"):
            current /= name
            if not current.is_dir():
                current.mkdir()
                self._made.append(current)
        if owner:
            for each in (current, current / "cgroup.procs", current / "cgroup.subtree_control"):
                os.chown(each, owner, owner)
        return current

    def legacy(self, uid: int) -> Path:
        """Make a user's own cgroup in a hierarchy of version 1, which they write in beside that of version 2."""
        root = Path("/sys/fs/cgroup/pids")
        if not (root / "cgroup.procs").exists():
            pytest.skip("no cgroup hierarchy of version 1 is mounted here")
        path = root / f"attacked-{uid}"
        path.mkdir(exist_ok=True)
        self._made.append(path)
        for each in (path, path / "cgroup.procs", path / "tasks"):
            os.chown(each, uid, uid)
        return path

    def users_own(self, uid: int) -> Path:
        """Make what systemd makes for a login: the user's manager, delegated to the user."""
        return self.make(f"user.slice/user-{uid}.slice/user@{uid}.service", owner=uid)

    def make_as(self, uid: int, path: Path) -> Path:
        """Make a cgroup with the rights of an ordinary user, who has to own one above it."""
        missing = [each for each in (path, *path.parents) if not each.is_dir()]
        made = as_user(uid, "mkdir", "-p", "--", str(path))
        assert made.returncode == 0, made.stderr
        self._made += reversed(missing)
        return path

    def close(self) -> None:
        """Remove them. One in which another test has made one stays for that test."""
        while self._made:
            path = self._made.pop()
            if path.is_dir() and not any(each.is_dir() for each in path.iterdir()):
                # The kernel lets go of a cgroup only a moment after its last process has been reaped.
                until(lambda: _removed(path), f"{path} is empty")  # noqa: B023  called at once


def _removed(path: Path) -> bool:
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
