"""Stand between pynvml and the driver's library, and write down every call with its code, answer and duration."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpuagent_simulator.abi import (
    SAMPLE,
    SAMPLE_INFO,
    Code,
    FieldValue,
    GpmMetricsGet,
    NvmlError,
    ProcessDetailList,
    ProcessesUtilizationInfo,
    address,
    buffer_size,
    number,
    view,
)
from gpuagent_simulator.captures import lists
from gpuagent_simulator.captures.arguments import describe_call, read_outputs
from gpuagent_simulator.captures.library import INITIALIZE

_COUNT_GPUS, _HANDLE = "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2"
_MIG_HANDLE = "nvmlDeviceGetMigDeviceHandleByIndex"
_NOT_RECORDED = frozenset(
    {
        *("nvmlShutdown", "nvmlEventSetCreate", "nvmlEventSetFree", "nvmlEventSetWait_v2", "nvmlDeviceRegisterEvents"),
        *("nvmlGpmSampleAlloc", "nvmlGpmSampleFree"),
    }
)
"""Calls about addresses and events: a replay makes its own."""
_SAMPLES = frozenset({lists.OLD_SAMPLES, lists.NEW_SAMPLES})
_NOTHING: Any = object()


class Abandoned(BaseException):
    """Ends a thread for which nobody waits any more; nothing between it and the thread may handle that."""


class CallResult(NamedTuple):
    """How a call has ended."""

    code: int
    microseconds: int
    room: int
    """Entries for which the caller had room, in a call that answers a list."""


@dataclass
class RecordedDevice:
    """Answers of a GPU or MIG device (or of the library itself) by key, each by the number of the pass."""

    calls: dict[str, dict[int, Any]] = field(default_factory=dict)
    fields: dict[str, dict[int, Any]] = field(default_factory=dict)
    latency: dict[str, dict[int, int]] = field(default_factory=dict)
    """Microseconds."""
    instances: dict[int, RecordedDevice] = field(default_factory=dict)
    """MIG devices by their slots."""


class RecordingLibrary:
    """The driver's C entry points as attributes; used by one thread.

    A call is answered by the driver alone: nothing is added, kept back or changed. `wall` gives Unix time in seconds.
    """

    def __init__(self, library: Any, wall: Callable[[], float] = time.time) -> None:
        self._library = library
        self._wall = wall
        self.pass_number = 0
        self.system = RecordedDevice()
        self.gpus: dict[int, RecordedDevice] = {}
        self.absent: set[str] = set()
        """Symbols that the library does not have."""
        self.in_flight: tuple[str, RecordedDevice] | None = None
        """Call that has not come back yet, with whom it was asked of."""
        self.abandoned = False
        """Nobody waits any more: the thread ends with the next call, or with the one that comes back late."""
        self._by_address: dict[int, RecordedDevice] = {}
        self._sampled: dict[int, tuple[RecordedDevice, str]] = {}

    def __getattr__(self, symbol: str) -> Any:
        if symbol.startswith("_"):
            raise AttributeError(symbol)
        try:
            function = getattr(self._library, symbol)
        except AttributeError:
            self.absent.add(symbol)
            raise
        if symbol == "nvmlErrorString":  # pynvml declares what it returns
            return function

        def call(*args: Any) -> int:
            return self._call(symbol, function, args)

        return call

    def index_of(self, device: RecordedDevice) -> int | None:
        """Return the index of a GPU, or of a MIG device's; None for the library."""
        return next(
            (i for i, gpu in self.gpus.items() if device is gpu or any(device is e for e in gpu.instances.values())),
            None,
        )

    def call_count(self) -> int:
        """Return how many different calls and fields were answered."""
        gpus = [device for gpu in self.gpus.values() for device in (gpu, *gpu.instances.values())]
        return sum(len(device.calls) + len(device.fields) for device in (self.system, *gpus))

    def pids(self) -> set[int]:
        """Return every pid that a list or a sample has named."""
        return set(self._pids())

    def _pids(self) -> Iterator[int]:
        for gpu in self.gpus.values():
            for device in (gpu, *gpu.instances.values()):
                for passes in device.calls.values():
                    for answer in passes.values():
                        if isinstance(answer, dict):
                            yield from (row[0] for row in answer.get("processes") or answer.get("samples") or ())

    # ---- one call --------------------------------------------------------------------------------

    def _call(self, symbol: str, function: Callable[..., Any], args: tuple[Any, ...]) -> int:
        device, rest = self._device(args)
        if symbol in lists.PROCESS_LISTS and len(rest) > 1 and (size := buffer_size(rest[1])):
            ctypes.memset(address(rest[1]), lists.UNWRITTEN, size)  # as the agent itself does, to measure
        room = _room(symbol, rest)
        self.in_flight = symbol, device
        began = time.perf_counter()
        code = int(function(*args))
        if self.abandoned:
            raise Abandoned
        microseconds = round((time.perf_counter() - began) * 1e6)
        self.in_flight = None
        if symbol not in _NOT_RECORDED:
            with suppress(NvmlError):  # NULL in place of a result: there is nothing to read
                self._record(symbol, device, rest, CallResult(code, microseconds, room))
        return code

    def _device(self, args: tuple[Any, ...]) -> tuple[RecordedDevice, tuple[Any, ...]]:
        """Return whom a call asks, and the rest of its arguments."""
        with suppress(NvmlError):  # the first argument is no pointer
            if args and (known := self._by_address.get(address(args[0]))) is not None:
                return known, args[1:]
        return self.system, args

    def _record(self, symbol: str, device: RecordedDevice, args: tuple[Any, ...], result: CallResult) -> None:
        code = result.code
        in_a_list = symbol in lists.PROCESS_LISTS or symbol in _SAMPLES or symbol == lists.DETAIL_LIST
        if code == Code.INSUFFICIENT_SIZE and in_a_list:  # the caller comes again with a larger buffer
            return
        key = _key(symbol, args)
        if symbol == _HANDLE:
            device, key = self.gpus.setdefault(number(args[0]), RecordedDevice()), symbol
        elif symbol == lists.GPM_METRICS:
            device, key = self._sampled.get(view(GpmMetricsGet, args[0]).sample2 or 0, (device, symbol))
        answer = {lists.ERROR: lists.code_name(code)} if code else self._read(symbol, device, args, result.room)
        if answer is not _NOTHING:
            passes = device.calls.setdefault(key, {})
            # Samples are told once: the second time that one asks there are none since.
            if not (code == Code.NOT_FOUND and symbol in _SAMPLES and self.pass_number in passes):
                passes[self.pass_number] = answer
        device.latency.setdefault(key, {})[self.pass_number] = result.microseconds

    def _read(self, symbol: str, device: RecordedDevice, args: tuple[Any, ...], room: int) -> Any:
        """Return what a call has answered; _NOTHING where that is kept elsewhere, or follows from the rest."""
        if symbol in INITIALIZE:
            return _NOTHING
        if symbol == _HANDLE:
            self._by_address[_handle(args[1])] = device
            return _NOTHING
        if symbol == _MIG_HANDLE:
            instance = device.instances.setdefault(number(args[0]), RecordedDevice())
            self._by_address[_handle(args[1])] = instance
            return _NOTHING
        if symbol in lists.GPM_SAMPLES:
            gpu_instance = f"({number(args[0])})" if len(args) > 1 else ""
            self._sampled[address(args[-1])] = device, f"{lists.GPM_METRICS}{gpu_instance}"
            return None
        if symbol == lists.FIELD_VALUES:
            self._record_fields(device, args)
            return _NOTHING
        return _answer(symbol, args, int(self._wall() * 1e6), room)

    def _record_fields(self, device: RecordedDevice, args: tuple[Any, ...]) -> None:
        for entry in view(FieldValue * number(args[0]), args[1]):
            key = lists.field_key(entry.fieldId, entry.scopeId)
            device.fields.setdefault(key, {})[self.pass_number] = lists.read_field(entry)


