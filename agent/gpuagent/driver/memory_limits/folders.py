"""Which cgroup may have a limit, as far as its folder tells: one that root has made, and no slice and no login.

Who sets a limit is root, and who asks for it is not: so this is asked here once more, whatever the agent has found out.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from gpuagent.core.memory_limits import LimitRefused

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MOST_BELOW = 256
_NAME_BYTES = 255
_LOGIN = re.compile(r"user@\d+\.service|session-[^/]*\.scope|user-\d+\.slice")
_SYSTEM = re.compile(
    r".*\.slice|init\.scope|kubepods[^/]*|pod[0-9a-f_-]+|docker|podman|libpod_parent|lxc|machine|kubelet|kubelet\.service"
    r"|slurm|uid_\d+|slurmstepd\.scope|slurmd\.service|docker\.service|containerd\.service"
)
"""Cgroups in which other people's containers, jobs and pods are made."""
_OWN_UNIT = "gpuagent.service"


class CgroupFolders:
    """Folders of cgroup version 2, below its root."""

    def __init__(self, root: str, owner_uid: int = 0) -> None:
        """Take another root and owner for tests."""
        self._root = Path(root)
        self._owner_uid = owner_uid

    def refusal(self) -> str:
        """Return why no cgroup of this machine can have a limit; "" if one can."""
        if (self._root / "cgroup.controllers").is_file():
            return ""
        return (
            f"memory limits need cgroup version 2 at {self._root}, and there is version 1, or both: boot with"
            " systemd.unified_cgroup_hierarchy=1"
        )

    def find(self, cgroup: str) -> Path:
        """Return the folder of a cgroup. Raises LimitRefused where it is none that may have a limit."""
        if refusal := self.refusal():
            raise LimitRefused(refusal)
        names = cgroup.split("/")[1:]
        if not cgroup.startswith("/") or not names or any(not _is_name(each) for each in names):
            raise LimitRefused(f"{cgroup or 'nothing'} is not the path of a cgroup")
        if login := next((each for each in names if _LOGIN.fullmatch(each)), ""):
            raise LimitRefused(f"{cgroup} is in {login}: a limit would hold for the whole login of a user")
        if _SYSTEM.fullmatch(names[-1]):
            raise LimitRefused(f"{cgroup} holds more than one service or container: a limit would hold for all of them")
        if _OWN_UNIT in names:
            raise LimitRefused(f"{cgroup} is gpuagent's own")
        folder = self._root
        try:
            for name in names:
                self._check_owner(folder)
                folder = folder / name
                if not stat.S_ISDIR(folder.lstat().st_mode):
                    raise LimitRefused(f"{folder} is no cgroup")
        except FileNotFoundError:
            raise LimitRefused(f"there is no cgroup {cgroup}") from None
        except OSError as error:
            raise LimitRefused(f"cgroup {cgroup} cannot be read: {error.strerror}") from None
        return folder

    def inode(self, cgroup: str) -> int | None:
        """Return the inode of a cgroup's folder; None where there is none. Raises LimitRefused if that is unknown."""
        try:
            return (self._root / cgroup.lstrip("/")).lstat().st_ino
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LimitRefused(f"cgroup {cgroup} cannot be read: {error.strerror}") from None

    def has(self, cgroup: str, inode: int) -> bool:
        """Return whether there is a cgroup of this path, and it is this one."""
        try:
            return self.inode(cgroup) == inode
        except LimitRefused:
            return False

    def path(self, cgroup: str) -> str:
        """Return the full path of a cgroup's folder, as the driver wants it."""
        return str(self._root / cgroup.lstrip("/"))

    def below(self, folder: Path) -> list[str]:
        """Return the folders of all cgroups inside of one. Raises LimitRefused where they cannot all be seen."""
        found: list[str] = []
        waiting = [str(folder)]
        try:
            while waiting:
                with os.scandir(waiting.pop()) as entries:
                    new = [each.path for each in entries if each.is_dir(follow_symlinks=False)]
                found += new
                waiting += new
                if len(found) > _MOST_BELOW:
                    raise LimitRefused(f"{folder} has more than {_MOST_BELOW} cgroups inside")
        except OSError as error:
            raise LimitRefused(f"{folder} cannot be read: {error.strerror}") from None
        return found

    def _check_owner(self, folder: Path) -> None:
        """Refuse a cgroup whose processes may be moved by others than root: who may write to those above it."""
        for path in (folder, folder / "cgroup.procs"):
            try:
                found = path.lstat()
            except FileNotFoundError:  # the root of the hierarchy of a test
                if path == folder:
                    raise
                continue
            if found.st_uid not in {0, self._owner_uid} or found.st_mode & _OTHERS_MAY_WRITE:
                raise LimitRefused(f"others than root may move processes out of it: {path} is not root's alone")


def _is_name(text: str) -> bool:
    return 0 < len(text.encode("utf-8", "surrogateescape")) <= _NAME_BYTES and text not in {".", ".."}
