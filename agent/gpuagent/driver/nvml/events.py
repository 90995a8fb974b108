"""Wait for Xid events in a thread of their own: two equal codes are two events."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuagent.core.clock import Clock
from gpuagent.core.snapshot import CollectorRun, GpuReading, GpuState, XidCount
from gpuagent.core.xids import FALLEN_OFF_XID
from gpuagent.driver.backend import WatchedGpu
from gpuagent.driver.nvml.library import (
    FUNCTION_NOT_FOUND,
    NOT_SUPPORTED,
    SUCCESS,
    TIMEOUT,
    Handle,
    Library,
    NvmlFailure,
)

log = logging.getLogger(__name__)

_XID_CRITICAL_ERROR = 0x8
_SAME_FALL_SECONDS = 60.0
_WAIT = "nvmlEventSetWait_v2"
_WAIT_MILLISECONDS = 1000
_BACK_OFF_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
_MOST_DRAINED = 100
_MOST_CODES_PER_GPU = 64
"""Bounds the series; NVIDIA documents fewer codes than that."""
_SHORTEST_WAIT_MILLISECONDS = 20
_MOST_LINES = 10
_LINES_SECONDS = 60.0


@dataclass(slots=True)
class _EventSet:
    """NVML's event set, and the GPUs that are registered in it."""

    pointer: Any
    gpus: dict[int | None, WatchedGpu]
    """Registered GPUs by the address of the handle."""


class _LogLimiter:
    """Limit log lines a minute: a faulty GPU sends thousands of events, and the counter has them all."""

    def __init__(self) -> None:
        self._began = -math.inf
        self._written = self._silent = 0

    def next(self, now_seconds: float) -> int | None:
        """Return how many were left out since the last line; None if this one is left out too."""
        if now_seconds - self._began >= _LINES_SECONDS:
            self._began, self._written = now_seconds, 0
        if self._written >= _MOST_LINES:
            self._silent += 1
            return None
        self._written += 1
        silent, self._silent = self._silent, 0
        return silent


