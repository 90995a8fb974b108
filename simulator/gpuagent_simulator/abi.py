"""Read and write arguments as C sees them: an address and what lies there, structs, and codes of nvmlReturn_t (nvml.h).

pynvml passes `byref(struct)`, arrays, pointers, simple values and plain ints; a reader of our own passes a char buffer.
A C function cannot tell these apart, and neither do the entry points. Structs are laid out by hand as nvml.h has them.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Hashable
from ctypes import c_char, c_double, c_int, c_longlong, c_uint, c_ulonglong, c_void_p
from enum import IntEnum
from struct import Struct
from typing import Any, TypeVar, cast


class Code(IntEnum):
    """nvmlReturn_t, without its prefix NVML_ERROR_."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    ALREADY_INITIALIZED = 5
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    INSUFFICIENT_POWER = 8
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    IRQ_ISSUE = 11
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    CORRUPTED_INFOROM = 14
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    MEMORY = 20
    NO_DATA = 21
    VGPU_ECC_NOT_SUPPORTED = 22
    INSUFFICIENT_RESOURCES = 23
    FREQ_NOT_SUPPORTED = 24
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    NOT_READY = 27
    GPU_NOT_FOUND = 28
    INVALID_STATE = 29
    RESET_TYPE_NOT_SUPPORTED = 30
    UNKNOWN = 999


class NvmlError(Exception):
    """Raised to end an entry point with a code other than SUCCESS."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = int(code)


_TEXTS = {
    Code.GPU_IS_LOST: "GPU is lost",
    Code.LIB_RM_VERSION_MISMATCH: "Driver/library version mismatch",
    Code.UNKNOWN: "Unknown Error",
}


def error_text(code: int) -> str:
    """Return what nvmlErrorString says."""
    try:
        known = Code(code)
    except ValueError:
        return _TEXTS[Code.UNKNOWN]
    return _TEXTS.get(known, known.name.replace("_", " ").title())


def parse_code(value: int | str) -> int:
    """Return a code by number or by name (`gpu_is_lost`).

    Raises:
        ValueError: no such name.
    """
    if isinstance(value, int):
        return value
    name = value.strip().upper().removeprefix("NVML_").removeprefix("ERROR_")
    if name.isdecimal():
        return int(name)
    if name not in Code.__members__:
        raise ValueError(f"{value!r} is not an NVML error code; one of {', '.join(Code.__members__).lower()}")
    return int(Code[name])


S = TypeVar("S")


def address(argument: Any) -> int:
    """Return where a pointer argument points; 0 for NULL.

    Raises:
        Refusal: it is no pointer at all.
    """
    if argument is None:
        return 0
    if isinstance(argument, int):
        return argument
    referred = getattr(argument, "_obj", None)  # byref()
    if referred is not None:
        return ctypes.addressof(referred)
    if isinstance(argument, ctypes.c_void_p | ctypes.c_char_p):
        return ctypes.cast(argument, ctypes.c_void_p).value or 0
    if isinstance(argument, ctypes._Pointer):
        return ctypes.addressof(argument.contents) if argument else 0
    if isinstance(argument, ctypes.Array | ctypes.Structure):
        return ctypes.addressof(argument)
    raise NvmlError(Code.INVALID_ARGUMENT)


def view(kind: type[S], argument: Any) -> S:
    """Return the memory that a pointer argument points to, as `kind`.

    Raises:
        Refusal: NULL.
    """
    where = address(argument)
    if not where:
        raise NvmlError(Code.INVALID_ARGUMENT)
    seen: S = cast("Any", kind).from_address(where)
    return seen


def buffer_size(argument: Any) -> int | None:
    """Return the size of the buffer behind a pointer argument, where ctypes knows it: C would not."""
    if isinstance(argument, ctypes.Array):
        return ctypes.sizeof(argument)
    referred = getattr(argument, "_obj", None)
    return None if referred is None else ctypes.sizeof(referred)


def number(argument: Any) -> int:
    """Return a number passed by value: a plain int or a ctypes integer."""
    return int(getattr(argument, "value", argument))


def text(argument: Any) -> bytes:
    """Return a C string."""
    value = getattr(argument, "value", argument)
    if not isinstance(value, bytes):
        raise NvmlError(Code.INVALID_ARGUMENT)
    return value


def put_uint(argument: Any, value: float) -> None:
    """Store an unsigned int."""
    view(ctypes.c_uint, argument).value = int(value)


def put_ulonglong(argument: Any, value: float) -> None:
    """Store an unsigned long long."""
    view(ctypes.c_ulonglong, argument).value = int(value)


def put_pointer(argument: Any, where: int) -> None:
    """Store a pointer, whatever it points to."""
    view(ctypes.c_void_p, argument).value = where


def put_text(argument: Any, size: Any, value: bytes) -> None:
    """Store a C string with its end.

    Raises:
        Refusal: it does not fit.
    """
    if len(value) + 1 > number(size):
        raise NvmlError(Code.INSUFFICIENT_SIZE)
    put_bytes(argument, value + b"\0")


def put_bytes(argument: Any, value: bytes) -> None:
    """Copy bytes to where a pointer argument points; never beyond a buffer whose size is known."""
    where = address(argument)
    if not where:
        raise NvmlError(Code.INVALID_ARGUMENT)
    limit = buffer_size(argument)
    ctypes.memmove(where, value, len(value) if limit is None else min(limit, len(value)))


T = TypeVar("T")


class Pointers:
    """Issue real addresses, which callers can compare, each for one object of ours.

    What was handed out before the driver was reloaded is dead, and its address is not used again: a
    caller that kept a handle gets INVALID_ARGUMENT, never another GPU.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._generation = 0
        self._cells: dict[int, tuple[ctypes.c_ulonglong, int, Hashable]] = {}
        self._issued: dict[Hashable, int] = {}

    def issue(self, thing: Hashable) -> int:
        """Return the address that stands for `thing`, the same until the driver is reloaded."""
        with self._lock:
            where = self._issued.get(thing)
            if where is None:
                cell = ctypes.c_ulonglong()
                where = ctypes.addressof(cell)
                self._cells[where] = (cell, self._generation, thing)
                self._issued[thing] = where
            return where

    def resolve(self, kind: type[T], argument: Any) -> T:
        """Return what a caller's pointer stands for.

        Raises:
            Refusal: NULL, freed, from before a reload, or of another kind.
        """
        cell = self._cells.get(address(argument))
        if cell is None or cell[1] != self._generation or not isinstance(cell[2], kind):
            raise NvmlError(Code.INVALID_ARGUMENT)
        return cell[2]

    def withdraw(self, argument: Any) -> None:
        """Free what was issued; its address may be used again."""
        with self._lock:
            cell = self._cells.pop(address(argument), None)
            if cell is not None:
                self._issued.pop(cell[2], None)

    def invalidate(self) -> None:
        """Forget everything handed out so far: the driver was reloaded."""
        with self._lock:
            self._generation += 1
            self._issued.clear()


