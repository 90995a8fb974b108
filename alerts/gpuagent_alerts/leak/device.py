"""A GPU or MIG instance as a whole: what is free there and how fast that falls, and what its processes amount to."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from gpuagent.core.growth import Evidence, Growth, GrowthState, Range, Verdict
from gpuagent.core.identity import NO_INSTANCE
from gpuagent.core.snapshot import GpuReading, GpuState, ProcessReading, ProcessState
from gpuagent_alerts.leak.criterion import UNREAD_SECONDS


class MemoryPool(NamedTuple):
    """Where memory comes from."""

    total_bytes: int
    free_bytes: int | None
    device_uuids: Mapping[int, str]
    """NVML's UUIDs by compute instance id: under them a client tells the allocator's figures."""


def is_readable(gpu: GpuReading) -> bool:
    """Return whether this tick says something of the processes' memory on this GPU.

    A list that the driver is known to shuffle is shown, and never judged.
    """
    return gpu.state is GpuState.OK and gpu.processes_known and gpu.processes_trusted


def memory_pools(gpu: GpuReading) -> dict[int, MemoryPool]:
    """By GPU instance id; `NO_INSTANCE` is the GPU as a whole. Empty where the GPU has no memory of its own."""
    return dict(_memory_pools(gpu))


def _memory_pools(gpu: GpuReading) -> Iterator[tuple[int, MemoryPool]]:
    memory = gpu.memory
    if memory is not None and memory.total_bytes:
        yield NO_INSTANCE, MemoryPool(memory.total_bytes, memory.free_bytes, {NO_INSTANCE: gpu.identity.uuid})
    devices: dict[int, dict[int, str]] = {}
    for instance in gpu.mig:
        devices.setdefault(instance.gpu_instance_id, {})[instance.compute_instance_id] = instance.uuid
        memory = instance.memory
        if memory.total_bytes:
            uuids = devices[instance.gpu_instance_id]
            yield instance.gpu_instance_id, MemoryPool(memory.total_bytes, memory.free_bytes, uuids)


def unowned_by_instance(
    gpu: GpuReading, processes: Iterable[ProcessReading], instances: Collection[int]
) -> dict[int, int | None]:
    """Return bytes of no living process, by GPU instance id: of the dead, of the driver, of whatever it does not list.

    What is in a MIG instance is no part of the rest of its GPU, `NO_INSTANCE`. Where the driver does not tell in which
    instance a process is, all of it is of the GPU. None where it is not known.
    """
    split = gpu.reconciliation
    rest = None if split is None else split.dead_processes_bytes + split.unattributed_bytes
    live: dict[int, int] = {}
    for process in processes if any(number >= 0 for number in instances) else ():
        if process.state is not ProcessState.DEAD:
            live[process.gpu_instance_id] = live.get(process.gpu_instance_id, 0) + (process.used_bytes or 0)
    if rest is None:
        return dict.fromkeys(instances)
    if live.get(NO_INSTANCE):
        return {NO_INSTANCE: rest}
    used = {one.gpu_instance_id: one.memory.used_bytes for one in reversed(gpu.mig) if one.gpu_instance_id in instances}
    found = {number: None if held is None else max(0, held - live.get(number, 0)) for number, held in used.items()}
    return {**found, NO_INSTANCE: max(0, rest - sum(held or 0 for held in found.values()))}


_STRICTEST_FIRST = tuple(Evidence)
_OVER = frozenset({GrowthState.STOPPED, GrowthState.FULL})
"""States of growth that has no pace now."""
_MOST_REASONS = 4
_LEAST_OF_PACE = 0.5
"""Share of the pace of those who grow that what is free has to fall by: half is within the doubt of a forecast."""
_DOUBT = 0.5
"""A forecast is shown as a range of half to one and a half times its value."""


class GrowingPart(NamedTuple):
    """Memory that grows, and whose it is, in words."""

    whose: str
    growth: Growth
    shares_free: bool = True
    """It grows into the device's free memory, and not into a MIG instance's own."""


def sum_up_device(
    unowned: Growth | None, growing: Sequence[GrowingPart], free_bytes: int | None,
    *, settled: bool = False, fall: float | None = None,
) -> Growth | None:  # fmt: skip
    """Return what is said of the GPU; `unowned` is the verdict where nothing grows.

    `growing` are the parts that grow, leak, or grow fast. Once `settled` there is a verdict on some part; nobody's
    memory may be too little to ever have one. The forecast is of those that share `free_bytes`: an instance that is
    full leaves the room of its GPU as it is. `fall` is how fast the free memory falls, in bytes a second, None where
    that is not known: growth that another gives back as fast fills nothing.
    """
    quiet = unowned.verdict if unowned is not None else Verdict.LEARNING
    if settled and quiet is Verdict.LEARNING:
        quiet = Verdict.STEADY
    if not growing:
        return unowned if unowned is not None and unowned.verdict is quiet else Growth(quiet)
    # What takes again what it held before fills nothing: it counts where nothing else grows.
    growing = [part for part in growing if not part.growth.held_before] or growing
    grows = [part.growth for part in growing]
    leaking = [growth for growth in grows if growth.verdict is Verdict.LEAKING]
    evidence = [growth.evidence for growth in leaking if growth.evidence is not None]
    slow = [part for part in growing if part.growth.verdict in (Verdict.GROWING, Verdict.LEAKING)]
    # Beside what rises, what has stopped has no pace any more: the one that it had is told where nothing rises.
    rising = [part for part in slow if part.growth.state is GrowthState.RISING] or slow
    slopes = [part.growth.slope for part in rising if part.growth.slope is not None]
    sharing = [part for part in growing if part.shares_free]
    together = _together(sharing, free_bytes)
    exhaustion = _at_most(_exhaustion(sharing, together), fall, free_bytes)
    fast = _fast(sharing, together, exhaustion)
    if fast is not None and exhaustion is not None:
        exhaustion = _around(fast)
    return Growth(
        verdict=Verdict.LEAKING if leaking else Verdict.GROWING if slow else quiet,
        confirmed=any(growth.confirmed for growth in leaking),
        evidence=min(evidence, key=_STRICTEST_FIRST.index, default=None),
        slope=_sum(slopes),
        since_seconds=_earliest(part.growth.since_seconds for part in slow),
        exhaustion=exhaustion,
        reasons=tuple(_reasons(growing))[:_MOST_REASONS],
        fast=any(part.growth.fast for part in sharing),
        fast_exhaustion_seconds=fast,
        suspected=not leaking and any(part.growth.suspected for part in slow),
        held_before=all(growth.held_before for growth in grows),
        group=grows[0].group if all(growth.group for growth in grows) else "",
        state=_state(slow, of_device=[part for part in slow if part.shares_free]),
    )


def _sum(slopes: Sequence[Range]) -> Range | None:
    if not slopes:
        return None
    return Range(*(sum(figures) for figures in zip(*slopes, strict=True)))


def _earliest(times: Iterable[float | None]) -> float | None:
    return min((time for time in times if time is not None), default=None)


def _together(sharing: Sequence[GrowingPart], free_bytes: int | None) -> float | None:
    """Return in how many seconds all that rises fills what is free; None for one part alone.

    The paces are the ones that are told: growth that has no forecast of its own yet takes its share of what is free.
    """
    rising = [part.growth for part in sharing if part.growth.state not in _OVER]
    paces = [growth.slope.value for growth in rising if growth.slope is not None and growth.slope.value > 0]
    return free_bytes / sum(paces) if len(paces) > 1 and free_bytes is not None else None


def _exhaustion(sharing: Sequence[GrowingPart], together: float | None) -> Range | None:
    """One part's own forecast if it comes first; several that share what is free fill it sooner than each by itself.

    There is none unless one of them has one.
    """
    forecasts = [part.growth.exhaustion for part in sharing if part.growth.exhaustion is not None]
    if forecasts and together is not None:
        first = min(forecasts)  # together they are as hard to tell as the first of them
        scale = together / first.value if first.value else 0.0
        forecasts.append(Range(together, first.low * scale, first.high * scale))
    return min(forecasts, default=None)


def _at_most(forecast: Range | None, fall: float | None, free_bytes: int | None) -> Range | None:
    """Return the forecast, later or none where the free memory falls much more slowly than those who share it grow."""
    if forecast is None or fall is None or not free_bytes or forecast.value <= 0:
        return forecast
    if fall * forecast.value >= _LEAST_OF_PACE * free_bytes:
        return forecast
    return _around(free_bytes / fall) if fall > 0 else None


def _fast(sharing: Sequence[GrowingPart], together: float | None, exhaustion: Range | None) -> float | None:
    """Return the shortest time that is left to fast growth, or less where the slow judgment or all together say so."""
    fast = [part.growth.fast_exhaustion_seconds for part in sharing if part.growth.fast_exhaustion_seconds is not None]
    slow = None if exhaustion is None else exhaustion.value
    return min(seconds for seconds in (*fast, together, slow) if seconds is not None) if fast else None


def _around(seconds: float) -> Range:
    return Range(seconds, (1 - _DOUBT) * seconds, (1 + _DOUBT) * seconds)


def _state(slow: Sequence[GrowingPart], *, of_device: Sequence[GrowingPart]) -> GrowthState | None:
    """Return the GPU's state: rising while one process rises; where all have stopped, a full GPU is the reason.

    A MIG instance that is full is no reason of its GPU: `of_device` are the parts that grow into the device's memory.
    """
    states = {part.growth.state for part in slow}
    if GrowthState.RISING in states:
        return GrowthState.RISING
    if any(part.growth.state is GrowthState.FULL for part in of_device):
        return GrowthState.FULL
    return GrowthState.STOPPED if states & {GrowthState.FULL, GrowthState.STOPPED} else None


def _reasons(growing: Sequence[GrowingPart]) -> Iterable[str]:
    """Yield the leaks first."""
    for part in sorted(growing, key=lambda part: part.growth.verdict is not Verdict.LEAKING):
        said = part.growth.reasons[0] if part.growth.reasons else str(part.growth.verdict)
        yield f"{part.whose}: {said}"


SPACING_SECONDS: Final = 30.0
_WINDOWS: Final = (120.0, 300.0, 600.0, 1200.0, 1800.0)
"""Several, so that neither a program that ended in one of them nor growth in steps hides a fall."""
LONGEST_SECONDS: Final = 14_400.0
_LONG_WINDOWS: Final = (3600.0, 7200.0, LONGEST_SECONDS)
"""Windows for growth in steps that are hours apart: used only where none of the others has a fall."""
_AT_ONCE: Final = 2
"""Steps between readings in which a program's memory comes back: it may end in the middle of one."""
_MOST_OF_IT: Final = 0.7
"""Share of all that moved in the shortest window, above what two of its four steps have of memory given back evenly."""
_MOST_RELEASES: Final = 4
"""Programs that end one after another, as the ranks of a job do: looked behind so many of them."""
_FULL_SHARE: Final = 0.05
"""The share of what is free now: a GPU that had less than this free was full, and nothing could grow."""
_MOST: Final = int(LONGEST_SECONDS / SPACING_SECONDS) + 2


