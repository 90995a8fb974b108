"""Growth of a unit or container by ever more processes, each of which holds as much as at its start.

No detector of one process sees that. So the sum of what the processes of one owner hold on a GPU is judged as well, by
the strict criterion: a pool that grows to its size takes less, or is done within minutes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from gpuagent.core.growth import Growth, MemoryKey, Verdict, shifted
from gpuagent.core.identity import NO_INSTANCE
from gpuagent.core.snapshot import ProcessReading, ProcessState
from gpuagent_alerts.leak.detector import MemoryLeakDetector
from gpuagent_alerts.leak.device import GrowingPart, MemoryPool

LEAST_PROCESSES: Final = 4
"""Fewer are few enough for each to be looked at."""
MORE: Final = 2
"""Times as many processes as there were at the fewest: memory that does not come with processes is no such growth."""
MOST_GROUPS: Final = 16
"""Owners that are watched on one GPU; the first that come."""
SPACING_SECONDS: Final = 5.0
_SERVICE: Final = ".service"


@dataclass(slots=True)
class _Group:
    """The sum of one owner's processes on a GPU."""

    detector: MemoryLeakDetector
    fewest: int
    said: Growth = field(default_factory=lambda: Growth(Verdict.LEARNING))


class GroupWatch:
    """Owners of several processes on one GPU; what is in MIG instances is left out."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._next_seconds = 0.0
        self._parts: list[GrowingPart] = []

    def observe(
        self,
        processes: Iterable[ProcessReading],
        pool: MemoryPool | None,
        growing: Collection[MemoryKey],
        time: float,
        to_unix_seconds: float,
    ) -> list[GrowingPart]:
        """Return the groups that grow by their number; the same list as before between two looks.

        `growing` are processes that grow by themselves: their group's growth is theirs. `to_unix_seconds` leads from
        the time of readings to Unix time.
        """
        if time < self._next_seconds or pool is None:
            return self._parts
        self._next_seconds = time + SPACING_SECONDS
        members = _by_owner(processes)
        for owner in self._groups.keys() - members.keys():
            del self._groups[owner]
        parts = []
        for owner, those in members.items():
            group = self._groups.get(owner)
            if group is None:
                if len(those) < MORE or len(self._groups) >= MOST_GROUPS:
                    continue
                detector = MemoryLeakDetector(total_bytes=pool.total_bytes, started_seconds=time, sensitivity="strict")
                group = self._groups[owner] = _Group(detector, len(those))
            group.fewest = min(group.fewest, len(those))
            used = sum(one.used_bytes or 0 for one in those)
            group.said = group.detector.update(time, used, pool.free_bytes)
            has_more = len(those) >= max(LEAST_PROCESSES, MORE * group.fewest)
            if group.said.verdict is Verdict.LEAKING and has_more and not any(one.key in growing for one in those):
                parts.append(_part(f"{len(those)} processes of {owner}", group.said, to_unix_seconds))
        self._parts = parts
        return parts


def _part(words: str, said: Growth, to_unix_seconds: float) -> GrowingPart:
    """Return it as growth, and no leak: nothing in the group leaks by itself."""
    growth = replace(
        shifted(said, to_unix_seconds), verdict=Verdict.GROWING, evidence=None, confirmed=False, driver_confirms=False,
        suspected=True, group=words,
    )  # fmt: skip
    return GrowingPart(words, growth)


def _by_owner(processes: Iterable[ProcessReading]) -> dict[str, list[ProcessReading]]:
    found: defaultdict[str, list[ProcessReading]] = defaultdict(list)
    for one in processes:
        if one.info is None or one.state is ProcessState.DEAD or one.gpu_instance_id != NO_INSTANCE:
            continue
        info = one.info
        if info.container_id:
            found[f"container {info.container_name or info.container_id[:12]}"].append(one)
        elif info.unit.endswith(_SERVICE):
            found[info.unit].append(one)
    return found
