"""The driver's ring of per-process utilisation samples, by the old call or the new one."""

from __future__ import annotations

import ctypes
from struct import Struct

from gpuagent.nvml.device import Device
from gpuagent.nvml.failure import INSUFFICIENT_SIZE, NOT_FOUND, SUCCESS, NvmlFailure

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


class Ring:
    """A reader with a kept buffer; `read` returns what is newer than `since`."""

    def __init__(self) -> None:
        self.capacity = _CAPACITY
        self.buffer = self._allocate()
        self.empty_reads = 0
        self.prefer_new = False

    def read(self, device: Device, since: int, *, busy: bool) -> list[Sample] | None:
        """Samples after `since` (unix microseconds); None where the GPU has none to give."""
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

    def _read_old(self, device: Device, since: int) -> list[Sample]:
        count = ctypes.c_uint()
        while True:
            count.value = self.capacity
            code = device.library.raw(_OLD, device.handle, self.buffer, ctypes.byref(count), ctypes.c_ulonglong(since))
            size = self._size(_OLD, code, count.value, _OLD_SAMPLE)
            if size is not None:
                return list(_OLD_SAMPLE.iter_unpack(memoryview(self.buffer)[:size]))

    def _read_new(self, device: Device, since: int) -> list[Sample]:
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
        """Bytes answered; None if the buffer was too small and has been replaced by a larger one.

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
