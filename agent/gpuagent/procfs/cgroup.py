"""Read what the cgroup of a process says of it (unit, container, pod, Slurm job), and who is in a unit's cgroup.

Nothing is asked of a container runtime: the path is enough, needs no socket and no right, and is
still there when the runtime hangs. The names come from the runtimes' own sources:

* systemd driver, `<prefix>-<id>.scope`: opencontainers/runc `libcontainer/cgroups/systemd`
  (prefixes docker, cri-containerd, crio, libpod, nerdctl), cgroupfs driver: `<parent>/<id>`;
* kubepods: kubernetes `pkg/kubelet/cm/cgroup_manager_linux.go` (`-` of a uid becomes `_` under
  systemd);
* units: systemd `src/basic/cgroup-util.c` (`cg_path_get_unit`, `cg_path_get_user_unit`);
* Slurm: https://slurm.schedmd.com/cgroup_v2.html, and `/slurm/uid_<n>/job_<n>` for version 1.

systemd tracks its units in version 2 where it is mounted for it (unified and hybrid set-ups), else in a version 1
hierarchy without controllers that is named `systemd` (https://systemd.io/CGROUP_DELEGATION).
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from gpuagent.procfs.files import decode, printable

PATH_LIMIT_BYTES = 512
_NAME_LIMIT_BYTES = 255

_ID = r"[0-9a-f]{64}"
_RUNTIMES = {
    "docker": "docker",
    "cri-containerd": "containerd",
    "nerdctl": "containerd",
    "crio": "cri-o",
    "libpod": "podman",
    "libpod-payload": "podman",
}
_WITHOUT_IDS = frozenset({"garden", "lxc", "libvirt-lxc", "systemd-nspawn"})
"""Runtimes whose containers have a name, or what their caller chose, in the place of an id of 64 digits."""
_PARENTS = {
    "docker": "docker",
    "libpod_parent": "podman",
    "default": "containerd",
    "k8s.io": "containerd",
    "garden": "garden",
}
# "libpod-conmon-<id>" and "crio-conmon-<id>" hold the monitor of a container, which stays outside
# of it.
_PREFIXED = re.compile(rf"({'|'.join(_RUNTIMES)})-({_ID})(?:\.scope)?")
# runc's cgroupfs driver given a path of the systemd driver:
# "kubepods-pod<uid>.slice:cri-containerd:<id>".
_COLONS = re.compile(rf"(.+):({'|'.join(_RUNTIMES)}):({_ID})")
_BARE = re.compile(rf"{_ID}|[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{4}}")  # the second: Cloud Foundry's garden
_LXC_FOLDERS = frozenset({"lxc", "lxc.payload"})
_LXC = re.compile(r"lxc\.payload\.(.+)")
_MACHINE = re.compile(r"machine-(.+)\.scope|systemd-nspawn@(.+)\.service")
_POD = re.compile(r"(?:.*-)?pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?")
_SERVICE = re.compile(r"[\w:.\\@-]+\.service", re.ASCII)
_USER_MANAGER = re.compile(r"user@\d+\.service")
_SLURM = re.compile(r"slurm(?:_.+)?|(?:.+_)?slurmstepd\.scope")
_SLURM_JOB = re.compile(r"job_(\w+)", re.ASCII)


class CgroupLevel(NamedTuple):
    """One cgroup on the way from the root of a hierarchy to a process: the one whose name says something."""

    controllers: str
    """The hierarchy as /proc/<pid>/cgroup names it: "" for version 2, "name=systemd" or "memory" for version 1."""
    above: int
    """Leading `..` of the path: levels above the root of the reader's cgroup namespace."""
    segments: tuple[str, ...]
    """Names from the root down to this cgroup, unescaped and whole."""


