"""Declare entry points as data: a C symbol, its body, and what every call of that kind checks first.

A body gets the device (or, for calls without one, the session) and the arguments as ctypes passes them. It returns None
for SUCCESS or raises `Refusal`; only few return a code of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from gpuagent_simulator.abi import Code, Refusal, put_uint, put_ulonglong
from gpuagent_simulator.device import Device, Gpu
from gpuagent_simulator.faults import FaultKind
from gpuagent_simulator.models import Feature
from gpuagent_simulator.session import SPOILED, SimulatedSession

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
        except Refusal as refusal:
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
        raise Refusal(Code.NOT_SUPPORTED)
    if entry.feature is not None:
        device.need(entry.feature)
    return device


def _spoil(session: SimulatedSession, symbol: str, gpu: int, args: tuple[Any, ...]) -> None:
    """Put garbage over the answer, where a fault says so and the call answers with quantities."""
    faults = session.faults
    if not faults.of(gpu):
        return
    fault = faults.find(FaultKind.GARBAGE_VALUES, gpu)
    if fault is not None and fault.concerns(symbol) and any(fnmatchcase(symbol, pattern) for pattern in SPOILED):
        session.garbage.spoil(args)
