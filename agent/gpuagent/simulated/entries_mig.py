"""Entry points: MIG devices."""

from __future__ import annotations

from typing import Any

from gpuagent.simulated.arguments import number, put_pointer, put_uint, view
from gpuagent.simulated.codes import Code, Refusal
from gpuagent.simulated.device import Device, Gpu, MigDevice
from gpuagent.simulated.entry import Table, on_device
from gpuagent.simulated.models import Feature
from gpuagent.simulated.session import Session
from gpuagent.simulated.structs import DeviceAttributes

ENTRIES: Table = {}

MAX_MIG_DEVICES = 7


@on_device(ENTRIES, "nvmlDeviceGetMigMode", feature=Feature.MIG)
def mig_mode(gpu: Gpu, current: Any, pending: Any) -> None:
    put_uint(current, gpu.mig_enabled)
    put_uint(pending, gpu.mig_enabled)


@on_device(ENTRIES, "nvmlDeviceGetMaxMigDeviceCount")
def max_mig_device_count(gpu: Gpu, out: Any) -> None:
    put_uint(out, MAX_MIG_DEVICES if gpu.mig_enabled else 0)


@on_device(ENTRIES, "nvmlDeviceGetMigDeviceHandleByIndex", feature=Feature.MIG, with_session=True)
def mig_device_handle_by_index(session: Session, gpu: Gpu, slot: Any, out: Any) -> None:
    if not 0 <= number(slot) < MAX_MIG_DEVICES:
        raise Refusal(Code.INVALID_ARGUMENT)
    live = gpu.live_instances()
    if number(slot) >= len(live):
        raise Refusal(Code.NOT_FOUND)
    put_pointer(out, session.pointers.issue(live[number(slot)]))


@on_device(ENTRIES, "nvmlDeviceIsMigDeviceHandle", mig=True)
def is_mig_device_handle(device: Device, out: Any) -> None:
    put_uint(out, device.is_mig)


@on_device(ENTRIES, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", mig=True, with_session=True)
def handle_from_mig_device(session: Session, device: Device, out: Any) -> None:
    if not device.is_mig:
        raise Refusal(Code.INVALID_ARGUMENT)
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
        raise Refusal(Code.NOT_SUPPORTED)
    return device
