"""Entry points: event sets and Xid events.

The events of the scenario are fixed by its faults; an event set remembers what it has already delivered. Waiting goes
by real time, as in the driver; what is waited for happens by the scenario's clock.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from gpuagent_simulator.abi import Code, Refusal, number, put_pointer, put_ulonglong, view
from gpuagent_simulator.device import Device, Gpu
from gpuagent_simulator.entry import EntryTable, on_device, on_session
from gpuagent_simulator.faults import Fault, FaultKind
from gpuagent_simulator.models import Feature
from gpuagent_simulator.session import SimulatedSession
from gpuagent_simulator.structs import NO_INSTANCE, EventData

ENTRIES: EntryTable = {}

XID = 0x8
SUPPORTED_TYPES = 0x1 | 0x2 | 0x4 | XID | 0x10 | 0x80
"""ECC errors, performance state, Xid, clock and power source: nvmlEventType* in nvml.h. Only Xids
happen."""
_LOOK_SECONDS = 0.02


class XidEvent(NamedTuple):
    """One Xid on one GPU.

    `fault` and `number` tell equal ones apart: each is an event of its own.
    """

    at: float
    gpu: Gpu
    fault: Fault
    number: int


class EventSet:
    """What a caller registered for, and what it has been told."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.registered: dict[int, tuple[int, float]] = {}
        """By GPU index: mask of types, story time of the registration."""
        self.delivered: dict[tuple[int, int, int], XidEvent] = {}
        """Keeps the events, so that no later fault can have the identity of one that is gone."""


def _events(gpu: Gpu, after: float, until: float) -> Iterator[XidEvent]:
    """Return Xids of a GPU in a stretch of the story."""
    for fault in gpu.faults.of(gpu.index):
        if fault.kind is not FaultKind.XID:
            continue
        for repetition in range(fault.count):
            at = fault.at + repetition * fault.every
            if after < at <= until:
                yield XidEvent(at, gpu, fault, repetition)


@on_device(ENTRIES, "nvmlDeviceGetSupportedEventTypes", mig=True)
def supported_event_types(device: Device, out: Any) -> None:
    none = device.is_mig or Feature.EVENTS in device.lacks
    put_ulonglong(out, 0 if none else SUPPORTED_TYPES)


@on_session(ENTRIES, "nvmlEventSetCreate")
def event_set_create(session: SimulatedSession, out: Any) -> None:
    put_pointer(out, session.pointers.issue(EventSet()))


@on_session(ENTRIES, "nvmlEventSetFree")
def event_set_free(session: SimulatedSession, event_set: Any) -> None:
    session.pointers.resolve(EventSet, event_set)
    session.pointers.withdraw(event_set)


@on_device(ENTRIES, "nvmlDeviceRegisterEvents", feature=Feature.EVENTS, with_session=True)
def register_events(session: SimulatedSession, gpu: Gpu, types: Any, event_set: Any) -> None:
    """Register for events; only what happens from here on is delivered (nvml.h).

    One unsupported type refuses them all.
    """
    if number(types) & ~SUPPORTED_TYPES:
        raise Refusal(Code.NOT_SUPPORTED)
    known = session.pointers.resolve(EventSet, event_set)
    with known.lock:
        mask, since = known.registered.get(gpu.index, (0, gpu.story.now()))
        known.registered[gpu.index] = (mask | number(types), since)


@on_session(ENTRIES, "nvmlEventSetWait_v2", "nvmlEventSetWait")
def event_set_wait(session: SimulatedSession, event_set: Any, out: Any, timeout_ms: Any) -> None:
    """Answer the oldest event not yet delivered to this set.

    TIMEOUT after so many real milliseconds without one.
    """
    deadline = time.monotonic() + number(timeout_ms) / 1000
    while True:
        session.check()
        waiting = session.pointers.resolve(EventSet, event_set)
        event = _next_event(session, waiting)
        if event is not None:
            _deliver(session, event, out)
            return
        left = deadline - time.monotonic()
        if left <= 0:
            raise Refusal(Code.TIMEOUT)
        session.faults.wait_for_change(min(left, _until_next_look(session)))


def _until_next_look(session: SimulatedSession) -> float:
    """Return the time until the next look: a clock cannot wake us.

    While anything is still to happen, look again and again, else only when told.
    """
    return _LOOK_SECONDS if session.faults.more_to_come() else math.inf


def _next_event(session: SimulatedSession, waiting: EventSet) -> XidEvent | None:
    """Take the oldest event out of the set.

    Raises:
        Refusal: GPU_IS_LOST, a GPU of the set has gone and nothing is left to tell.
    """
    now, due = session.story.now(), []
    with waiting.lock:
        for gpu in session.gpus:
            mask, since = waiting.registered.get(gpu.index, (0, 0.0))
            if mask & XID:
                due += [event for event in _events(gpu, since, now) if _key(event) not in waiting.delivered]
        if due:
            event = min(due, key=lambda event: event.at)
            waiting.delivered[_key(event)] = event
            return event
    for gpu in session.gpus:
        if gpu.index in waiting.registered:
            session.check_present(gpu)
    return None


def _key(event: XidEvent) -> tuple[int, int, int]:
    return event.gpu.index, id(event.fault), event.number


def _deliver(session: SimulatedSession, event: XidEvent, out: Any) -> None:
    data = view(EventData, out)
    data.device = session.pointers.issue(event.gpu)
    data.eventType, data.eventData = XID, event.fault.xid or 0
    data.gpuInstanceId = data.computeInstanceId = NO_INSTANCE
