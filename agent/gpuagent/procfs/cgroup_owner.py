"""Which names on a cgroup path only root can have chosen.

Whoever may create a cgroup chooses its name, and may move processes of their own into it: a user below their own
`user@1000.service`, the user of a unit with `Delegate=yes`, root inside a container. A name is a fact about a process
only if every directory above the cgroup that bears it belongs to root: then root, systemd or a container runtime made
it, and nobody else can move a process in (kernel documentation, "Control Group v2", section "Delegation Containment":
a move takes write access to `cgroup.procs` of the common ancestor too).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum

from gpuagent.procfs.cgroup import Level, Membership, containers_on, parse_cgroup, path_in

ROOT_UID = 0
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_HOST_LEVEL = re.compile(
    r".+\.slice|docker|libpod_parent|default|k8s\.io|garden|lxc(?:\.payload)?|"
    r"kubepods.*|burstable|besteffort|guaranteed|pod[0-9a-f_-]+|"
    r".*(?:docker|containerd|crio|garden|k3s|rke2|k0s|microk8s|kubelet).*\.service"
)
"""Levels that the host's own managers make above a container. Root inside a container that may write to its cgroup
(`writable-cgroups=true`) is uid 0 on the host as well, and can make a cgroup below its own with the name of another
container: the owner alone does not tell. Below any other level an id proves nothing."""
_SLURM_LEVEL = re.compile(r".+\.slice|slurm(?:_.+)?|(?:.+_)?slurmstepd\.scope|uid_\d+|system|job_\w+")
_UNIT_LEVEL = re.compile(r".+\.slice|.+\.service")

_MOST_SEARCHED = 4096
"""Cgroups in which the agent looks for itself, once."""

Owner = Callable[[Level], int | None]
"""Return the uid of whoever could have made a cgroup: 0 for root alone, None where that cannot be seen."""


class Name(StrEnum):
    """What a cgroup path says of a process."""

    UNIT = "unit"
    CONTAINER = "container"
    JOB = "job"
    POD = "pod"


class CgroupOwners:
    """Looks at the owners of cgroup directories below the mounted hierarchies.

    In a container with a cgroup namespace of its own the kernel gives paths relative to the agent's own cgroup. They
    are resolved where the host's hierarchy is mounted at `root`: then the agent finds itself in it.
    """

    def __init__(self, root: str = "/sys/fs/cgroup", proc: str = "/proc") -> None:
        """Take another `root` or `proc` for tests."""
        self._root = root
        self._proc = proc
        self._own: dict[str, tuple[str, ...] | None] = {}
        self._unified = ""
        for candidate in (root, f"{root}/unified"):  # version 2 alone, and beside version 1
            if os.path.exists(f"{candidate}/cgroup.controllers"):  # noqa: PTH110  a path that is joined at each look
                self._unified = candidate
                break

    def __call__(self, level: Level) -> int | None:
        """See `Owner`."""
        base = self._base(level.controllers)
        segments = self._absolute(level, base) if base else None
        if segments is None:
            return None
        path = base
        try:
            for name in segments:
                if (uid := _owner(path)) != ROOT_UID:
                    return uid
                path = f"{path}/{name}"
            os.lstat(path)
        except OSError:
            return None
        return ROOT_UID

    def _base(self, controllers: str) -> str:
        if not controllers:
            return self._unified
        for name in (controllers, controllers.removeprefix("name=")):
            if os.path.isdir(f"{self._root}/{name}"):  # noqa: PTH112
                return f"{self._root}/{name}"
        return ""

    def _absolute(self, level: Level, base: str) -> tuple[str, ...] | None:
        """Return the names from the root of the hierarchy on; None where that cannot be told.

        The host's init is never below the agent's cgroup: the `..` of its path tell how deep the agent's own root is.
        """
        init = self._path_of("1", level.controllers)
        if init is None or not init.above:
            return level.segments if not level.above else None
        if level.controllers not in self._own:
            self._own[level.controllers] = self._find_own(level.controllers, base)
        own = self._own[level.controllers]
        if own is None or len(own) != init.above or level.above > len(own):
            return None
        return own[: len(own) - level.above] + level.segments

    def _find_own(self, controllers: str, base: str) -> tuple[str, ...] | None:
        """Search the hierarchy for the root of the agent's own cgroup namespace, by the cgroup that lists its pid."""
        relative = self._path_of("self", controllers)
        if relative is None or relative.above:
            return None
        pid = str(os.getpid())
        for count, (folder, _, _) in enumerate(os.walk(base)):
            if count >= _MOST_SEARCHED:
                return None
            try:
                with open(f"{folder}/cgroup.procs", encoding="ascii") as file:  # noqa: PTH123
                    if pid not in file.read().split():
                        continue
            except OSError:  # it is gone, or threaded
                continue
            found = tuple(folder.removeprefix(base).strip("/").split("/"))
            depth = len(found) - len(relative.segments)
            return found[:depth] if depth > 0 and found[depth:] == relative.segments else None
        return None

    def _path_of(self, pid: str, controllers: str) -> Level | None:
        """Return where a process is in one hierarchy; None where that cannot be read."""
        try:
            with open(f"{self._proc}/{pid}/cgroup", "rb") as file:  # noqa: PTH123
                return path_in(file.read(), controllers)
        except OSError:
            return None


