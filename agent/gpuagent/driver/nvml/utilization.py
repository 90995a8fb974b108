"""Read how busy the engines of a GPU are and how busy each process keeps them, and decide which samples are believed.

The driver's ring holds some 72 samples for all processes of a GPU, with stamps of their own, and at times rubbish:
zombies once showed 37,100 % (https://github.com/Syllo/nvtop/issues/110), and stamps may lie in the future. It is read
by the old call or the new one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Iterable, Mapping
from struct import Struct

from gpuagent.core.hardware import Utilization
from gpuagent.core.snapshot import ProcessUtilization
from gpuagent.driver.backend import IDLE, LONGEST_GAP_SECONDS
from gpuagent.driver.nvml.device import NvmlDevice, ratio
from gpuagent.driver.nvml.library import INSUFFICIENT_SIZE, NOT_FOUND, SUCCESS, NvmlFailure

_MEDIA = tuple(f"nvmlDeviceGet{engine}Utilization" for engine in ("Encoder", "Decoder", "Jpg", "Ofa"))


def collect(device: NvmlDevice, *, slow: bool = True) -> Utilization:
    """Read engine utilization. Under MIG the driver answers none of this; GPM does (see `profile`).

    The media engines are asked at the slow rate and carried in between: four more calls a second would tell little.
    """
    media = device.state(_Media)
    if slow:
        media.ratios = tuple(_sampled(device, function) for function in _MEDIA)
    rates = device.ask("nvmlDeviceGetUtilizationRates")
    encoder, decoder, jpeg, ofa = media.ratios
    return Utilization(
        gpu_ratio=ratio(rates.gpu) if rates else None,
        memory_ratio=ratio(rates.memory) if rates else None,
        encoder_ratio=encoder,
        decoder_ratio=decoder,
        jpeg_ratio=jpeg,
        ofa_ratio=ofa,
    )


def at_rest(device: NvmlDevice, busy: Utilization) -> bool:
    """Return whether the GPU as a whole was observed to do nothing: no kernel, no memory access, no media engine.

    A figure that is missing is no 0, unless the GPU has no such engine. Under MIG nothing is observed.
    """
    if device.identity.mig_enabled or busy.gpu_ratio != 0 or busy.memory_ratio != 0:
        return False
    media = (busy.encoder_ratio, busy.decoder_ratio, busy.jpeg_ratio, busy.ofa_ratio)
    return all(
        ratio == 0 or (ratio is None and not device.supports(function))
        for ratio, function in zip(media, _MEDIA, strict=True)
    )


class _Media:
    ratios: tuple[float | None, ...] = (None, None, None, None)


def _sampled(device: NvmlDevice, function: str) -> float | None:
    answer = device.ask(function)
    return ratio(answer[0]) if answer else None


_OLD = "nvmlDeviceGetProcessUtilization"
_NEW = "nvmlDeviceGetProcessesUtilizationInfo"
_OLD_SAMPLE = Struct("<IxxxxQIIII")  # nvmlProcessUtilizationSample_t
_NEW_SAMPLE = Struct("<QIIIIIIIxxxx")  # nvmlProcessUtilizationInfo_v1_t, with jpeg and ofa at the end
_CAPACITY = 256
_MAX_CAPACITY = 65536
_EMPTY_READS = 10
"""Empty answers on a busy GPU before the new call is tried: on a Blackwell RTX PRO 6000 only that one works
(https://github.com/Project-HAMi/HAMi-core/issues/218)."""


Sample = tuple[int, int, int, int, int, int]
"""Pid, stamp in unix microseconds, and SM, memory, encoder, decoder in percent, as the driver gave them."""


class _NewRequest(ctypes.Structure):
    """nvmlProcessesUtilizationInfo_t, version 1."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("count", ctypes.c_uint),
        ("last_seen", ctypes.c_ulonglong),
        ("samples", ctypes.c_void_p),
    )


_NEW_VERSION = ctypes.sizeof(_NewRequest) | (1 << 24)


class SampleRing:
    """A reader with a kept buffer; `read` returns what is newer than `since`."""

    def __init__(self) -> None:
        self.capacity = _CAPACITY
        self.buffer = self._allocate()
        self.empty_reads = 0
        self.prefer_new = False

    def read(self, device: NvmlDevice, since: int, *, busy: bool) -> list[Sample] | None:
        """Read samples after `since` (unix microseconds); None where the GPU has none to give."""
        if not self.prefer_new:
            samples = device.attempt(_OLD, lambda: self._read_old(device, since))
            self.empty_reads = self.empty_reads + 1 if busy and samples == [] else 0
            if samples is not None and self.empty_reads < _EMPTY_READS:
                return samples
        samples = device.attempt(_NEW, lambda: self._read_new(device, since))
        self.prefer_new = bool(samples) or (self.prefer_new and samples is not None)
        self.empty_reads = 0
        if samples is None and device.supports(_OLD):
            return []
        return samples

    def _read_old(self, device: NvmlDevice, since: int) -> list[Sample]:
        count = ctypes.c_uint()
        while True:
            count.value = self.capacity
            code = device.library.raw(_OLD, device.handle, self.buffer, ctypes.byref(count), ctypes.c_ulonglong(since))
            size = self._size(_OLD, code, count.value, _OLD_SAMPLE)
            if size is not None:
                return list(_OLD_SAMPLE.iter_unpack(memoryview(self.buffer)[:size]))

    def _read_new(self, device: NvmlDevice, since: int) -> list[Sample]:
        request = _NewRequest(version=_NEW_VERSION, last_seen=since)
        while True:
            request.count = self.capacity
            request.samples = ctypes.addressof(self.buffer)
            code = device.library.raw(_NEW, device.handle, ctypes.byref(request))
            size = self._size(_NEW, code, request.count, _NEW_SAMPLE)
            if size is not None:
                raw = _NEW_SAMPLE.iter_unpack(memoryview(self.buffer)[:size])
                return [(pid, stamp, sm, mem, enc, dec) for stamp, pid, sm, mem, enc, dec, _, _ in raw]

    def _size(self, function: str, code: int, count: int, sample: Struct) -> int | None:
        """Return the bytes answered; None if the buffer was too small and has been replaced by a larger one.

        NOT_FOUND means that nobody was active since: https://github.com/rust-nvml/nvml-wrapper/issues/56.
        """
        if code == SUCCESS:
            return min(count, self.capacity) * sample.size
        if code == NOT_FOUND:
            return 0
        if code != INSUFFICIENT_SIZE or self.capacity == _MAX_CAPACITY:
            raise NvmlFailure(function, code)
        self.capacity = min(max(count, self.capacity * 2), _MAX_CAPACITY)
        self.buffer = self._allocate()
        return None

    def _allocate(self) -> ctypes.Array[ctypes.c_char]:
        return (ctypes.c_char * (self.capacity * _NEW_SAMPLE.size))()


HOLD_SECONDS = 2.5
"""A process without a newer sample for this long is unknown. The driver stamps samples about once a second, so that
a poll each second now and then meets none. No sample is no 0: the ring forgets, and on some GPUs it stays empty."""
_OLDEST_MICROSECONDS = 10_000_000
"""Stamps may lag by up to 10 s (https://github.com/NVIDIA/go-nvml/issues/51); older ones say nothing of now."""
_FUTURE_MICROSECONDS = 1_000_000


Accepted = tuple[int, float, ProcessUtilization]
"""A sample that was believed: its stamp, when it was taken in (CLOCK_BOOTTIME), and what it says."""

_Percent = tuple[int, int, int, int]
_MOST_RATIOS = 4096


class AcceptedSamples:
    """Samples accepted of one GPU so far: the newest per pid."""

    def __init__(self) -> None:
        self.ring = SampleRing()
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

    def note_idle(self, now: float, *, at_rest: bool, longest_gap_seconds: float = LONGEST_GAP_SECONDS) -> bool:
        """Take note of what the GPU as a whole did; returns whether it did nothing since the last reading, either.

        One reading covers the second before it and no more: it takes two of them to observe what lies between.
        """
        since, self.rested_at = self.rested_at, now if at_rest else None
        return at_rest and since is not None and now - since <= longest_gap_seconds

    def of(self, pids: Iterable[int], now: float, *, rested: bool = False) -> dict[int, ProcessUtilization]:
        """Return the utilization of listed processes: by their own samples, or 0 where the whole GPU `rested`.

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
        """Return percent as ratios; None for more than 100 %.

        The same object for the same figures: who compares readings sees at once that nothing changed.
        """
        if max(percent) > 100:
            return None
        if len(self._ratios) >= _MOST_RATIOS:
            self._ratios.clear()
        sm, memory, encoder, decoder = percent
        value = self._ratios[percent] = ProcessUtilization(sm / 100, memory / 100, encoder / 100, decoder / 100)
        return value


def collect_processes(
    device: NvmlDevice, pids: Collection[int], *, busy: bool = False, at_rest: bool = False
) -> dict[int, ProcessUtilization] | None:
    """Return the utilization of listed pids, as far as it is known; None where the GPU does not tell (MIG, integrated).

    A sample of an unlisted pid is dropped: in a pid namespace of its own the driver mixes namespaces here
    (https://github.com/Project-HAMi/HAMi-core/issues/112). `busy` says that the GPU as a whole is not idle, `at_rest`
    that it was observed at 0 %: neither, where it does not tell.
    """
    state = device.state(AcceptedSamples)
    clock = device.clock
    before = state.rested_at
    rested = state.note_idle(clock.now(), at_rest=at_rest, longest_gap_seconds=device.longest_gap_seconds)
    samples = state.ring.read(device, state.last_stamp, busy=busy and bool(pids))
    if samples is None:
        state.newest.clear()
        # No ring tells of work between two readings of the whole GPU, so that these must be the closer together.
        close = before is not None and clock.now() - before <= LONGEST_GAP_SECONDS * clock.speed
        return dict.fromkeys(pids, IDLE) if rested and close else None
    now = clock.now()
    state.accept(samples, pids, clock.wall(), now)
    return state.of(pids, now, rested=rested)


def worked_at(device: NvmlDevice) -> Mapping[int, float]:
    """Return when each listed pid was last sampled at work, by the clock of the reading that took the sample in.

    A reading that was never shown counts too: what it took from the ring, no later one gets again.
    """
    return device.state(AcceptedSamples).worked_at.copy()
