"""Decide between nvmlInit and nvmlShutdown whether a call is answered at all, and which GPU a handle means.

`Garbage` puts numbers that no GPU can have over what a call has just answered. Each has been seen in the wild: the
driver's own "not available" where a plain number is due, the blanks of DCGM, a utilization of 37,100 %
(https://github.com/Syllo/nvtop/issues/110), counts below zero, and what is no number at all.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import threading
from collections.abc import Iterator
from typing import Any

from gpuagent_simulator.abi import Code, Pointers, Refusal
from gpuagent_simulator.device import Device, Gpu, MigDevice
from gpuagent_simulator.faults import FaultBoard, FaultKind
from gpuagent_simulator.functions import ScenarioClock
from gpuagent_simulator.spec import Scenario

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
length is not garbage to be recognized, but memory written past its end."""
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
    """Return the objects behind an argument that a caller has passed by reference; values and handles are none."""
    referred = getattr(argument, "_obj", argument if isinstance(argument, ctypes.Array) else None)
    if isinstance(referred, ctypes.Array):
        yield from (entry for entry in referred if isinstance(entry, ctypes.Structure))
    elif referred is not None:
        yield referred


class SimulatedSession:
    """The library's state in this process. Thread-safe."""

    def __init__(self, scenario: Scenario, gpus: list[Gpu], *, story: ScenarioClock, faults: FaultBoard) -> None:
        self.scenario = scenario
        self.story = story
        self.faults = faults
        self.pointers = Pointers()
        self.garbage = Garbage()
        self.gpus = gpus
        self._lock = threading.Lock()
        self._references = 0
        self._generation = faults.generation()
        self._born = story.now()

    # ---- life ------------------------------------------------------------------------------------

    def initialize(self) -> None:
        """Open the library once more.

        Raises:
            Refusal: the driver is not there, is another one, or the scenario says so.
        """
        fault = self.faults.find(FaultKind.INIT_ERROR)
        if fault is not None and fault.code is not None:
            raise Refusal(fault.code)
        self._check_driver()
        with self._lock:
            generation = self.faults.generation()
            if generation != self._generation:
                self._generation, self._references = generation, 0
                self.pointers.invalidate()
            self._references += 1

    def shutdown(self) -> None:
        """Close it once.

        Raises:
            Refusal: it was not open.
        """
        with self._lock:
            if not self._references:
                raise Refusal(Code.UNINITIALIZED)
            self._references -= 1

    def check(self) -> None:
        """Raise what every call answers in a session that is none.

        The library is closed, or the driver is not the one it was opened with.
        """
        if not self._references:
            raise Refusal(Code.UNINITIALIZED)
        if self.faults.of(None):
            self._check_driver()
        if self.faults.generation() != self._generation:
            raise Refusal(Code.UNINITIALIZED)

    def _check_driver(self) -> None:
        if self.faults.driver_is_down():
            raise Refusal(Code.DRIVER_NOT_LOADED)
        mismatch = self.faults.find(FaultKind.VERSION_MISMATCH)
        # A process keeps the library it has mapped: only one that started later has the new one.
        if mismatch is not None and (mismatch.at == 0 or self._born < mismatch.at):
            raise Refusal(Code.LIB_RM_VERSION_MISMATCH)

    def driver_version(self) -> str:
        """Return the version of the driver that is loaded now."""
        return self.faults.driver_version(self.scenario.driver)

    # ---- devices ---------------------------------------------------------------------------------

    def enumerated(self) -> list[Gpu]:
        """Return the GPUs that the driver counts, in the order of their indices."""
        return [gpu for gpu in self.gpus if self.faults.find(FaultKind.VANISH, gpu.index) is None]

    def index_of(self, gpu: Gpu) -> int:
        """Return its index now: those behind a vanished one move up."""
        return sum(other.index < gpu.index for other in self.enumerated())

    def check_present(self, device: Device) -> None:
        """Raise if the GPU has gone, or the MIG instance."""
        gpu = device.parent
        if self.faults.of(gpu.index):
            if self.faults.find(FaultKind.VANISH, gpu.index) is not None:
                raise Refusal(Code.GPU_IS_LOST)
            lost = self.faults.find(FaultKind.LOST, gpu.index)
            if lost is not None:
                raise Refusal(Code.GPU_IS_LOST if lost.code is None else lost.code)
        if isinstance(device, MigDevice) and not device.exists(self.story.now()):
            raise Refusal(Code.INVALID_ARGUMENT)

    def device(self, handle: Any) -> Device:
        """Return the device that a handle means.

        Raises:
            Refusal: INVALID_ARGUMENT for NULL and for a handle from before a driver reload.
        """
        return self.pointers.resolve((Gpu, MigDevice), handle)  # type: ignore[arg-type]

    def handle(self, device: Device, symbol: str) -> int:
        """Return the address that callers know this device by.

        Taking it can hang or fail like any call on the GPU.
        """
        if self.faults.wait(symbol, device.parent.index, own=True):
            self.check()
        self.check_present(device)
        self.faults.refuse(symbol, device.parent.index, own=True)
        return self.pointers.issue(device)
