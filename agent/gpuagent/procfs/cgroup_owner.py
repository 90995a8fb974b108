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

from gpuagent.procfs.cgroup import Level, Membership, containers_on, parse_cgroup

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

Owner = Callable[[Level], int | None]
"""Return the uid of whoever could have made a cgroup: 0 for root alone, None where that cannot be seen."""


class Name(StrEnum):
    """What a cgroup path says of a process."""

    UNIT = "unit"
    CONTAINER = "container"
    JOB = "job"
    POD = "pod"


class CgroupOwners:
    """Looks at the owners of cgroup directories below the mounted hierarchies."""

    def __init__(self, root: str = "/sys/fs/cgroup", init: str = "/proc/1/cgroup") -> None:
        """`init` tells how far above the reader's cgroup namespace the root of the hierarchy is."""
        self._root = root
        self._init = init
        self._unified = ""
        for candidate in (root, f"{root}/unified"):  # version 2 alone, and beside version 1
            if os.path.exists(f"{candidate}/cgroup.controllers"):  # noqa: PTH110  a path that is joined at each look
                self._unified = candidate
                break

    def __call__(self, level: Level) -> int | None:
        """See `Owner`."""
        base = self._base(level.controllers)
        if not base or level.above != self._levels_above(level.controllers):
            return None
        path = base
        try:
            for name in level.segments:
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

    def _levels_above(self, controllers: str) -> int:
        """Levels from the root of the reader's cgroup namespace up to that of the hierarchy, where init is below."""
        try:
            with open(self._init, "rb") as file:  # noqa: PTH123
                lines = file.read().split(b"\n")
        except OSError:
            return 0
        for line in lines:
            _, _, rest = line.partition(b":")
            found, _, path = rest.partition(b":")
            if found == controllers.encode():
                return path.split(b"/").count(b"..")
        return 0


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