def _handle(out: Any) -> int:
    """Return the address that a call has handed out."""
    return view(ctypes.c_void_p, out).value or 0


def _room(symbol: str, args: tuple[Any, ...]) -> int:
    """Return for how many entries a caller has room: no more are read, whatever the driver says."""
    with suppress(NvmlError):
        return _given_room(symbol, args)
    return 0


def _given_room(symbol: str, args: tuple[Any, ...]) -> int:
    if symbol in lists.PROCESS_LISTS:
        return view(ctypes.c_uint, args[0]).value
    if symbol == lists.DETAIL_LIST:
        return int(view(ProcessDetailList, args[0]).count)
    if symbol == lists.OLD_SAMPLES:
        return view(ctypes.c_uint, args[1]).value
    return int(view(ProcessesUtilizationInfo, args[0]).count) if symbol == lists.NEW_SAMPLES else 0


def _answer(symbol: str, args: tuple[Any, ...], now_microseconds: int, room: int) -> Any:
    if symbol in lists.PROCESS_LISTS:
        count = min(view(ctypes.c_uint, args[0]).value, room)
        size = min(count * lists.MOST_STRIDE, buffer_size(args[1]) or 0)
        written = ctypes.string_at(address(args[1]), size).rstrip(bytes([lists.UNWRITTEN])) if size else b""
        return lists.read_list(written, count)
    if symbol == lists.DETAIL_LIST:
        request = view(ProcessDetailList, args[0])
        count = min(request.count, room)
        data = ctypes.string_at(request.array, count * lists.MOST_STRIDE) if count else b""
        return lists.read_list(data, count, lists.MOST_STRIDE)
    if symbol == lists.OLD_SAMPLES:
        count = min(view(ctypes.c_uint, args[1]).value, room)
        data = ctypes.string_at(address(args[0]), count * SAMPLE.size)
        return lists.read_samples(data, now_microseconds, new=False)
    if symbol == lists.NEW_SAMPLES:
        asked = view(ProcessesUtilizationInfo, args[0])
        data = ctypes.string_at(asked.array, min(asked.count, room) * SAMPLE_INFO.size)
        return lists.read_samples(data, now_microseconds, new=True)
    if symbol == lists.GPM_METRICS:
        return lists.read_metrics(view(GpmMetricsGet, args[0]))
    return read_outputs(describe_call(symbol, args).outputs)


def _key(symbol: str, args: tuple[Any, ...]) -> str:
    if symbol in lists.PROCESS_LISTS or symbol in (lists.OLD_SAMPLES, lists.NEW_SAMPLES, lists.FIELD_VALUES):
        return symbol
    if symbol in INITIALIZE:
        return symbol
    if symbol in lists.GPM_SAMPLES:  # the sample is an address
        return f"{symbol}({number(args[0])})" if len(args) > 1 else symbol
    if symbol == lists.DETAIL_LIST:
        return f"{symbol}({view(ProcessDetailList, args[0]).mode})"
    return describe_call(symbol, args).key
