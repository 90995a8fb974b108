"""Entry points: count devices, take handles, tell what a device or MIG device is, and deliver Xid events.

The events of the scenario are fixed by its faults; an event set remembers what it has already delivered. Waiting goes
by real time, as in the driver; what is waited for happens by the scenario's clock.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from gpuagent_simulator.abi import (
    NO_INSTANCE,
    Code,
    DeviceAttributes,
    EventData,
    NvmlError,
    PciInfo,
    number,
    put_pointer,
    put_text,
    put_uint,
    put_ulonglong,
    text,
    view,
)
from gpuagent_simulator.device import Device, Gpu, MigDevice
from gpuagent_simulator.faults import Fault, FaultKind
from gpuagent_simulator.session import EntryTable, SimulatedSession, gauges, on_device, on_session
from gpuagent_simulator.spec import Feature

ENTRIES: EntryTable = {}


@on_session(ENTRIES, "nvmlSystemGetDriverVersion")
def driver_version(session: SimulatedSession, out: Any, size: Any) -> None:
    put_text(out, size, session.driver_version().encode())


@on_session(ENTRIES, "nvmlSystemGetNVMLVersion")
def nvml_version(session: SimulatedSession, out: Any, size: Any) -> None:
    put_text(out, size, (session.scenario.nvml or f"13.{session.driver_version()}").encode())


@on_session(ENTRIES, "nvmlSystemGetCudaDriverVersion", "nvmlSystemGetCudaDriverVersion_v2")
def cuda_version(session: SimulatedSession, out: Any) -> None:
    put_uint(out, session.scenario.cuda)


@on_session(ENTRIES, "nvmlDeviceGetCount_v2", "nvmlDeviceGetCount")
def count(session: SimulatedSession, out: Any) -> None:
    put_uint(out, len(session.enumerated()))


@on_session(ENTRIES, "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex")
def handle_by_index(session: SimulatedSession, index: Any, out: Any) -> None:
    gpus = session.enumerated()
    if not 0 <= number(index) < len(gpus):
        raise NvmlError(Code.INVALID_ARGUMENT)
    put_pointer(out, session.handle(gpus[number(index)], "nvmlDeviceGetHandleByIndex_v2"))


@on_session(ENTRIES, "nvmlDeviceGetHandleByUUID")
def handle_by_uuid(session: SimulatedSession, uuid: Any, out: Any) -> None:
    wanted = text(uuid)
    for gpu in session.enumerated():
        devices: list[Device] = [gpu, *gpu.live_instances()]
        for device in devices:
            if device.uuid == wanted:
                put_pointer(out, session.handle(device, "nvmlDeviceGetHandleByUUID"))
                return
    raise NvmlError(Code.NOT_FOUND)


@on_session(ENTRIES, "nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetHandleByPciBusId")
def handle_by_pci_bus_id(session: SimulatedSession, bus_id: Any, out: Any) -> None:
    """Accept the long form (`00000000:18:00.0`) and the legacy one (`0000:18:00.0`)."""
    wanted = text(bus_id).decode("utf-8", "replace").upper()
    for gpu in session.enumerated():
        if wanted in (gpu.pci_bus_id.upper(), gpu.pci_bus_id.upper()[4:]):
            put_pointer(out, session.handle(gpu, "nvmlDeviceGetHandleByPciBusId_v2"))
            return
    raise NvmlError(Code.NOT_FOUND)


@on_device(ENTRIES, "nvmlDeviceGetIndex", mig=True, with_session=True)
def index(session: SimulatedSession, device: Device, out: Any) -> None:
    put_uint(out, device.slot if isinstance(device, MigDevice) else session.index_of(device))


@on_device(ENTRIES, "nvmlDeviceGetName", mig=True)
def name(device: Device, out: Any, size: Any) -> None:
    spoiled = device.parent.faults.find(FaultKind.NON_UTF8_NAME, device.parent.index)
    put_text(out, size, b"NVIDIA \xff\xfe\x80" if spoiled else device.name)


@on_device(ENTRIES, "nvmlDeviceGetUUID", mig=True)
def uuid(device: Device, out: Any, size: Any) -> None:
    put_text(out, size, device.uuid)


@on_device(ENTRIES, "nvmlDeviceGetSerial", feature=Feature.SERIAL, mig=True)
def serial(device: Device, out: Any, size: Any) -> None:
    put_text(out, size, device.parent.serial)


@on_device(ENTRIES, "nvmlDeviceGetVbiosVersion", mig=True)
def vbios_version(device: Device, out: Any, size: Any) -> None:
    put_text(out, size, device.parent.spec.vbios.encode())


@on_device(ENTRIES, "nvmlDeviceGetCudaComputeCapability", mig=True)
def compute_capability(device: Device, major: Any, minor: Any) -> None:
    put_uint(major, device.parent.spec.compute_capability[0])
    put_uint(minor, device.parent.spec.compute_capability[1])


@on_device(ENTRIES, "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", mig=True)
def pci_info(device: Device, out: Any) -> None:
    gpu = device.parent
    info = view(PciInfo, out)
    domain, bus, rest = gpu.pci_bus_id.split(":")
    info.busId = gpu.pci_bus_id.encode()
    info.busIdLegacy = gpu.pci_bus_id[4:].encode()
    info.domain, info.bus, info.device = int(domain, 16), int(bus, 16), int(rest.split(".")[0], 16)
    info.pciDeviceId = gpu.spec.pci_device_id
    info.pciSubSystemId = gpu.spec.pci_subsystem_id


def _minor_number(gpu: Gpu) -> int:
    """Return the number of /dev/nvidia<n>, which stays when other GPUs vanish."""
    return gpu.index


gauges(
    ENTRIES,
    {
        "nvmlDeviceGetMinorNumber": _minor_number,
        "nvmlDeviceGetComputeMode": lambda _: 0,
        "nvmlDeviceGetDisplayActive": lambda _: 0,
        "nvmlDeviceGetPersistenceMode": lambda gpu: gpu.spec.persistence,
    },
)
gauges(
    ENTRIES,
    {
        "nvmlDeviceGetBrand": lambda gpu: gpu.spec.brand,
        "nvmlDeviceGetArchitecture": lambda gpu: gpu.spec.architecture,
    },
    mig=True,
)


MAX_MIG_DEVICES = 7


@on_device(ENTRIES, "nvmlDeviceGetMigMode", feature=Feature.MIG)
def mig_mode(gpu: Gpu, current: Any, pending: Any) -> None:
    put_uint(current, gpu.mig_enabled)
    put_uint(pending, gpu.mig_enabled)


@on_device(ENTRIES, "nvmlDeviceGetMaxMigDeviceCount")
def max_mig_device_count(gpu: Gpu, out: Any) -> None:
    put_uint(out, MAX_MIG_DEVICES if gpu.mig_enabled else 0)


@on_device(ENTRIES, "nvmlDeviceGetMigDeviceHandleByIndex", feature=Feature.MIG, with_session=True)
def mig_device_handle_by_index(session: SimulatedSession, gpu: Gpu, slot: Any, out: Any) -> None:
    if not 0 <= number(slot) < MAX_MIG_DEVICES:
        raise NvmlError(Code.INVALID_ARGUMENT)
    live = gpu.live_instances()
    if number(slot) >= len(live):
        raise NvmlError(Code.NOT_FOUND)
    put_pointer(out, session.pointers.issue(live[number(slot)]))


@on_device(ENTRIES, "nvmlDeviceIsMigDeviceHandle", mig=True)
def is_mig_device_handle(device: Device, out: Any) -> None:
    put_uint(out, device.is_mig)


@on_device(ENTRIES, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", mig=True, with_session=True)
def handle_from_mig_device(session: SimulatedSession, device: Device, out: Any) -> None:
    if not device.is_mig:
        raise NvmlError(Code.INVALID_ARGUMENT)
    put_pointer(out, session.pointers.issue(device.parent))


@on_device(ENTRIES, "nvmlDeviceGetGpuInstanceId", mig=True)
def gpu_instance_id(device: Device, out: Any) -> None:
    put_uint(out, _instance(device).spec.gpu_instance)


@on_device(ENTRIES, "nvmlDeviceGetComputeInstanceId", mig=True)
def compute_instance_id(device: Device, out: Any) -> None:
    put_uint(out, _instance(device).spec.compute_instance)


@on_device(ENTRIES, "nvmlDeviceGetAttributes_v2", mig=True)
def attributes(device: Device, out: Any) -> None:
    spec, answer = _instance(device).spec, view(DeviceAttributes, out)
    answer.multiprocessorCount = spec.multiprocessors
    answer.sharedCopyEngineCount = answer.sharedDecoderCount = spec.slices
    answer.sharedEncoderCount = answer.sharedJpegCount = answer.sharedOfaCount = 0
    answer.gpuInstanceSliceCount = answer.computeInstanceSliceCount = spec.slices
    answer.memorySizeMB = spec.memory // 1024**2


def _instance(device: Device) -> MigDevice:
    if not isinstance(device, MigDevice):
        raise NvmlError(Code.NOT_SUPPORTED)
    return device


XID = 0x8
SUPPORTED_TYPES = 0x1 | 0x2 | 0x4 | XID | 0x10 | 0x80
"""ECC errors, performance state, Xid, clock and power source: nvmlEventType* in nvml.h. Only Xids
happen."""
_POLL_SECONDS = 0.02


class XidEvent(NamedTuple):
    """One Xid on one GPU.

    `fault` and `number` tell equal ones apart: each is an event of its own.
    """

    at: float
    gpu: Gpu
    fault: Fault
    number: int


class EventSet:
    """Event set: what a caller registered for, and what was delivered to it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.registered: dict[int, tuple[int, float]] = {}
        """Mask of types and second of the scenario at the registration, by GPU index."""
        self.delivered: dict[tuple[int, int, int], XidEvent] = {}
        """Keeps the events, so that no later fault can have the identity of one that is gone."""


def _events(gpu: Gpu, after: float, until: float) -> Iterator[XidEvent]:
    """Return the Xids of a GPU in a period of the scenario."""
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
        raise NvmlError(Code.NOT_SUPPORTED)
    known = session.pointers.resolve(EventSet, event_set)
    with known.lock:
        mask, since = known.registered.get(gpu.index, (0, gpu.scenario_clock.now()))
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
            raise NvmlError(Code.TIMEOUT)
        session.faults.wait_for_change(min(left, _seconds_until_poll(session)))


def _seconds_until_poll(session: SimulatedSession) -> float:
    """Return the seconds until the next poll: the scenario's clock cannot wake us.

    While anything is still to happen, poll again and again, else only when notified.
    """
    return _POLL_SECONDS if session.faults.more_to_come() else math.inf


def _next_event(session: SimulatedSession, waiting: EventSet) -> XidEvent | None:
    """Take the oldest event out of the set.

    Raises:
        Refusal: GPU_IS_LOST, a GPU of the set has gone and nothing is left to tell.
    """
    now, due = session.scenario_clock.now(), []
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