class FreeMemory:
    """What was free lately, a reading every half minute. A restart loses it, and so does a time without readings."""

    __slots__ = ("_free", "_times")

    def __init__(self) -> None:
        self._times = array("d")
        self._free = array("d")

    def add(self, time_seconds: float, free_bytes: float) -> None:
        """Take a reading; times must not go backwards."""
        if self._times and time_seconds - self._times[-1] < SPACING_SECONDS:
            return
        if self._times and time_seconds - self._times[-1] > UNREAD_SECONDS:
            del self._times[:], self._free[:]  # who stood still meanwhile grows as fast as before
        if len(self._times) >= _MOST:
            del self._times[0], self._free[0]
        self._times.append(time_seconds)
        self._free.append(free_bytes)

    def fastest_fall(self, time_seconds: float, free_bytes: float) -> float | None:
        """Return bytes a second by which it fell, in the window in which it fell fastest; None if none is known.

        0 or less: in none of them is less free than before. Right after much came back at once, as when a program ends,
        it is the fall of before that: what goes on growing does so as fast as it did. That of a full GPU is not known.
        """
        fall = self._fastest(_WINDOWS, time_seconds, free_bytes)
        # A long window may show a little less free than before, although most of what was taken in it came back.
        place = None if fall is None else self._before_release(time_seconds, free_bytes)
        if place is None and fall is not None and fall <= 0:
            long = self._fastest(_LONG_WINDOWS, time_seconds, free_bytes)
            return fall if long is None else max(fall, long)
        was_free = free_bytes
        for _ in range(_MOST_RELEASES):
            if place is None:
                break
            was_free = self._free[place]
            fall = self._fastest(_WINDOWS, self._times[place], was_free)
            place = self._before_release(self._times[place], was_free) if fall is not None else None
        return None if fall is not None and fall <= 0 and was_free < _FULL_SHARE * free_bytes else fall

    def _before_release(self, time_seconds: float, free_bytes: float) -> int | None:
        """Return the place of the last reading before most of what came back lately did so at once; None else."""
        begin = bisect_right(self._times, time_seconds - _WINDOWS[0]) - 1
        if begin < 0:
            return None
        free = [*self._free[begin : bisect_left(self._times, time_seconds)], free_bytes]
        steps = [after - before for before, after in pairwise(free)]
        moved = sum(map(abs, steps))
        release, place = max((sum(steps[at : at + _AT_ONCE]), -at) for at in range(len(steps)))
        return begin - place if release > 0 and release >= _MOST_OF_IT * moved else None

    def _fastest(self, windows: Sequence[float], time_seconds: float, free_bytes: float) -> float | None:
        falls = []
        for window in windows:
            begin = bisect_right(self._times, time_seconds - window) - 1
            if begin >= 0:
                falls.append((self._free[begin] - free_bytes) / (time_seconds - self._times[begin]))
        return max(falls, default=None)
