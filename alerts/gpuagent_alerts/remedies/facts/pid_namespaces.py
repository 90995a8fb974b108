"""Find who is in a pid namespace, and so ends with its first process.

When the first process of a pid namespace ends, the kernel kills everybody in it and in those below it, whoever they are
(pid_namespaces(7)): also those of another user or another container that were started into it (setns(2), a shared pid
namespace). The links `ns/pid` show who is in it, and need the right to trace a process. `status` may be read by
everybody: it has the pid in each namespace (`NSpid`) and the parent. A child is in its parent's namespace or in one
below it, and setns(2) leads only downwards. So whoever has a parent in the namespace is in it, and whoever has an
ancestor in another namespace of the same depth is not. That leaves those whose parent is further up: they have been
started into one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from gpuagent.procfs.files import ProcFiles, living_thread, parse_stat
from gpuagent_alerts.remedies.facts.process_scan import ProcessRow, ProcessScan


def ended_with_init(
    scan: ProcessScan, files: ProcFiles, proven_container: Callable[[int], str], init: ProcessRow
) -> dict[int, bool]:
    """Return everybody who ends together with `init`, the first process of a pid namespace.

    The value is False for one that only may be in there. `proven_container` returns the id of a container that root
    has named, "" for none.
    """
    depth = len(init.namespace_pids)
    found = {row.pid: row for row in scan.rows.values() if len(row.namespace_pids) >= depth}
    namespace = _Namespace(files, proven_container, found, init.pid, depth)
    inside = {pid: namespace.has(pid) for pid in found if pid != init.pid}
    return {pid: bool(is_inside) for pid, is_inside in inside.items() if is_inside is not False}


class _Namespace:
    def __init__(
        self,
        files: ProcFiles,
        proven_container: Callable[[int], str],
        found: Mapping[int, ProcessRow],
        init_pid: int,
        depth: int,
    ) -> None:
        self._files = files
        self._proven_container = proven_container
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
            if self._found[ancestor].namespace_pids[self._depth - 1] == 1:
                return False
            pid = ancestor
        # Its parent is above the namespaces of this depth: it was started into one of them.
        if len(self._found[pid].namespace_pids) == self._depth and self._link and (link := self._namespace_link(pid)):
            return link == self._link
        # Container runtimes start a process into the namespace of its own container: where that container has one,
        # it is there. Only root gives a container its proven name.
        return False if self._proven_container(pid) in self._containers_of_other_namespaces() else None

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
            inits = (pid for pid, each in self._found.items() if each.namespace_pids[self._depth - 1] == 1)
            containers = {self._proven_container(pid) for pid in inits if pid != self._init_pid}
            self._other_containers = frozenset(containers - {""})
        return self._other_containers
