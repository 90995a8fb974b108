"""Remember which processes have left all GPUs while they lived, and came back: `cuda-checkpoint` does that to them.

A process that was suspended and resumed in place keeps no trace in /proc. The driver does not list it while it is
suspended, and lists the very same process again afterwards. A program that destroys its CUDA context and makes another
looks the same. It is known for as long as the agent has watched.
"""

from __future__ import annotations

from gpuagent.core.identity import ProcessId
from gpuagent.core.snapshot import GpuState, Snapshot

_ABSENT_READINGS = 3
"""A list that is wrong for once, or twice, is no suspension."""
_MOST = 4096
"""Processes that are remembered without being listed; the one that left first is forgotten first."""


class ResumedProcesses:
    """Who came back, by what the driver lists at each tick."""

    def __init__(self) -> None:
        self._listed: frozenset[ProcessId] = frozenset()
        self._absent: dict[ProcessId, int] = {}
        """Readings without each process that was listed before; who left first comes first."""
        self._resumed: frozenset[ProcessId] = frozenset()

    @property
    def processes(self) -> frozenset[ProcessId]:
        """Those that were absent in between, as long as they are remembered."""
        return self._resumed

    def update(self, snapshot: Snapshot) -> None:
        """Take in a reading. One that lacks the list of any GPU tells of nobody that he has left."""
        listed = frozenset(process.info.id for process in snapshot.processes if process.info is not None)
        back = {each for each in listed if self._absent.pop(each, 0) >= _ABSENT_READINGS}
        self._resumed |= back
        if self._is_whole(snapshot):
            for each in self._absent:
                self._absent[each] += 1
            self._absent |= dict.fromkeys(self._listed - listed, 1)
            while len(self._absent) > _MOST:
                del self._absent[next(iter(self._absent))]
            self._resumed &= listed | self._absent.keys()
            self._listed = listed
        else:
            self._listed |= listed

    @staticmethod
    def _is_whole(snapshot: Snapshot) -> bool:
        return bool(snapshot.gpus) and all(gpu.state is GpuState.ASLEEP or gpu.processes_read for gpu in snapshot.gpus)
