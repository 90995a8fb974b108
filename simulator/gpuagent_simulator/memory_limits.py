"""Memory limits that the driver keeps for cgroups: what is beyond one is refused to the processes in it alone.

As without the kernel's dmem controller: a process goes by the nearest cgroup that has a limit, its own or one above.
What a process held before its limit was set stays, however low the limit is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from gpuagent_simulator.process import Process

NO_LIMIT_BYTES = 2**64 - 1
_ROOT = "/sys/fs/cgroup"


class CgroupLimit(NamedTuple):
    """A limit of one cgroup on one GPU."""

    soft_bytes: int
    hard_bytes: int


class CgroupLimits:
    """The limits of one GPU, by the folder of their cgroup."""

    def __init__(self, root: str = _ROOT) -> None:
        self.root = root
        """Folder of the root cgroup: tests have others."""
        self._limits: dict[str, CgroupLimit] = {}
        self._kept: dict[str, dict[int, int]] = {}
        """What each process held when the limit of its cgroup was set, by the object's id."""
        self.version = 0
        """Grows whenever a limit is set or taken off."""

    def set(self, folder: str, limit: CgroupLimit, held: Iterable[tuple[Process, int]]) -> None:
        """Set a limit, or take it off where it is none; `held` is what all processes of the GPU hold."""
        self._limits.pop(folder, None)
        self._kept.pop(folder, None)
        if limit.soft_bytes or limit.hard_bytes != NO_LIMIT_BYTES:
            self._limits[folder] = limit
            self._kept[folder] = {id(process): used for process, used in held if self._is_in(process, folder)}
        self.version += 1

    def nearest(self, folder: str) -> tuple[str, CgroupLimit] | None:
        """Return the cgroup whose limit holds for this one, and the limit; None where there is none."""
        while folder and folder not in self._limits:
            folder = folder.rpartition("/")[0]
        return (folder, self._limits[folder]) if folder else None

    def used_bytes(self, folder: str, held: Iterable[tuple[Process, int]]) -> int:
        """Return what the processes in a cgroup and below hold."""
        return sum(used for process, used in held if self._is_in(process, folder))

    def rooms(self, processes: Sequence[Process]) -> Callable[[Process, int], int]:
        """Return what gives each process in turn as much of what it wants as its limit permits."""
        if not self._limits:
            return lambda _, wanted: wanted
        holds = {id(each): self.nearest(self._folder(each)) for each in processes}
        given: dict[str, int] = {}
        waiting: dict[str, int] = {}
        for each in processes:
            if (found := holds[id(each)]) is not None:
                waiting[found[0]] = waiting.get(found[0], 0) + self._kept[found[0]].get(id(each), 0)

        def give(process: Process, wanted: int) -> int:
            found = holds.get(id(process))
            if found is None:
                return wanted
            folder, limit = found
            kept = min(self._kept[folder].get(id(process), 0), wanted)
            waiting[folder] -= self._kept[folder].get(id(process), 0)
            room = limit.hard_bytes - given.get(folder, 0) - waiting[folder]
            got = max(kept, min(wanted, room), 0)
            given[folder] = given.get(folder, 0) + got
            return got

        return give

    def _is_in(self, process: Process, folder: str) -> bool:
        return f"{self._folder(process)}/".startswith(f"{folder}/")

    def _folder(self, process: Process) -> str:
        return f"{self.root}{process.cgroup_path()}"