NOT_AVAILABLE = 2**64 - 1
"""NVML_VALUE_NOT_AVAILABLE as an unsigned long long."""
NO_INSTANCE = 0xFFFFFFFF

PROCESS = Struct("<IxxxxQII")
"""nvmlProcessInfo_v2_t: pid, memory, GPU instance, compute instance; 24 bytes."""
PROCESS_DETAIL = Struct("<IxxxxQIIQ")
PROCESS_SHORT = Struct("<IxxxxQ")
"""nvmlProcessDetail_v1_t, and what some 535 drivers call nvmlProcessInfo_t: 32 bytes."""
SAMPLE = Struct("<IxxxxQIIII")
"""nvmlProcessUtilizationSample_t: pid, stamp, SM, memory, encoder, decoder."""
SAMPLE_INFO = Struct("<QIIIIIIIxxxx")
"""nvmlProcessUtilizationInfo_v1_t: stamp, pid, SM, memory, encoder, decoder, jpeg, ofa."""


class Memory(ctypes.Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class Memory_v2(ctypes.Structure):
    _fields_ = (
        ("version", c_uint),
        ("total", c_ulonglong),
        ("reserved", c_ulonglong),
        ("free", c_ulonglong),
        ("used", c_ulonglong),
    )


class SetMemoryLimits(ctypes.Structure):
    _fields_ = (("nameSpace", ctypes.c_char_p), ("softLimit", c_ulonglong), ("hardLimit", c_ulonglong))


class GetMemoryLimits(ctypes.Structure):
    _fields_ = (*SetMemoryLimits._fields_, ("currentUsed", c_ulonglong))


class Utilization(ctypes.Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class PciInfo(ctypes.Structure):
    _fields_ = (
        ("busIdLegacy", c_char * 16),
        ("domain", c_uint),
        ("bus", c_uint),
        ("device", c_uint),
        ("pciDeviceId", c_uint),
        ("pciSubSystemId", c_uint),
        ("busId", c_char * 32),
    )


class Temperature(ctypes.Structure):
    _fields_ = (("version", c_uint), ("sensorType", c_int), ("temperature", c_int))


class MarginTemperature(ctypes.Structure):
    _fields_ = (("version", c_uint), ("marginTemperature", c_int))


class RowRemapperHistogram(ctypes.Structure):
    _fields_ = tuple((name, c_uint) for name in ("max", "high", "partial", "low", "none"))


class RemappedRows_v2(ctypes.Structure):
    _fields_ = tuple(
        (name, c_uint)
        for name in (
            "corrActiveRemaps",
            "corrInactiveRemaps",
            "uncActiveRemaps",
            "uncInactiveRemaps",
            "bPending",
            "bfailureOccurred",
        )
    )


class EccSramErrorStatus(ctypes.Structure):
    _fields_ = (
        ("version", c_uint),
        ("aggregateUncParity", c_ulonglong),
        ("aggregateUncSecDed", c_ulonglong),
        ("aggregateCor", c_ulonglong),
        ("volatileUncParity", c_ulonglong),
        ("volatileUncSecDed", c_ulonglong),
        ("volatileCor", c_ulonglong),
        ("aggregateUncBuckets", c_ulonglong * 5),
        ("bThresholdExceeded", c_uint),
    )


class Value(ctypes.Union):
    _fields_ = (
        ("dVal", c_double),
        ("uiVal", c_uint),
        ("ullVal", c_ulonglong),
        ("sllVal", c_longlong),
        ("siVal", c_int),
    )


class FieldValue(ctypes.Structure):
    _fields_ = (
        ("fieldId", c_uint),
        ("scopeId", c_uint),
        ("timestamp", c_longlong),
        ("latencyUsec", c_longlong),
        ("valueType", c_int),
        ("nvmlReturn", c_int),
        ("value", Value),
    )


class EventData(ctypes.Structure):
    _fields_ = (
        ("device", c_void_p),
        ("eventType", c_ulonglong),
        ("eventData", c_ulonglong),
        ("gpuInstanceId", c_uint),
        ("computeInstanceId", c_uint),
    )


class DeviceAttributes(ctypes.Structure):
    _fields_ = (
        ("multiprocessorCount", c_uint),
        ("sharedCopyEngineCount", c_uint),
        ("sharedDecoderCount", c_uint),
        ("sharedEncoderCount", c_uint),
        ("sharedJpegCount", c_uint),
        ("sharedOfaCount", c_uint),
        ("gpuInstanceSliceCount", c_uint),
        ("computeInstanceSliceCount", c_uint),
        ("memorySizeMB", c_ulonglong),
    )


class ProcessDetailList(ctypes.Structure):
    _fields_ = (("version", c_uint), ("mode", c_uint), ("count", c_uint), ("array", c_void_p))


class ProcessesUtilizationInfo(ctypes.Structure):
    _fields_ = (
        ("version", c_uint),
        ("count", c_uint),
        ("lastSeenTimeStamp", c_ulonglong),
        ("array", c_void_p),
    )


class AccountingStats(ctypes.Structure):
    _fields_ = (
        ("gpuUtilization", c_uint),
        ("memoryUtilization", c_uint),
        ("maxMemoryUsage", c_ulonglong),
        ("time", c_ulonglong),
        ("startTime", c_ulonglong),
        ("isRunning", c_uint),
        ("reserved", c_uint * 5),
    )


class GpmSupport(ctypes.Structure):
    _fields_ = (("version", c_uint), ("isSupportedDevice", c_uint))


class GpmMetric(ctypes.Structure):
    _fields_ = (
        ("metricId", c_uint),
        ("nvmlReturn", c_int),
        ("value", c_double),
        ("names", c_void_p * 3),
    )


class GpmMetricsGet(ctypes.Structure):
    _fields_ = (
        ("version", c_uint),
        ("numMetrics", c_uint),
        ("sample1", c_void_p),
        ("sample2", c_void_p),
    )
    """The metrics follow: `numMetrics` times GpmMetric."""


def check_version(struct: ctypes.Structure, version: int) -> None:
    """Check the version that a caller writes into a struct: its size, and the version in the top byte.

    Raises:
        Refusal: another version.
    """
    if struct.version != ctypes.sizeof(struct) | version << 24:
        raise NvmlError(Code.ARGUMENT_VERSION_MISMATCH)