@dataclass(frozen=True, slots=True)
class Membership:
    """Where a process belongs; "" is "not in one".

    These are names, and whoever may create a cgroup chooses its name: `gpuagent.procfs.cgroup_owner` tells which of
    them only root can have chosen, by the levels given here.
    """

    path: str = ""
    unit: str = ""
    """A service that systemd can restart. One of a user's own manager keeps that manager in front,
    as in "user@1000.service/jupyter.service": anyone may name such a unit like one of the system's.
    Scopes (login sessions, containers) and slices are no units here: nobody restarts them."""
    container_id: str = ""
    """64 hexadecimal digits for runtimes that make ids (docker, containerd, cri-o, podman), whose ids are one space.
    Others have names, which may be spelled like anything: they stand behind their runtime, as in "lxc/web"."""
    container_runtime: str = ""
    pod_uid: str = ""
    slurm_job: str = ""
    manager_level: CgroupLevel | None = field(default=None, compare=False)
    """That of the user's own manager which names the unit."""
    unit_level: CgroupLevel | None = field(default=None, compare=False)
    container_level: CgroupLevel | None = field(default=None, compare=False)
    pod_level: CgroupLevel | None = field(default=None, compare=False)
    job_level: CgroupLevel | None = field(default=None, compare=False)


class _Path(NamedTuple):
    """A line of /proc/<pid>/cgroup."""

    controllers: str
    above: int
    segments: list[str]

    def level(self, index: int) -> CgroupLevel:
        """Return the cgroup at a segment."""
        return CgroupLevel(self.controllers, self.above, tuple(self.segments[: index + 1]))


_NOWHERE = _Path("", 0, [])


def parse_cgroup(data: bytes) -> Membership:
    """Read /proc/<pid>/cgroup of version 1, 2 or both; lines that are none are skipped."""
    paths = _paths(data)
    # On a host with both versions systemd keeps its own tree twice, or leaves the one of version 2 empty.
    trees = [paths[name] for name in ("", "name=systemd") if name in paths and paths[name].segments]
    tree = trees[0] if trees else _NOWHERE
    ordered = [tree, *(path for path in paths.values() if path is not tree)]
    runtime, container_id, container_level = next(filter(None, map(_container, ordered)), ("", "", None))
    # A unit in front of a container is the runtime's own, but with podman ("--cgroups=split", as quadlets do it) the
    # one that runs the container; a unit behind it belongs to a systemd inside.
    supervised = not container_id or runtime == "podman"
    unit, unit_level, manager_level = _unit(tree) if supervised else ("", None, None)
    pod_uid, pod_level = next(filter(None, map(_pod_uid, ordered)), ("", None))
    slurm_job, job_level = next(filter(None, map(_slurm_job, ordered)), ("", None))
    return Membership(
        path=_text(next((path.segments for path in ordered if path.segments), [])) if paths else "",
        unit=unit,
        container_id=container_id,
        container_runtime=runtime,
        pod_uid=pod_uid,
        slurm_job=slurm_job,
        manager_level=manager_level,
        unit_level=unit_level,
        container_level=container_level,
        pod_level=pod_level,
        job_level=job_level,
    )


def path_in(data: bytes, controllers: str) -> CgroupLevel | None:
    """Return the cgroup that /proc/<pid>/cgroup names for one hierarchy; None where it has no such line."""
    path = _paths(data).get(controllers)
    return None if path is None else CgroupLevel(controllers, path.above, tuple(path.segments))


def leaves(data: bytes) -> tuple[CgroupLevel, ...]:
    """Return the cgroup that the process is in, in every hierarchy of /proc/<pid>/cgroup."""
    return tuple(CgroupLevel(each.controllers, each.above, tuple(each.segments)) for each in _paths(data).values())


def _paths(data: bytes) -> dict[str, _Path]:
    """Split the file into its hierarchies."""
    paths: dict[str, _Path] = {}
    for line in decode(data).split("\n"):
        _, first, rest = line.partition(":")
        controllers, second, path = rest.partition(":")
        if first and second:
            paths[controllers] = _path(controllers, path)
    return paths


def containers_on(segments: tuple[str, ...]) -> int:
    """Count the containers that a path leads through."""
    return sum(bool(_container_here(each, segments[i - 1] if i else "")[1]) for i, each in enumerate(segments))


def container_levels(data: bytes) -> frozenset[CgroupLevel]:
    """Return every cgroup on the ways of /proc/<pid>/cgroup, in all hierarchies, that has the name of a container."""
    return frozenset(
        path.level(index)
        for path in _paths(data).values()
        for index, segment in enumerate(path.segments)
        if _container_here(segment, path.segments[index - 1] if index else "")[1]
    )


def _path(controllers: str, path: str) -> _Path:
    """Split a path; leading `..` lead out of the cgroup namespace of the reader."""
    parts = [part for part in path.removesuffix(" (deleted)").split("/") if part not in {"", "."}]
    above = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    return _Path(controllers, above, [part for part in parts if part != ".."])


