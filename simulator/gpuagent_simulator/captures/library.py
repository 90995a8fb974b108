"""Answer NVML's C calls as a capture has them, in place of libnvidia-ml under pynvml.

A simulated session stands behind it: it hands out the handles, keeps event sets and GPM samples, and answers what the
capture leaves to a base model. A call that was neither captured nor is left to a base is FUNCTION_NOT_FOUND.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Mapping
from typing import Any

from gpuagent_simulator.abi import (
    Code,
    FieldValue,
    GpmMetricsGet,
    NvmlError,
    ProcessDetailList,
    address,
    number,
    parse_code,
    put_pointer,
    view,
)
from gpuagent_simulator.captures import lists
from gpuagent_simulator.captures.arguments import describe_call, write_outputs
from gpuagent_simulator.captures.file import MISSING, Answers, Capture, CapturedDevice
from gpuagent_simulator.device import Device, MigDevice
from gpuagent_simulator.library import TABLES, SimulatedLibrary
from gpuagent_simulator.session import EntryPoint, EntrySpec, SimulatedSession, bind

log = logging.getLogger(__name__)

INITIALIZE = ("nvmlInitWithFlags", "nvmlInit_v2", "nvmlInit")
_PLUMBING = frozenset(
    {
        *("nvmlShutdown", "nvmlErrorString", "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", "nvmlEventSetCreate"),
        *("nvmlEventSetFree", "nvmlEventSetWait", "nvmlEventSetWait_v2", "nvmlDeviceRegisterEvents"),
        *("nvmlGpmSampleAlloc", "nvmlGpmSampleFree", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetHandleByPciBusId_v2"),
    }
)
"""Calls that hand out or take addresses: the session's own, whatever was captured."""
_COUNT, _HANDLE = "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2"
_MIG_HANDLE = "nvmlDeviceGetMigDeviceHandleByIndex"
_OF_THE_SESSION = frozenset(symbol for table in TABLES for symbol, entry in table.items() if not entry.takes_device)

PassNumber = Callable[[], int]


