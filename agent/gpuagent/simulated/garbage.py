"""Numbers that no GPU can have, put over what a call has just answered.

Each has been seen in the wild: the driver's own "not available" where a plain number is due, the blanks of DCGM, a
utilisation of 37,100 % (https://github.com/Syllo/nvtop/issues/110), counts below zero, and what is no number at all.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Iterator
from typing import Any

NUMBERS = (2**64 - 1, 37_100, -1, 2**63 - 16, 2**31 - 16, 2**32 - 1, 2**53 + 1, 2**60)
FLOATS = (math.nan, math.inf, -1.0, 140737488355328.0, 37_100.0)
SPOILED = (
    *("nvmlDeviceGetMemoryInfo*", "nvmlDeviceGetBAR1MemoryInfo", "nvmlDeviceGetUtilizationRates"),
    *("nvmlDeviceGetEncoderUtilization", "nvmlDeviceGetDecoderUtilization", "nvmlDeviceGetJpgUtilization"),
    *("nvmlDeviceGetOfaUtilization", "nvmlDeviceGetTemperature*", "nvmlDeviceGetMarginTemperature"),
    *("nvmlDeviceGetPower*", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetTotalEnergyConsumption"),
    *("nvmlDeviceGetClockInfo", "nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetCurrentClocks*", "nvmlDeviceGetFanSpeed*"),
    *("nvmlDeviceGet*Pcie*", "nvmlDeviceGet*Ecc*", "nvmlDeviceGetRemappedRows*", "nvmlDeviceGetRowRemapperHistogram"),
    "nvmlDeviceGetFieldValues",
)
"""Calls that answer with quantities. What a caller allocates by, such as the length of a list, is left alone: a wrong
length is not garbage to be recognised, but memory written past its end."""
_LEFT_ALONE = frozenset({"version", "sensorType"})
_WHOLE = (ctypes.c_int, ctypes.c_uint, ctypes.c_longlong, ctypes.c_ulonglong)


class Garbage:
    """Hands out bad numbers in turn, so that a run of calls meets them all."""

    def __init__(self) -> None:
        self._numbers = itertools.cycle(NUMBERS)
        self._floats = itertools.cycle(FLOATS)

    def spoil(self, args: tuple[Any, ...]) -> None:
        """Overwrite whatever these arguments of a finished call point to."""
        for argument in args:
            for target in _targets(argument):
                self._overwrite(target)

    def _overwrite(self, target: Any) -> None:
        if hasattr(target, "valueType"):  # a field's value, in whoever's declaration of nvmlFieldValue_t
            target.value.ullVal = next(self._numbers) & 2**64 - 1
        elif isinstance(target, _WHOLE):
            target.value = next(self._numbers)
        elif isinstance(target, ctypes.c_double):
            target.value = next(self._floats)
        elif isinstance(target, ctypes.Structure):
            self._overwrite_fields(target)

    def _overwrite_fields(self, struct: ctypes.Structure) -> None:
        for name, kind, *_ in struct._fields_:
            if name in _LEFT_ALONE:
                continue
            if kind in _WHOLE:
                setattr(struct, name, next(self._numbers))
            elif kind is ctypes.c_double:
                setattr(struct, name, next(self._floats))


def _targets(argument: Any) -> Iterator[Any]:
    """The objects behind an argument that a caller has passed by reference; values and handles are none."""
    referred = getattr(argument, "_obj", argument if isinstance(argument, ctypes.Array) else None)
    if isinstance(referred, ctypes.Array):
        yield from (entry for entry in referred if isinstance(entry, ctypes.Structure))
    elif referred is not None:
        yield referred