def _text(segments: list[str]) -> str:
    return printable("/" + "/".join(segments), PATH_LIMIT_BYTES)


def _container(path: _Path) -> tuple[str, str, CgroupLevel] | None:
    """Return the runtime and id of the innermost container: in Kubernetes in Docker, that of the pod."""
    segments = path.segments
    for index in range(len(segments) - 1, -1, -1):
        parent = segments[index - 1] if index else ""
        runtime, container_id = _container_here(segments[index], parent)
        if container_id:
            whole = f"{runtime}/{container_id}" if runtime in _WITHOUT_IDS else container_id
            return runtime, printable(whole, _NAME_LIMIT_BYTES), path.level(index)
    return None


def _container_here(segment: str, parent: str) -> tuple[str, str]:
    if parent in _LXC_FOLDERS:  # first: here a container may be called "docker-<id>.scope", or like an id
        return "lxc", segment
    if found := _PREFIXED.fullmatch(segment):
        return _RUNTIMES[found[1]], found[2]
    if found := _COLONS.fullmatch(segment):
        return _RUNTIMES[found[2]], found[3]
    if _BARE.fullmatch(segment) and ("-" not in segment or parent == "garden"):
        return _PARENTS.get(parent, ""), segment
    return _system_container(segment)


def _system_container(segment: str) -> tuple[str, str]:
    """Find containers that hold a whole system and have a name for an id."""
    if found := _LXC.fullmatch(segment):
        return "lxc", found[1]
    if found := _MACHINE.fullmatch(segment):
        return _machine(_unescaped(found[1] or found[2]))
    return "", ""


def _machine(name: str) -> tuple[str, str]:
    """Tell containers from libvirt's virtual machines, which systemd-machined knows as well."""
    if name.startswith("qemu-"):
        return "", ""
    return ("libvirt-lxc" if name.startswith("lxc-") else "systemd-nspawn"), name


def _unescaped(name: str) -> str:
    r"""Undo systemd's escapes of the kind \x2d."""
    return re.sub(r"\\x([0-9a-f]{2})", lambda found: chr(int(found[1], 16)), name)


def _pod_uid(path: _Path) -> tuple[str, CgroupLevel] | None:
    """Return the uid of the innermost pod; that of a static pod is a hash without dashes."""
    segments = path.segments
    for index in range(len(segments) - 1, -1, -1):
        if not any("kubepods" in segment for segment in segments[: index + 1]):
            return None
        colons = _COLONS.fullmatch(segments[index])
        if found := _POD.fullmatch(colons[1] if colons else segments[index]):
            return found[1].replace("_", "-"), path.level(index)
    return None


def _unit(path: _Path) -> tuple[str, CgroupLevel | None, CgroupLevel | None]:
    """Take what systemd takes, the first part behind the slices: further in, names are anyone's.

    Return the unit, its cgroup, and that of the user's manager which named it.
    """
    index = _first_service(path.segments, 0)
    if index is None:
        return "", None, None
    service = path.segments[index]
    if not _USER_MANAGER.fullmatch(service):
        return service, path.level(index), None
    inner = _first_service(path.segments, index + 1)
    if inner is None:
        return "", None, None
    return f"{service}/{path.segments[inner]}", path.level(inner), path.level(index)


def _first_service(segments: list[str], start: int) -> int | None:
    for index in range(start, len(segments)):
        segment = segments[index]
        if segment.endswith(".slice"):
            continue
        return index if len(segment) <= _NAME_LIMIT_BYTES and _SERVICE.fullmatch(segment) else None
    return None


def _slurm_job(path: _Path) -> tuple[str, CgroupLevel] | None:
    below = False
    for index, segment in enumerate(path.segments):
        if below and (found := _SLURM_JOB.fullmatch(segment)):
            return printable(found[1], _NAME_LIMIT_BYTES), path.level(index)
        below = below or _SLURM.fullmatch(segment) is not None
    return None


MOST_PROCESSES = 4096
MOST_CGROUPS = 1024
_LONGEST_LINE = len("4194304\n")  # PID_MAX_LIMIT, include/linux/threads.h
_OCTAL = re.compile(r"\\([0-7]{3})")
_VANISHED = frozenset({errno.ENOENT, errno.ENODEV})
"""What reading a cgroup that was removed meanwhile fails with: before and after its file was opened."""


