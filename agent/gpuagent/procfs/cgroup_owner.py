"""Decide which names on a cgroup path only root can have chosen.

Whoever may create a cgroup chooses its name, and may move processes of their own into it: a user below their own
`user@1000.service`, the user of a unit with `Delegate=yes`, root inside a container. A name is a fact about a process
only if root, systemd or a container runtime of the host made the cgroup that bears it, and nobody else can move a
process in:

* Version 2: every cgroup above belongs to root. A move takes write access to `cgroup.procs` of the common ancestor too
  (kernel documentation, "Control Group v2", section "Delegation Containment"). A unit's own cgroup has to be root's as
  well: systemd moves a process of the user to whom a unit is delegated there when that user asks for it
  (`AttachProcessesToUnit`, org.freedesktop.systemd1(5)).
* Version 1 knows no common ancestor: every cgroup has to be root's, down to the one that the process is in. Below a job
  of Slurm's (`slurm/uid_N/job_J`) they may be user N's: Slurm gives the cgroup of a step to the user of the job, who
  can move in what is N's own (cgroup_procs_write_permission() in kernel/cgroup/cgroup-v1.c), and nobody else.
* Root of a sandbox is uid 0 on the host as well: so the way down to the name has to be one that a manager of the host
  makes, from its first level to its last, and lead through no container.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import lru_cache
from typing import Protocol

from gpuagent.procfs.cgroup import CgroupLevel, Membership, containers_on, leaves, parse_cgroup, path_in

ROOT_UID = 0
UNPROVEN = "unproven/"
"""Prefix of a name that is not proven, wherever it is shown or compared."""
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_SLICES = r"(?:[^/]+\.slice/)*"
_SERVICES = (
    r"(?:docker|snap\.docker\.dockerd|containerd|crio|cri-o|kubelet|k3s|k3s-agent|rke2-server|rke2-agent|k0scontroller"
    r"|k0sworker|garden|snap\.microk8s\.daemon-[a-z-]+)\.service/"
)
"""Managers of containers, by the names that their packages give their services. Root in any other service may sit in a
sandbox, and what stands below that service is its word: also `libpod-payload-<id>`, as podman makes it there."""
_FOLDERS = r"(?:docker|libpod_parent|default|k8s\.io|garden|lxc|lxc\.payload)/"
_KUBEPODS = (
    r"kubepods[^/]*/(?:[^/]*kubepods[^/]*\.slice/)*(?:(?:burstable|besteffort|guaranteed)/)?(?:pod[0-9a-f_-]+/)?"
)
_ABOVE_CONTAINER = rf"{_SLICES}(?:{_SERVICES})?(?:{_FOLDERS}|{_KUBEPODS})?"
_ABOVE_UNIT = re.compile(_SLICES)
_ABOVE_JOB = re.compile(rf"{_SLICES}(?:slurm(?:_[^/]+)?/(?:uid_\d+/)?|(?:[^/]+_)?slurmstepd\.scope/(?:system/)?)")
_UID_FOLDER = re.compile(r"uid_([0-9]{1,10})")
_SLURMD = re.compile(r"slurm(?:_[^/]+)?|(?:[^/]+_)?slurmstepd\.scope")
"""Cgroups of a slurmd, with the name of its node where Slurm was built with `--enable-multiple-slurmd` (Debian's)."""
_UNNAMED_SLURMD = frozenset({"slurm", "slurmstepd.scope"})


def above_container(further: Sequence[str] = ()) -> re.Pattern[str]:
    """Return what a path above a container looks like, every segment followed by a slash.

    `further` are cgroups in which root's managers make containers, or what is known to be above one: `/ecs/*`, where a
    `*` stands for any characters of one segment.
    """
    folders = (re.escape(f"{each.strip('/')}/").replace(r"\*", "[^/]*") for each in further)
    return re.compile(f"(?:{'|'.join(folders)})?{_ABOVE_CONTAINER}" if further else _ABOVE_CONTAINER)


ABOVE_CONTAINER = above_container()

_MOST_SEARCHED = 4096
"""Cgroups in which the agent looks for itself, once."""


class CgroupOwner(Protocol):
    """Test of who owns cgroups."""

    def __call__(self, level: CgroupLevel, *, whole: bool) -> bool | None:
        """Return whether root alone may write to every cgroup above, and to this one too if `whole`.

        None means that it cannot be seen, as where there is no such cgroup.
        """
        ...


class Name(StrEnum):
    """What a cgroup path says of a process."""

    UNIT = "unit"
    CONTAINER = "container"
    JOB = "job"
    POD = "pod"
    PLACE = "place"
    """No name: whether every cgroup that the process is in is root's down to the last, in every hierarchy. It has not
    moved there by itself, nor by its user's word."""


class CgroupOwners:
    """Test the owners of cgroup directories below the mounted hierarchies.

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

    def __call__(self, level: CgroupLevel, *, whole: bool) -> bool | None:
        """See `CgroupOwner`."""
        if not level.segments and not level.above:
            return True  # the root of a hierarchy
        base = self._base(level.controllers)
        segments = self._absolute(level, base) if base else None
        if segments is None:
            return None
        path = base
        try:
            for name in segments:
                if not _is_roots(path, level.controllers):
                    return False
                path = f"{path}/{name}"
            os.lstat(path)
            return not whole or _is_roots(path, level.controllers)
        except OSError:
            return None

    def belongs_to(self, level: CgroupLevel, last: int, uid: int) -> bool:
        """Return whether only root and this user may write to the last ones of the cgroups on a path."""
        segments = self.absolute(level)
        if segments is None:
            return False
        base = self._base(level.controllers)
        paths = ("/".join((base, *segments[:depth])) for depth in range(len(segments) - last + 1, len(segments) + 1))
        try:
            return all(_only_writes(each, uid) for path in paths for each in _written(path, level.controllers))
        except OSError:
            return False

    def has_others(self, level: CgroupLevel, kind: re.Pattern[str]) -> bool | None:
        """Return whether a cgroup beside this one has a name of its kind and cgroups in it; None if that is unseen."""
        segments = self.absolute(level)
        if not segments:
            return None
        folder = "/".join((self._base(level.controllers), *segments[:-1]))
        try:
            with os.scandir(folder) as entries:
                beside = [each.path for each in entries if kind.fullmatch(each.name) and each.name != segments[-1]]
            return any(map(_has_cgroups, beside))
        except OSError:
            return None

    def absolute(self, level: CgroupLevel) -> tuple[str, ...] | None:
        """Return the names from the root of the host's hierarchy on; None where they are unknown."""
        base = self._base(level.controllers)
        return self._absolute(level, base) if base else None

    def _base(self, controllers: str) -> str:
        if not controllers:
            return self._unified
        for name in (controllers, controllers.removeprefix("name=")):
            if os.path.isdir(f"{self._root}/{name}"):  # noqa: PTH112
                return f"{self._root}/{name}"
        return ""

    def _absolute(self, level: CgroupLevel, base: str) -> tuple[str, ...] | None:
        """Return the names from the root of the hierarchy on; None where that is unknown.

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

    def _path_of(self, pid: str, controllers: str) -> CgroupLevel | None:
        """Return where a process is in one hierarchy; None where that cannot be read."""
        try:
            with open(f"{self._proc}/{pid}/cgroup", "rb") as file:  # noqa: PTH123
                return path_in(file.read(), controllers)
        except OSError:
            return None


def read_membership(
    data: bytes, owner: CgroupOwner, above: re.Pattern[str] = ABOVE_CONTAINER
) -> tuple[Membership, frozenset[Name]]:
    """Parse /proc/<pid>/cgroup; return what it says, and which of that only root can have written.

    A name that is not proven has `unproven/` in front: it can never be taken for that of another's unit, container or
    job, nor add to its account. A unit of a user's own manager needs none where the manager is proven: it stands in
    front. `above` says where the host's managers make containers.
    """
    membership = parse_cgroup(data)
    tree_of = {leaf.controllers: leaf for leaf in leaves(data)}

    def is_proven(level: CgroupLevel | None, parents: re.Pattern[str], *, whole: bool = False) -> bool:
        if level is None or not _stands_below(level, owner, parents):
            return False
        return bool(owner(tree_of[level.controllers], whole=True) if level.controllers else owner(level, whole=whole))

    def is_job_of_its_user(level: CgroupLevel | None) -> bool:
        """Return whether a job of version 1 is root's, and what is below it is root's or that of the job's user."""
        if level is None or not level.controllers or not owner(level, whole=True):
            return False
        user = _UID_FOLDER.fullmatch(level.segments[-2]) if len(level.segments) > 1 else None
        belongs: Callable[[CgroupLevel, int, int], bool] | None = getattr(owner, "belongs_to", None)
        leaf = tree_of[level.controllers]
        return (
            user is not None
            and belongs is not None
            and _stands_below(level, owner, _ABOVE_JOB)
            and belongs(leaf, len(leaf.segments) - len(level.segments), int(user[1]))
        )

    found = {
        Name.UNIT: is_proven(membership.unit_level, _ABOVE_UNIT, whole=True),
        Name.CONTAINER: is_proven(membership.container_level, above),
        Name.POD: is_proven(membership.pod_level, above),
        Name.JOB: (is_proven(membership.job_level, _ABOVE_JOB) or is_job_of_its_user(membership.job_level))
        and _is_of_the_only_slurmd(membership.job_level, owner),
        Name.PLACE: bool(data) and all(owner(leaf, whole=True) for leaf in tree_of.values()),
    }
    proven = _proven(*(name for name, holds in found.items() if holds))
    manager = membership.manager_level
    return _marked(membership, proven, named_by_user=manager is not None and is_proven(manager, _ABOVE_UNIT)), proven


def _stands_below(level: CgroupLevel, owner: CgroupOwner, above: re.Pattern[str]) -> bool:
    """Return whether the way from the root of the host's hierarchy is one that its managers make.

    From inside a cgroup namespace /proc tells paths relative to the agent's own cgroup: root of its container could
    make any way below that. An owner without `absolute` tells of none.
    """
    absolute: Callable[[CgroupLevel], tuple[str, ...] | None] | None = getattr(owner, "absolute", None)
    parents = (level.segments if absolute is None else absolute(level) or ("..", ""))[:-1]
    return not containers_on(parents) and above.fullmatch("".join(f"{segment}/" for segment in parents)) is not None


def _is_of_the_only_slurmd(level: CgroupLevel | None, owner: CgroupOwner) -> bool:
    """Return whether no other slurmd of the node may have a job of the same number.

    One whose cgroup has no name of a node is the only one. An owner without `has_others` cannot tell of others.
    """
    segments = level.segments if level is not None else ()
    depth = next((index for index, each in enumerate(segments) if _SLURMD.fullmatch(each)), None)
    if level is None or depth is None or segments[depth] in _UNNAMED_SLURMD:
        return True
    has_others: Callable[[CgroupLevel, re.Pattern[str]], bool | None] | None = getattr(owner, "has_others", None)
    slurmd = level._replace(segments=segments[: depth + 1])
    return has_others is not None and has_others(slurmd, _SLURMD) is False


@lru_cache(maxsize=1 << len(Name))
def _proven(*names: Name) -> frozenset[Name]:
    """Return one set for all processes of which the same is proven."""
    return frozenset(names)


def _marked(membership: Membership, proven: frozenset[Name], *, named_by_user: bool) -> Membership:
    """Mark the names that are not proven."""
    names = {
        "unit": named_by_user or Name.UNIT in proven,
        "container_id": Name.CONTAINER in proven,
        "slurm_job": Name.JOB in proven,
        "pod_uid": Name.POD in proven,
    }
    changes = {
        field: f"{UNPROVEN}{name}"
        for field, holds in names.items()
        if (name := getattr(membership, field)) and not holds
    }
    return replace(membership, **changes) if changes else membership  # type: ignore[arg-type]


def _has_cgroups(path: str) -> bool:
    """Return whether there is a cgroup below this one; False for what is none. Raises OSError."""
    if not os.path.isdir(path):  # noqa: PTH112
        return False
    with os.scandir(path) as entries:
        return any(each.is_dir() for each in entries)


def _is_roots(path: str, controllers: str) -> bool:
    """Return whether root alone may create a cgroup here or move a process in. Raises OSError."""
    return all(map(_only_root_writes, _written(path, controllers)))


def _written(path: str, controllers: str) -> Iterator[str]:
    yield path
    yield f"{path}/cgroup.procs"
    if controllers:  # version 1: this moves threads, also the first of a process
        yield f"{path}/tasks"


def _only_root_writes(path: str) -> bool:
    return _only_writes(path, ROOT_UID)


def _only_writes(path: str, uid: int) -> bool:
    """Return whether root and this user alone may write here. Raises OSError."""
    found = os.lstat(path)
    return found.st_uid in {ROOT_UID, uid} and not found.st_mode & _OTHERS_MAY_WRITE