class ReplayedLibrary(SimulatedLibrary):
    """NVML's C entry points as attributes, by a capture. A symbol that is not there is an AttributeError."""

    def __init__(
        self, capture: Capture, session: SimulatedSession, base: SimulatedLibrary, pass_number: PassNumber
    ) -> None:
        super().__init__(session)
        self._capture = capture
        self._base = base
        self._pass = pass_number
        self._has_base = any(gpu.base is not None for gpu in capture.gpus)
        self._sampled: dict[int, tuple[Device, str]] = {}
        """Device and key of the metrics, by the address of a GPM sample."""

    def __getattr__(self, symbol: str) -> EntryPoint:
        if symbol.startswith("_"):
            raise AttributeError(symbol)
        if symbol in _PLUMBING:
            return self._base.__getattr__(symbol)
        if symbol in INITIALIZE:
            return self._initialize(symbol)
        if symbol == lists.GPM_METRICS:
            return bind(symbol, EntrySpec(self._metrics, takes_device=False), self._session)
        if symbol in (_COUNT, _HANDLE):
            body = self._count if symbol == _COUNT else self._handle
            return bind(symbol, EntrySpec(body, takes_device=False), self._session)
        if not self._knows(symbol) or self._is_taken_away(symbol):
            raise AttributeError(f"undefined symbol: {symbol}")
        if symbol in _OF_THE_SESSION or self._capture.system.has_symbol(symbol):
            return bind(symbol, EntrySpec(self._of_system(symbol), takes_device=False), self._session)
        body = self._of_device(symbol)
        return bind(symbol, EntrySpec(body, takes_device=True, mig=True, with_session=True), self._session)

    def _knows(self, symbol: str) -> bool:
        if self._has_base and hasattr(self._base, symbol):
            return True
        if symbol == lists.FIELD_VALUES and any(list(device.fields) for device in self._capture.devices()):
            return True
        if self._capture.system.has_symbol(symbol) or symbol == _MIG_HANDLE:
            return True
        return any(device.calls.has_symbol(symbol) for device in self._capture.devices())

    # ---- calls without a device ------------------------------------------------------------------

    def _initialize(self, symbol: str) -> EntryPoint:
        base = self._base.__getattr__(symbol)

        def call(*args: object) -> int:
            found = self._capture.system.find(symbol, self._pass())
            code = _code_of(found)
            return code or base(*args)

        return call

    def _count(self, _session: SimulatedSession, out: Any) -> None:
        found = self._capture.system.find(_COUNT, self._pass())
        if found is MISSING:
            self._forward(_COUNT, out)
        else:
            self._answered(found, _COUNT, (out,))

    def _handle(self, _session: SimulatedSession, index: Any, out: Any) -> None:
        if number(index) < len(self._capture.gpus):
            _raise_error(self._capture.gpus[number(index)].calls.find(_HANDLE, self._pass()))
        self._forward(_HANDLE, index, out)

    def _of_system(self, symbol: str) -> Callable[..., None]:
        def body(_session: SimulatedSession, *args: Any) -> None:
            found = self._capture.system.find(describe_call(symbol, args).key, self._pass())
            if found is MISSING:
                if not self._has_base:
                    raise NvmlError(Code.FUNCTION_NOT_FOUND)
                self._forward(symbol, *args)
            else:
                self._answered(found, symbol, args)

        return body

    # ---- calls with a device ---------------------------------------------------------------------

    def _captured(self, device: Device) -> CapturedDevice:
        gpu = self._capture.gpus[device.parent.index]
        if not isinstance(device, MigDevice):
            return gpu
        if not gpu.instances:  # the base's own
            return CapturedDevice(Answers({}), Answers({}), base=gpu.base)
        return gpu.instances[sorted(gpu.instances)[device.parent.instances.index(device)]]

    def _of_device(self, symbol: str) -> Callable[..., None]:
        def body(_session: SimulatedSession, device: Device, *args: Any) -> None:
            captured = self._captured(device)
            if symbol == _MIG_HANDLE:
                self._mig_handle(device, captured, *args)
                return
            if symbol == lists.FIELD_VALUES:
                self._fields(device, captured, *args)
                return
            found = captured.calls.find(_key(symbol, args), self._pass())
            if found is MISSING:
                self._leave_to_base(device, symbol, args)
            elif symbol in lists.GPM_SAMPLES:
                _raise_error(found)
                self._sample(device, args)
            else:
                self._answered(found, symbol, args)

        return body

    def _leave_to_base(self, device: Device, symbol: str, args: tuple[Any, ...]) -> None:
        if self._capture.gpus[device.parent.index].base is None:
            raise NvmlError(Code.FUNCTION_NOT_FOUND)
        self._forward(symbol, self._session.pointers.issue(device), *args)

    def _mig_handle(self, device: Device, captured: CapturedDevice, slot: Any, out: Any) -> None:
        if not captured.instances:
            found = captured.calls.find(f"{_MIG_HANDLE}({number(slot)})", self._pass())
            if found is MISSING:
                self._leave_to_base(device, _MIG_HANDLE, (slot, out))
            _raise_error(found)
            return
        slots = sorted(captured.instances)
        if number(slot) not in slots:
            raise NvmlError(Code.NOT_FOUND)
        put_pointer(out, self._session.pointers.issue(device.parent.instances[slots.index(number(slot))]))

    def _fields(self, device: Device, captured: CapturedDevice, count: Any, values: Any) -> None:
        _raise_error(captured.calls.find(lists.FIELD_VALUES, self._pass()))
        if self._capture.gpus[device.parent.index].base is not None:
            self._forward(lists.FIELD_VALUES, self._session.pointers.issue(device), count, values)
        now = self._session.scenario_clock.wall_microseconds()
        for entry in view(FieldValue * number(count), values):
            found = captured.fields.find(lists.field_key(entry.fieldId, entry.scopeId), self._pass())
            if found is not MISSING:
                lists.answer_field(entry, found, now)
            elif self._capture.gpus[device.parent.index].base is None:
                lists.answer_field(entry, {lists.ERROR: Code.NOT_SUPPORTED}, now)

    # ---- GPM -------------------------------------------------------------------------------------

    def _sample(self, device: Device, args: tuple[Any, ...]) -> None:
        instance = f"({number(args[0])})" if len(args) > 1 else ""
        self._sampled[address(args[-1])] = (device, f"{lists.GPM_METRICS}{instance}")

    def _metrics(self, _session: SimulatedSession, request: Any) -> None:
        header = view(GpmMetricsGet, request)
        sampled = self._sampled.get(header.sample2 or 0)
        if sampled is None:
            self._forward(lists.GPM_METRICS, request)
            return
        device, key = sampled
        found = self._captured(device).calls.find(key, self._pass())
        if found is MISSING:
            raise NvmlError(Code.FUNCTION_NOT_FOUND)
        _raise_error(found)
        lists.answer_metrics(header, found)

    # ---- answers ---------------------------------------------------------------------------------

    def _forward(self, symbol: str, *args: Any) -> None:
        """Let the session's own library answer."""
        code = getattr(self._base, symbol)(*args) if hasattr(self._base, symbol) else Code.FUNCTION_NOT_FOUND
        if code:
            raise NvmlError(code)

    def _answered(self, found: Any, symbol: str, args: tuple[Any, ...]) -> None:
        """Write a captured answer, or raise its code. UNKNOWN where it does not fit the call, and the log says why."""
        _raise_error(found)
        now = self._session.scenario_clock.wall_microseconds()
        try:
            if symbol in lists.PROCESS_LISTS:
                lists.answer_list(found, args)
            elif symbol == lists.DETAIL_LIST:
                lists.answer_details(found, args)
            elif symbol in (lists.OLD_SAMPLES, lists.NEW_SAMPLES):
                lists.answer_samples(found, args, now, new=symbol == lists.NEW_SAMPLES)
            else:
                write_outputs(describe_call(symbol, args).outputs, found)
        except (ValueError, TypeError, KeyError, ctypes.ArgumentError) as error:
            log.warning("capture %s: the answer to %s does not fit the call: %s", self._capture.name, symbol, error)
            raise NvmlError(Code.UNKNOWN) from None


def _key(symbol: str, args: tuple[Any, ...]) -> str:
    """Return the key of a call with a device."""
    if symbol in lists.PROCESS_LISTS or symbol in (lists.OLD_SAMPLES, lists.NEW_SAMPLES):
        return symbol
    if symbol == lists.DETAIL_LIST:
        return f"{symbol}({view(ProcessDetailList, args[0]).mode})"
    return describe_call(symbol, args).key


def _code_of(found: Any) -> int:
    return parse_code(found[lists.ERROR]) if isinstance(found, Mapping) and lists.ERROR in found else Code.SUCCESS


def _raise_error(found: Any) -> None:
    code = _code_of(found)
    if code:
        raise NvmlError(code)
