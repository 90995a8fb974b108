"""How busy each process keeps a GPU: which of the driver's samples are believed.

The ring holds some 72 samples for all processes of a GPU, with stamps of their own, and at times rubbish: zombies once
showed 37,100 % (https://github.com/Syllo/nvtop/issues/110), and stamps may lie in the future.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from gpuagent.core.snapshot import ProcessUtilization
from gpuagent.nvml.device import LONGEST_GAP_SECONDS, Device
from gpuagent.nvml.process_samples import Ring, Sample

HOLD_SECONDS = 2.5
"""A process without a newer sample for this long is unknown. The driver stamps samples about once a second, so that
a poll each second now and then meets none. No sample is no 0: the ring forgets, and on some GPUs it stays empty."""
_OLDEST_MICROSECONDS = 10_000_000
"""Stamps may lag by up to 10 s (https://github.com/NVIDIA/go-nvml/issues/51); older ones say nothing of now."""
_FUTURE_MICROSECONDS = 1_000_000

IDLE = ProcessUtilization(0.0, 0.0, 0.0, 0.0)


Accepted = tuple[int, float, ProcessUtilization]
"""A sample that was believed: its stamp, when it was taken in (CLOCK_BOOTTIME), and what it says."""

_Percent = tuple[int, int, int, int]
_MOST_RATIOS = 4096


class Samples:
    """What one GPU has told so far: the newest believed sample per pid."""

    def __init__(self) -> None:
        self.ring = Ring()
        self.last_stamp = 0
        self.newest: dict[int, Accepted] = {}
        self.worked_at: dict[int, float] = {}
        """Clock at which a sample of a pid at work was last taken in, believed or not: it withholds idleness."""
        self.rested_at: float | None = None
        """Clock of the last reading, if the whole GPU was at rest in it."""
        self._ratios: dict[_Percent, ProcessUtilization] = {}

    def accept(self, samples: Iterable[Sample], pids: Collection[int], wall: float, now: float) -> None:
        """Take in what can be true: listed pids, newer than the last read, neither stale nor of the future.

        Also 0 to 100 %, and the newest per pid. Any new sample of a listed pid that says more than 0 is noted as work,
        however old, late or large: a later one of 0 does not undo it. `wall` is unix time, `now`
        CLOCK_BOOTTIME, both in seconds.
        """
        wall_microseconds = int(wall * 1e6)
        latest = wall_microseconds + _FUTURE_MICROSECONDS
        if self.last_stamp > latest:  # the wall clock was set back
            self.last_stamp = 0
        newest, ratios, last = self.newest, self._ratios, self.last_stamp
        earliest = max(wall_microseconds - _OLDEST_MICROSECONDS, last + 1)
        read = last
        for pid, stamp, sm, memory, encoder, decoder in samples:
            if stamp > read and (sm or memory or encoder or decoder) and pid in pids:
                self.worked_at[pid] = now
            if not earliest <= stamp <= latest:
                continue
            if stamp > last:  # noqa: PLR1730  a call of max() takes longer than the rest of this line
                last = stamp
            seen = newest.get(pid)
            if pid not in pids or (seen is not None and stamp <= seen[0] <= latest):
                continue
            percent = sm, memory, encoder, decoder
            value = ratios.get(percent) or self._believed(percent)
            if value is not None:
                newest[pid] = stamp, now, value
        self.last_stamp = last
        for pid in newest.keys() - pids:
            del newest[pid]
        for pid in self.worked_at.keys() - pids:
            del self.worked_at[pid]

    def rest(self, now: float, *, at_rest: bool, longest_gap_seconds: float = LONGEST_GAP_SECONDS) -> bool:
        """Take note of what the GPU as a whole did; returns whether it did nothing since the last reading, either.

        One reading covers the second before it and no more: it takes two of them to observe what lies between.
        """
        since, self.rested_at = self.rested_at, now if at_rest else None
        return at_rest and since is not None and now - since <= longest_gap_seconds

    def of(self, pids: Iterable[int], now: float, *, rested: bool = False) -> dict[int, ProcessUtilization]:
        """Return the utilisation of listed processes: by their own samples, or 0 where the whole GPU `rested`.

        A process of which neither tells is not in it.
        """
        get = self.newest.get
        found = {}
        for pid in pids:
            seen = get(pid)
            if seen is not None and now - seen[1] < HOLD_SECONDS:
                found[pid] = seen[2]
            elif rested:
                found[pid] = IDLE
        return found

    def _believed(self, percent: _Percent) -> ProcessUtilization | None:
        """As ratios; None for more than 100 %.

        The same object for the same figures: who compares readings sees at once that nothing changed.
        """
        if max(percent) > 100:
            return None
        if len(self._ratios) >= _MOST_RATIOS:
            self._ratios.clear()
        sm, memory, encoder, decoder = percent
        value = self._ratios[percent] = ProcessUtilization(sm / 100, memory / 100, encoder / 100, decoder / 100)
        return value


def collect(
    device: Device, pids: Collection[int], *, busy: bool = False, at_rest: bool = False
) -> dict[int, ProcessUtilization] | None:
    """Utilisation of the listed pids, as far as it is known; None where the GPU does not tell (MIG, integrated GPUs).

    A sample of an unlisted pid is dropped: in a pid namespace of its own the driver mixes namespaces here
    (https://github.com/Project-HAMi/HAMi-core/issues/112). `busy` says that the GPU as a whole is not idle, `at_rest`
    that it was observed at 0 %: neither, where it does not tell.
    """
    state = device.state(Samples)
    clock = device.clock
    before = state.rested_at
    rested = state.rest(clock.now(), at_rest=at_rest, longest_gap_seconds=device.longest_gap_seconds)
    samples = state.ring.read(device, state.last_stamp, busy=busy and bool(pids))
    if samples is None:
        state.newest.clear()
        # No ring tells of work between two readings of the whole GPU, so that these must be the closer together.
        close = before is not None and clock.now() - before <= LONGEST_GAP_SECONDS * clock.speed
        return dict.fromkeys(pids, IDLE) if rested and close else None
    now = clock.now()
    state.accept(samples, pids, clock.wall(), now)
    return state.of(pids, now, rested=rested)


def worked_at(device: Device) -> Mapping[int, float]:
    """Return when each listed pid was last sampled at work, by the clock of the reading that took the sample in.

    A reading that was never shown counts too: what it took from the ring, no later one is told again.
    """
    return device.state(Samples).worked_at.copy()
