"""Find the processes that end together with the first process of a pid namespace.

When it ends, the kernel kills everybody in the namespace and in those below it, whoever they are (pid_namespaces(7)):
also those of another user or another container that were started into it (setns(2), a shared pid namespace).

The links `ns/pid` show who is in it, and need the right to trace a process. `status` may be read by everybody: it has
the pid in each namespace (`NSpid`) and the parent. A child is in its parent's namespace or in one below it, and
setns(2) leads only downwards. So whoever has a parent in the namespace is in it, and whoever has an ancestor in another
namespace of the same depth is not. That leaves those whose parent is further up: they have been started into one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gpuagent.acting.members import Reader, read_member
from gpuagent.acting.never_entries import NOTHING, NeverLook
from gpuagent.procfs.files import ProcFiles
from gpuagent.procfs.living import living_thread
from gpuagent.procfs.stat import parse_stat, parse_status
from gpuagent.reading import ProcessInfo
from gpuagent_alerts.remedies.target import MAX_NAMESPACE_MEMBERS, NamespaceMember

_HOST_INIT = 1
_NAMESPACE_PIDS = re.compile(rb"^NSpid:([0-9\t ]+)$", re.MULTILINE)


class _Process(NamedTuple):
    parent_pid: int
    pids: tuple[int, ...]
    """Its pid in each namespace, from the host's inwards."""


def list_pids(root: str = "/proc") -> list[int]:
    """Return the pids that /proc lists. Raises OSError."""
    return [int(folder.name) for folder in Path(root).iterdir() if folder.name.isdigit()]


class NamespaceScan:
    """All living processes that are in a pid namespace below the host's, as they were at one look."""

    def __init__(
        self,
        files: ProcFiles,
        reader: Reader,
        pids: Callable[[], Iterable[int]] = list_pids,
        never: NeverLook = NOTHING,
    ) -> None:
        """Read them; `never` knows the operator's entries of the never-list."""
        self._never = never
        self._files = files
        self._reader = reader
        self._found: dict[int, _Process] | None = None
        with suppress(OSError, ValueError):
            self._found = _read_all(files, pids())

    def members(self, init: ProcessInfo, depth: int) -> tuple[NamespaceMember, ...] | None:
        """Return everybody who ends together with `init`, the first process of a pid namespace.

        `depth` is the length of the init's `NSpid`. None means that not every process can be seen. It ends with the
        first beyond `MAX_NAMESPACE_MEMBERS`.
        """
        if self._found is None:
            return None
        found = {pid: each for pid, each in self._found.items() if len(each.pids) >= depth}
        if init.id.pid not in found:
            return None
        namespace = _Namespace(self._files, self._reader, found, init.id.pid, depth)
        members = []
        for pid in sorted(found):
            if pid == init.id.pid or (is_inside := namespace.has(pid)) is False:
                continue
            try:
                member = read_member(self._files, self._reader, pid, init, certain=bool(is_inside), never=self._never)
            except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                continue
            except (OSError, ValueError):
                return None
            members.append(member)
            if len(members) > MAX_NAMESPACE_MEMBERS:
                break
        return tuple(members)


class _Namespace:
    def __init__(
        self, files: ProcFiles, reader: Reader, found: Mapping[int, _Process], init_pid: int, depth: int
    ) -> None:
        self._files = files
        self._reader = reader
        self._found = found
        self._init_pid = init_pid
        self._depth = depth
        self._link = self._namespace_link(init_pid)
        self._other_containers: frozenset[str] | None = None

    def has(self, pid: int) -> bool | None:
        """Return whether the process is in the namespace or in one below it; None where that cannot be seen."""
        for ancestor in self._line(pid):
            if ancestor == self._init_pid:
                return True
            if self._found[ancestor].pids[self._depth - 1] == 1:
                return False
            pid = ancestor
        # Its parent is above the namespaces of this depth: it was started into one of them.
        if len(self._found[pid].pids) == self._depth and self._link and (link := self._namespace_link(pid)):
            return link == self._link
        # Container runtimes start a process into the namespace of its own container: where that container has one,
        # it is there. Only root gives a container its proven name.
        return False if self._reader.proven_container(pid) in self._containers_of_other_namespaces() else None

    def _line(self, pid: int) -> Iterator[int]:
        """Yield the process and its ancestors that are at least as deep; each once, also where a pid was reused."""
        met: set[int] = set()
        while pid in self._found and pid not in met:
            met.add(pid)
            yield pid
            pid = self._found[pid].parent_pid

    def _namespace_link(self, pid: int) -> str:
        try:
            thread = living_thread(self._files, parse_stat(self._files.read(pid, "stat")))
            return thread.link("ns/pid") if thread else ""
        except (OSError, ValueError):
            return ""

    def _containers_of_other_namespaces(self) -> frozenset[str]:
        if self._other_containers is None:
            inits = (pid for pid, each in self._found.items() if each.pids[self._depth - 1] == 1)
            containers = {self._reader.proven_container(pid) for pid in inits if pid != self._init_pid}
            self._other_containers = frozenset(containers - {""})
        return self._other_containers


def _read_all(files: ProcFiles, pids: Iterable[int]) -> dict[int, _Process] | None:
    """Read every living process below the host's namespace; None where /proc hides some (hidepid in proc(5))."""
    found: dict[int, _Process] = {}
    everybody_is_seen = False
    for pid in pids:
        try:
            status = files.read(pid, "status")
        except (FileNotFoundError, ProcessLookupError):
            continue
        everybody_is_seen = everybody_is_seen or pid == _HOST_INIT
        line = _NAMESPACE_PIDS.search(status)
        if line is not None and len(line[1].split()) == 1:  # most of a machine's processes: no more to parse
            continue
        told, lines = parse_status(status), _lines(status)
        if not told.namespace_pids or not told.uids:
            return None
        if lines[b"State"][:1] in b"ZX" and int(lines[b"Threads"]) <= 1:
            continue
        found[pid] = _Process(int(lines[b"PPid"]), told.namespace_pids)
    return found if everybody_is_seen else None


def _lines(status: bytes) -> dict[bytes, bytes]:
    """Return the lines that are needed. Raises ValueError where one is missing."""
    found: dict[bytes, bytes] = {}
    for line in status.split(b"\n"):
        key, _, value = line.partition(b":")
        if key in {b"State", b"Threads", b"PPid"}:
            found.setdefault(key, value.strip())
    if len(found) != 3 or not found[b"State"]:
        raise ValueError("not a status file of a process")
    return found
