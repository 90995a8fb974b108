"""How busy each process keeps a GPU: which of the driver's samples are believed.

The ring holds some 72 samples for all processes of a GPU, with stamps of their own, and at times rubbish: zombies once
showed 37,100 % (https://github.com/Syllo/nvtop/issues/110), and stamps may lie in the future.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from gpuagent.nvml.device import Device
from gpuagent.nvml.process_samples import Ring, Sample
from gpuagent.reading import ProcessUtilization

HOLD_SECONDS = 2.5
"""A process without a newer sample for this long is idle. The driver stamps samples about once a second, so that
a poll each second now and then meets none."""
_OLDEST_MICROSECONDS = 10_000_000
"""Stamps may lag by up to 10 s (https://github.com/NVIDIA/go-nvml/issues/51); older ones say nothing of now."""
_FUTURE_MICROSECONDS = 1_000_000

IDLE = ProcessUtilization(0.0, 0.0, 0.0, 0.0)


class Accepted(NamedTuple):
    """A sample that was believed, and when it was taken in (CLOCK_BOOTTIME)."""

    stamp: int
    taken_seconds: float
    value: ProcessUtilization


class Samples:
    """What one GPU has told so far: the newest believed sample per pid."""

    def __init__(self) -> None:
        self.ring = Ring()
        self.last_stamp = 0
        self.newest: dict[int, Accepted] = {}

    def accept(self, samples: Iterable[Sample], pids: Collection[int], wall: float, now: float) -> None:
        """Take in what can be true: listed pids, newer than the last read, neither stale nor of the future.

        Also 0 to 100 %, and the newest per pid. `wall` is unix time, `now` CLOCK_BOOTTIME, both in seconds.
        """
        wall_microseconds = int(wall * 1e6)
        earliest = wall_microseconds - _OLDEST_MICROSECONDS
        latest = wall_microseconds + _FUTURE_MICROSECONDS
        if self.last_stamp > latest:  # the wall clock was set back
            self.last_stamp = 0
        since = self.last_stamp
        for sample in samples:
            if not earliest <= sample.stamp <= latest or sample.stamp <= since:
                continue
            self.last_stamp = max(sample.stamp, self.last_stamp)
            if sample.pid not in pids or max(sample[2:]) > 100:
                continue
            seen = self.newest.get(sample.pid)
            if seen is None or sample.stamp > seen.stamp or seen.stamp > latest:
                value = ProcessUtilization(*(percent / 100 for percent in sample[2:]))
                self.newest[sample.pid] = Accepted(sample.stamp, now, value)
        for pid in [pid for pid in self.newest if pid not in pids]:
            del self.newest[pid]

    def of(self, pid: int, now: float) -> ProcessUtilization:
        """Utilisation of a listed process: idle if the driver has not sampled it lately."""
        seen = self.newest.get(pid)
        return seen.value if seen and now - seen.taken_seconds < HOLD_SECONDS else IDLE


def collect(device: Device, pids: Collection[int], *, busy: bool = False) -> dict[int, ProcessUtilization] | None:
    """Utilisation of the listed pids; None where the GPU does not tell (MIG, integrated GPUs).

    A sample of an unlisted pid is dropped: in a pid namespace of its own the driver mixes namespaces here
    (https://github.com/Project-HAMi/HAMi-core/issues/112). `busy` says that the GPU as a whole is not idle.
    """
    state = device.state(Samples)
    samples = state.ring.read(device, state.last_stamp, busy=busy and bool(pids))
    if samples is None:
        state.newest.clear()
        return None
    now = device.clock.now()
    state.accept(samples, pids, device.clock.wall(), now)
    return {pid: state.of(pid, now) for pid in pids}