def read_membership(data: bytes, owner: Owner) -> tuple[Membership, frozenset[Name]]:
    """Parse /proc/<pid>/cgroup; return what it says, and which of that only root can have written.

    An id that somebody else is known to have chosen keeps its place in front, as in `uid-1000/77`: it can never be
    taken for one of another user's containers or jobs, nor add to their account.
    """
    membership = parse_cgroup(data)
    proven = set()
    if _is_proven(membership.unit_level, _UNIT_LEVEL, owner) and membership.unit_level is not None:
        unit_level = membership.unit_level
        # `user@1000.service/x.service`: the first is the system's, the second is named by that user.
        if sum(segment.endswith(".service") for segment in unit_level.segments) == 1:
            proven.add(Name.UNIT)
    if _is_proven(membership.pod_level, _HOST_LEVEL, owner):
        proven.add(Name.POD)
    podman = membership.container_runtime == "podman"
    above_container = re.compile(f"{_HOST_LEVEL.pattern}|.+\\.service") if podman else _HOST_LEVEL
    if _is_proven(membership.container_level, above_container, owner):
        proven.add(Name.CONTAINER)
    if _is_proven(membership.job_level, _SLURM_LEVEL, owner):
        proven.add(Name.JOB)
    return _marked(membership, owner), frozenset(proven)


def _is_proven(level: Level | None, above: re.Pattern[str], owner: Owner) -> bool:
    if level is None or containers_on(level.segments[:-1]):
        return False
    return all(above.fullmatch(segment) for segment in level.segments[:-1]) and owner(level) == ROOT_UID


def _marked(membership: Membership, owner: Owner) -> Membership:
    """Put the owner in front of ids that were chosen by somebody else than root."""
    changes: dict[str, str] = {}
    for name, level in (
        ("container_id", membership.container_level),
        ("slurm_job", membership.job_level),
        ("pod_uid", membership.pod_level),
    ):
        uid = owner(level) if level is not None else ROOT_UID
        if uid:
            changes[name] = f"uid-{uid}/{getattr(membership, name)}"
    return replace(membership, **changes) if changes else membership  # type: ignore[arg-type]


def _owner(path: str) -> int:
    """Return who may create a cgroup here or move one in: root, or the first other that is found."""
    for each in (path, f"{path}/cgroup.procs"):
        found = os.lstat(each)
        if found.st_uid != ROOT_UID:
            return found.st_uid
        if found.st_mode & _OTHERS_MAY_WRITE:
            return found.st_gid or 65534
    return ROOT_UID
