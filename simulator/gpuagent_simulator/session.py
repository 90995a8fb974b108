"""Answer calls between nvmlInit and nvmlShutdown: whether at all, which GPU a handle means, and what each call checks.

Entry points are declared as data: a C symbol, its body, and what every call of that kind checks first. A body gets the
device (or, for calls without one, the session) and the arguments as ctypes passes them. It returns None for SUCCESS or
raises `NvmlError`; only few return a code of their own.

`Garbage` puts numbers that no GPU can have over what a call has just answered. Each has been seen in the wild: the
driver's own "not available" where a plain number is due, the blanks of DCGM, a utilization of 37,100 %
(https://github.com/Syllo/nvtop/issues/110), counts below zero, and what is no number at all.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import threading
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from gpuagent_simulator.abi import Code, NvmlError, Pointers, put_uint, put_ulonglong
from gpuagent_simulator.curves import ScenarioClock
from gpuagent_simulator.device import Device, Gpu, MigDevice
from gpuagent_simulator.faults import FaultInjector, FaultKind
from gpuagent_simulator.spec import Feature, Scenario

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
    """Overwrite answers with bad numbers in turn, so that a run of calls meets them all."""

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

    def __init__(
        self, scenario: Scenario, gpus: list[Gpu], *, scenario_clock: ScenarioClock, faults: FaultInjector
    ) -> None:
        self.scenario = scenario
        self.scenario_clock = scenario_clock
        self.faults = faults
        self.pointers = Pointers()
        self.garbage = Garbage()
        self.gpus = gpus
        self._lock = threading.Lock()
        self._references = 0
        self._generation = faults.generation()
        self._born = scenario_clock.now()

    # ---- life ------------------------------------------------------------------------------------

    def initialize(self) -> None:
        """Open the library once more.

        Raises:
            Refusal: the driver is not there, is another one, or the scenario says so.
        """
        fault = self.faults.find(FaultKind.INIT_ERROR)
        if fault is not None and fault.code is not None:
            raise NvmlError(fault.code)
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
                raise NvmlError(Code.UNINITIALIZED)
            self._references -= 1

    def check(self) -> None:
        """Raise the code that every call returns outside of a session.

        The library is closed, or the driver is not the one it was opened with.
        """
        if not self._references:
            raise NvmlError(Code.UNINITIALIZED)
        if self.faults.of(None):
            self._check_driver()
        if self.faults.generation() != self._generation:
            raise NvmlError(Code.UNINITIALIZED)

    def _check_driver(self) -> None:
        if self.faults.driver_is_down():
            raise NvmlError(Code.DRIVER_NOT_LOADED)
        mismatch = self.faults.find(FaultKind.VERSION_MISMATCH)
        # A process keeps the library it has mapped: only one that started later has the new one.
        if mismatch is not None and (mismatch.at == 0 or self._born < mismatch.at):
            raise NvmlError(Code.LIB_RM_VERSION_MISMATCH)

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
                raise NvmlError(Code.GPU_IS_LOST)
            lost = self.faults.find(FaultKind.LOST, gpu.index)
            if lost is not None:
                raise NvmlError(Code.GPU_IS_LOST if lost.code is None else lost.code)
        if isinstance(device, MigDevice) and not device.exists(self.scenario_clock.now()):
            raise NvmlError(Code.INVALID_ARGUMENT)

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


Body = Callable[..., int | None]
EntryPoint = Callable[..., int]


class EntrySpec(NamedTuple):
    """One C function. `takes_device`: its first argument is a handle. `mig`: MIG handles will do.

    `with_session`: a body that takes a device gets the session too, before it.
    """

    body: Body
    takes_device: bool
    feature: Feature | None = None
    mig: bool = False
    with_session: bool = False


EntryTable = dict[str, EntrySpec]


def on_session(table: EntryTable, *symbols: str) -> Callable[[Body], Body]:
    """Register a body for calls that concern no device."""

    def register(body: Body) -> Body:
        for symbol in symbols:
            table[symbol] = EntrySpec(body, takes_device=False)
        return body

    return register


def on_device(
    table: EntryTable,
    *symbols: str,
    feature: Feature | None = None,
    mig: bool = False,
    with_session: bool = False,
) -> Callable[[Body], Body]:
    """Register a body for calls with a handle.

    Without the feature, or on a MIG handle, they are NOT_SUPPORTED.
    """

    def register(body: Body) -> Body:
        for symbol in symbols:
            table[symbol] = EntrySpec(body, takes_device=True, feature=feature, mig=mig, with_session=with_session)
        return body

    return register


def gauges(
    table: EntryTable,
    values: dict[str, Callable[[Gpu], float]],
    *,
    feature: Feature | None = None,
    wide: bool = False,
    mig: bool = False,
) -> None:
    """Register calls that store one unsigned number (`wide`: 64 bits) of the GPU."""
    put = put_ulonglong if wide else put_uint

    def body_of(value: Callable[[Gpu], float]) -> Body:
        def body(device: Device, out: Any) -> None:
            put(out, value(device.parent))

        return body

    for symbol, value in values.items():
        table[symbol] = EntrySpec(body_of(value), takes_device=True, feature=feature, mig=mig)


def bind(symbol: str, entry: EntrySpec, session: SimulatedSession) -> EntryPoint:
    """Return the function that is called in place of the C one.

    It must be a plain function: pynvml sets attributes such as `restype` on it.
    """

    def call(*args: Any) -> int:
        try:
            if not entry.takes_device:
                _enter(session, symbol)
                return entry.body(session, *args) or Code.SUCCESS
            device = _enter_device(session, symbol, entry, args[0])
            if entry.with_session:
                return entry.body(session, device, *args[1:]) or Code.SUCCESS
            code = entry.body(device, *args[1:]) or Code.SUCCESS
            _spoil(session, symbol, device.parent.index, args[1:])
            return code
        except NvmlError as refusal:
            return refusal.code

    return call


def _enter(session: SimulatedSession, symbol: str) -> None:
    session.check()
    if session.faults.of(None):
        if session.faults.wait(symbol, None):
            session.check()
        session.faults.refuse(symbol, None)


def _enter_device(session: SimulatedSession, symbol: str, entry: EntrySpec, handle: Any) -> Device:
    session.check()
    device = session.device(handle)
    gpu, faults = device.parent.index, session.faults
    if faults.wait(symbol, gpu):  # the world has moved on meanwhile
        session.check()
        session.device(handle)
    session.check_present(device)
    faults.refuse(symbol, gpu)
    if device.is_mig and not entry.mig:
        raise NvmlError(Code.NOT_SUPPORTED)
    if entry.feature is not None:
        device.require_feature(entry.feature)
    return device


def _spoil(session: SimulatedSession, symbol: str, gpu: int, args: tuple[Any, ...]) -> None:
    """Put garbage over the answer, where a fault says so and the call answers with quantities."""
    faults = session.faults
    if not faults.of(gpu):
        return
    fault = faults.find(FaultKind.GARBAGE_VALUES, gpu)
    if fault is not None and fault.applies_to(symbol) and any(fnmatchcase(symbol, pattern) for pattern in SPOILED):
        session.garbage.spoil(args)