class XidWatcher:
    """Count Xids per GPU and code since the start. `problem` says why none can be seen.

    One event set serves all GPUs. NVML fails every wait on a set that has a lost GPU in it: each GPU then gets a set of
    its own, and the lost one is left out until other GPUs are to be watched.
    """

    def __init__(self, library: Library, clock: Clock) -> None:
        self._library = library
        self._clock = clock
        self._condition = threading.Condition()
        self._wanted: tuple[WatchedGpu, ...] = ()
        self._changed = False
        self._stopping = False
        self._counts: dict[tuple[int, str, int], tuple[int, float, float]] = {}
        """How many, by GPU and code, and the last one in Unix time and CLOCK_BOOTTIME."""
        self._fallen: dict[str, float] = {}
        self._lines: dict[tuple[int, str, int], _LogLimiter] = {}
        self._thread: threading.Thread | None = None
        self.problem = ""
        self._unheard: dict[int, str] = {}
        """Reasons why the Xids of a GPU cannot be had, by index."""
        self._silent: dict[int, str] = {}
        """GPUs that have no Xid events, by index, in words."""
        self._said: set[str] = set()
        """UUIDs of the GPUs of which the log has said so."""

    def with_runs(self, gpus: Iterable[GpuReading]) -> list[GpuReading]:
        """Return the readings; one of a GPU that answers and whose Xids cannot be had reports that as a failed run.

        A GPU that has no Xid events at all (virtual ones, WSL, Jetson) has not failed; its run says so as information.
        """
        with self._condition:
            unheard, silent = dict(self._unheard), dict(self._silent)
        made = []
        for gpu in gpus:
            index = gpu.identity.index
            reason = unheard.get(index) or silent.get(index) if gpu.state is GpuState.OK else None
            run = CollectorRun("xid_events", ok=index not in unheard, duration_seconds=0.0, reason=reason or "")
            made.append(gpu if reason is None else replace(gpu, runs=(*gpu.runs, run)))
        return made

    def watch(self, gpus: Iterable[WatchedGpu]) -> None:
        """Listen to these GPUs, with the handles of the present session. Starts the thread at the first call."""
        wanted = tuple(gpus)
        with self._condition:
            self._wanted = wanted
            self._changed = True
            self._stopping = False
            self._condition.notify()
        if wanted and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._run, name="nvml-events", daemon=True)
            self._thread.start()

    def close(self, timeout_seconds: float = 2.5) -> bool:
        """Leave the library, so that it can be shut down. False if the thread is stuck inside it."""
        with self._condition:
            self._stopping = True
            self._wanted = ()
            self._condition.notify()
        if self._thread is None:
            return True
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def counts(self) -> tuple[XidCount, ...]:
        """Return every (GPU, code) seen so far."""
        with self._condition:
            items = sorted(self._counts.items())
        return tuple(XidCount(index, uuid, xid, *said) for (index, uuid, xid), said in items)

    def record(self, index: int, uuid: str, xid: int) -> None:
        """Count one event."""
        with self._condition:
            key = (index, uuid, xid)
            if key not in self._counts and sum(k[1] == uuid for k in self._counts) >= _MOST_CODES_PER_GPU:
                return
            number = self._counts.get(key, (0, 0.0, 0.0))[0]
            self._counts[key] = (number + 1, self._clock.wall(), self._clock.now())
            silent = self._lines.setdefault(key, _LogLimiter()).next(self._clock.now())
        if silent is not None:
            fields = {"GPU": index, "GPU_UUID": uuid, "XID": xid}
            more = f" (and {silent} more since the last line)" if silent else ""
            log.warning("GPU %d (%s): Xid %d%s", index, uuid, xid, more, extra={"fields": fields})

    def note_fallen_off(self, index: int, uuid: str) -> None:
        """Count Xid 79 of a GPU that is off the bus. NVML and the kernel's log may both tell of it: it is one event."""
        with self._condition:
            now = self._clock.now()
            before = self._fallen.get(uuid)
            self._fallen[uuid] = now
        if before is None or now - before >= _SAME_FALL_SECONDS:
            self.record(index, uuid, FALLEN_OFF_XID)

    def _run(self) -> None:
        sets: list[_EventSet] = []
        made = False
        failures = 0
        while True:
            with self._condition:
                if self._stopping:
                    break
                if not self._wanted and not self._changed:
                    self._condition.wait()
                    continue
                changed, wanted = self._changed, self._wanted
                self._changed = False
            try:
                if changed or not made:
                    self._free_sets(sets)
                    sets = []
                    with self._condition:
                        self._unheard, self._silent = {}, {}
                    sets = self._register([wanted])
                sets = self._wait_for_all(sets)
                made = bool(sets)
                if not sets:
                    self._pause(_BACK_OFF_SECONDS[-1])
                failures = 0
            except NvmlFailure as failure:
                self._free_sets(sets)
                sets, made = [], False
                self.problem = str(failure)
                if failures == 0:
                    log.warning("Xid events cannot be read: %s", failure)
                self._pause(_BACK_OFF_SECONDS[min(failures, len(_BACK_OFF_SECONDS) - 1)])
                failures += 1
        self._free_sets(sets)

    def _wait_for_all(self, sets: list[_EventSet]) -> list[_EventSet]:
        """Wait a second at most over all sets together; return those that still serve."""
        milliseconds = max(_WAIT_MILLISECONDS // max(len(sets), 1), _SHORTEST_WAIT_MILLISECONDS)
        for each in sets:
            try:
                self._wait(each, milliseconds)
            except NvmlFailure as failure:
                alone = len(each.gpus) == 1
                if failure.ends_session or failure.absent or (alone and len(sets) == 1 and not failure.lost):
                    raise
                self._free_sets([each])
                rest = [other for other in sets if other is not each]
                if not alone:
                    return rest + self._register([gpu] for gpu in each.gpus.values())
                if not failure.lost:  # the GPU's own state tells that it is lost
                    self._note_unwatched({gpu.index: str(failure) for gpu in each.gpus.values()})
                return rest
        return sets

    def _register(self, groups: Iterable[Iterable[WatchedGpu]]) -> list[_EventSet]:
        """Return a set for each group, if it has a GPU that sends Xids.

        A GPU that cannot send them refuses the whole mask: ask first (nvml.h).
        """
        sets: list[_EventSet] = []
        unheard: dict[int, str] = {}
        try:
            for group in groups:
                made = _EventSet(self._library.call("nvmlEventSetCreate"), {})
                sets.append(made)
                for gpu in group:
                    try:
                        self._register_gpu(made, gpu)
                    except NvmlFailure as failure:
                        if failure.ends_session or failure.code == FUNCTION_NOT_FOUND:
                            raise
                        if failure.code == NOT_SUPPORTED:
                            self._note_silent(gpu)
                        elif not failure.lost:
                            unheard[gpu.index] = str(failure)
        except NvmlFailure:
            self._free_sets(sets)
            raise
        self.problem = ""
        self._note_unwatched(unheard)
        self._free_sets([made for made in sets if not made.gpus])
        return [made for made in sets if made.gpus]

    def _note_unwatched(self, reasons: Mapping[int, str]) -> None:
        with self._condition:
            self._unheard |= reasons

    def _note_silent(self, gpu: WatchedGpu) -> None:
        with self._condition:
            self._silent[gpu.index] = "this GPU has no Xid events"
        if gpu.uuid not in self._said:
            self._said.add(gpu.uuid)
            log.info("GPU %d (%s) has no Xid events: its errors are not told", gpu.index, gpu.uuid)

    def _register_gpu(self, event_set: _EventSet, gpu: WatchedGpu) -> None:
        types = self._library.call("nvmlDeviceGetSupportedEventTypes", gpu.handle)
        if not types & _XID_CRITICAL_ERROR:
            raise NvmlFailure("nvmlDeviceRegisterEvents", NOT_SUPPORTED)
        self._library.call("nvmlDeviceRegisterEvents", gpu.handle, _XID_CRITICAL_ERROR, event_set.pointer)
        event_set.gpus[_address(gpu.handle)] = gpu

    def _wait(self, event_set: _EventSet, milliseconds: int) -> bool:
        """Take one event; False if there was none in time, as mostly: an exception each second would cost more."""
        event = self._library.struct("c_nvmlEventData_t")
        code = self._library.raw(_WAIT, event_set.pointer, ctypes.byref(event), ctypes.c_uint(milliseconds))
        if code == TIMEOUT:
            return False
        if code != SUCCESS:
            raise NvmlFailure(_WAIT, code)
        gpu = event_set.gpus.get(_address(event.device))
        if gpu is not None and event.eventType & _XID_CRITICAL_ERROR:
            xid = int(event.eventData)
            if xid == FALLEN_OFF_XID:
                self.note_fallen_off(gpu.index, gpu.uuid)
            else:
                self.record(gpu.index, gpu.uuid, xid)
        return True

    def _free_sets(self, sets: Iterable[_EventSet]) -> None:
        """Free sets, and take what lies in them: a GPU leaves its set just when its last Xid lies there."""
        for event_set in sets:
            with contextlib.suppress(NvmlFailure):
                for _ in range(_MOST_DRAINED):
                    if not self._wait(event_set, 0):
                        break
            try:
                self._library.call("nvmlEventSetFree", event_set.pointer)
            except NvmlFailure as failure:
                log.debug("an event set could not be freed: %s", failure)

    def _pause(self, seconds: float) -> None:
        with self._condition:
            if not self._stopping and not self._changed:
                self._condition.wait(seconds)


def _address(handle: Handle) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
