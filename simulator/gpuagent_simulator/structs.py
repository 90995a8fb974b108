"""Lay out NVML's structs as nvml.h has them, written by hand: the entry points see only addresses."""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_double, c_int, c_longlong, c_uint, c_ulonglong, c_void_p
from struct import Struct

from gpuagent_simulator.abi import Code, Refusal

NOT_AVAILABLE = 2**64 - 1
"""NVML_VALUE_NOT_AVAILABLE as an unsigned long long."""
NO_INSTANCE = 0xFFFFFFFF

PROCESS = Struct("<IxxxxQII")
"""nvmlProcessInfo_v2_t: pid, memory, GPU instance, compute instance; 24 bytes."""
PROCESS_DETAIL = Struct("<IxxxxQIIQ")
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
        raise Refusal(Code.ARGUMENT_VERSION_MISMATCH)