class UnreadableTree(Exception):
    """The processes of a cgroup cannot be listed, or are too many to look at."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A mounted cgroup hierarchy."""

    root: Path
    controllers: str
    """The second field of its line in /proc/<pid>/cgroup: "" for version 2, or "name=systemd"."""

    def folder(self, cgroup: str) -> Path:
        """Return the folder of a cgroup, which is named by its path from the root, as in `/system.slice/a.service`."""
        return self.root / cgroup.lstrip("/")


def systemd_hierarchies(mountinfo: bytes) -> tuple[Hierarchy, ...]:
    """Read /proc/<pid>/mountinfo, and return the hierarchies that systemd may use, version 2 first.

    A mount that shows a part of a hierarchy only is left out: paths in /proc/<pid>/cgroup begin at the root.
    """
    found = []
    for line in os.fsdecode(mountinfo).split("\n"):
        mount, _, file_system = line.partition(" - ")
        fields, kind = mount.split(" "), file_system.split(" ")
        if len(fields) < 6 or len(kind) < 3 or fields[3] != "/":  # proc_pid_mountinfo(5)
            continue
        root = Path(_OCTAL.sub(lambda octal: chr(int(octal[1], 8)), fields[4]))
        if kind[0] == "cgroup2":
            found.append(Hierarchy(root, ""))
        elif kind[0] == "cgroup" and "name=systemd" in kind[2].split(","):
            found.append(Hierarchy(root, "name=systemd"))
    return tuple(sorted(found, key=lambda hierarchy: hierarchy.controllers))


def version_1_roots(mountinfo: bytes, controller: str) -> tuple[Path, ...]:
    """Read /proc/<pid>/mountinfo, and return where hierarchies of version 1 with this controller are mounted whole."""
    found = []
    for line in os.fsdecode(mountinfo).split("\n"):
        mount, _, file_system = line.partition(" - ")
        fields, kind = mount.split(" "), file_system.split(" ")
        is_whole = len(fields) > 4 and fields[3] == "/"
        if is_whole and len(kind) > 2 and kind[0] == "cgroup" and controller in kind[2].split(","):
            found.append(Path(_OCTAL.sub(lambda octal: chr(int(octal[1], 8)), fields[4])))
    return tuple(found)


def path_in_hierarchy(data: bytes, controllers: str) -> str | None:
    """Return the path of a process in one hierarchy from its /proc/<pid>/cgroup; None where it has none."""
    for line in os.fsdecode(data).split("\n"):
        _, _, rest = line.partition(":")
        names, colon, path = rest.partition(":")
        if colon and names == controllers:
            return path
    return None


def is_below(path: str, cgroup: str) -> bool:
    """Return whether a path is that of the cgroup or of one inside of it. Nothing counts as below the root."""
    return len(cgroup) > 1 and (path == cgroup or path.startswith(f"{cgroup}/"))


def processes_in(folder: Path) -> frozenset[int]:
    """List the processes of a cgroup and of all cgroups inside of it.

    A process that moves from one to another meanwhile may be missed. Raises UnreadableTree.
    """
    found: set[int] = set()
    waiting, seen = [folder], 0
    while waiting:
        current, seen = waiting.pop(), seen + 1
        if seen > MOST_CGROUPS:
            raise UnreadableTree(f"it has more than {MOST_CGROUPS} cgroups")
        try:
            found |= _listed_in(current)
            with os.scandir(current) as entries:
                waiting += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            if error.errno in _VANISHED and current != folder:
                continue
            raise UnreadableTree(f"{current}: {error.strerror}") from error
        if len(found) > MOST_PROCESSES:
            raise UnreadableTree(f"it has more than {MOST_PROCESSES} processes")
    return frozenset(found)


def _listed_in(folder: Path) -> set[int]:
    """Read a list in which 0 is a process of a namespace outside of the reader's: of that one nothing can be known."""
    limit = (MOST_PROCESSES + 1) * _LONGEST_LINE
    with (folder / "cgroup.procs").open("rb") as file:
        text = file.read(limit + 1)
    words = text.split()
    if len(text) > limit:
        raise UnreadableTree(f"it has more than {MOST_PROCESSES} processes")
    if not all(word.isdigit() and int(word) for word in words):
        raise UnreadableTree("it has processes that cannot be seen from this pid namespace")
    return {int(word) for word in words}
