"""Find in which unit a process runs, by its cgroup: only root and systemd make the part of the path that is read."""

from __future__ import annotations

import re
from typing import NamedTuple

from gpuagent.procfs.cgroup import leaves, parse_cgroup
from gpuagent.procfs.files import ProcFiles, parse_stat, read_living
from gpuagent.procfs.hanging import HangingProcess
from gpuagent_alerts.remedies.facts.process_scan import GONE, UnseenProcesses

_TREES = ("", "name=systemd")
_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]{1,250}\.(service|scope)")
_USER_SLICE = re.compile(r"user-(\d+)\.slice")


class Place(NamedTuple):
    """Where systemd has put a process."""

    unit: str
    """The unit of the system's manager, "" for none."""
    user_id: int | None
    """The user in whose slice it is."""
    inner: str
    """The unit of the user's own manager, "" for none."""
    in_container: bool


def read_place(files: ProcFiles, pid: int) -> Place:
    """Return where a process is; nowhere, once it has ended. Raises UnseenProcesses."""
    try:
        stat = parse_stat(files.read(pid, "stat"))
        data = read_living(files, stat, lambda thread: thread.read("cgroup")) or b""
    except HangingProcess:
        data = _read_cgroup(files, pid)
    except GONE:
        return Place("", None, "", in_container=False)
    except (OSError, ValueError) as error:
        raise UnseenProcesses(f"in which unit pid {pid} runs cannot be read: {error}") from error
    return _place(data)


def _read_cgroup(files: ProcFiles, pid: int) -> bytes:
    """Return the cgroups of a process of which no more can be read. Raises UnseenProcesses."""
    try:
        return files.read(pid, "cgroup")
    except GONE:
        return b""
    except OSError as error:
        raise UnseenProcesses(f"in which unit pid {pid} runs cannot be read: {error}") from error


def _place(data: bytes) -> Place:
    trees = {each.controllers: each.segments for each in leaves(data)}
    path = next((trees[name] for name in _TREES if trees.get(name)), ())
    unit, rest, user_id = "", path, None
    for index, segment in enumerate(path):
        if found := _USER_SLICE.fullmatch(segment):
            user_id = int(found[1])
        if not segment.endswith(".slice"):
            unit, rest = (segment if _UNIT.fullmatch(segment) else ""), path[index + 1 :]
            break
    inner = next((each for each in rest if not each.endswith(".slice")), "") if unit else ""
    return Place(unit, user_id, inner, in_container=bool(parse_cgroup(data).container_id))
