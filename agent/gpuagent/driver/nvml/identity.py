"""Read what a GPU is: asked once per initialization, because nothing here changes while a handle is valid."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from gpuagent.core.clock import Clock
from gpuagent.core.hardware import HostMemory, MemoryKind
from gpuagent.core.snapshot import GpuIdentity
from gpuagent.driver.nvml.device import NvmlDevice, count
from gpuagent.driver.nvml.library import GET_HANDLE, NOT_SUPPORTED, UNKNOWN, Library, NvmlFailure
from gpuagent.driver.nvml.links import C2C_LINKS

_BRANDS = {
    1: "Quadro", 2: "Tesla", 3: "NVS", 4: "GRID", 5: "GeForce", 6: "Titan", 7: "vApps", 8: "vPC", 9: "vCS",
    10: "vWS", 11: "Cloud Gaming", 12: "Quadro RTX", 13: "NVIDIA RTX", 14: "NVIDIA", 15: "GeForce RTX",
    16: "Titan RTX",
}  # fmt: skip


def open_device(
    library: Library,
    index: int,
    clock: Clock,
    address_of: Callable[[str], str] = lambda _: "",
    host_memory: Callable[[], HostMemory | None] = lambda: None,
    kind: MemoryKind | None = None,
) -> NvmlDevice:
    """Attach to a GPU by its index and read what it is. May block: the driver wakes the GPU.

    `address_of` tells the PCI address at which the GPU with a UUID was last seen, for when the driver does not: one
    call that fails makes no other GPU of it. The driver is asked again by `refresh_pci_address`. `kind` is where the
    memory is, for whoever knows better than the signs.

    Raises:
        NvmlFailure: the GPU has no handle. UNKNOWN here is another face of a lost GPU
            (https://github.com/wookayin/gpustat/issues/125) and is raised as it is.
    """
    handle = library.call(GET_HANDLE, index)
    device = NvmlDevice(library, handle, GpuIdentity(index=index, uuid=""), clock)
    device.host_memory = host_memory
    device.identity = read(device, index, kind)
    if not device.identity.uuid:
        raise device.failures[0] if device.failures else NvmlFailure("nvmlDeviceGetUUID", UNKNOWN)
    device.address_read = bool(device.identity.pci_bus_id)
    if not device.address_read:
        known = address_of(device.identity.uuid)
        device.identity = dataclasses.replace(device.identity, pci_bus_id=known)
    return device


def read(device: NvmlDevice, index: int, kind: MemoryKind | None = None) -> GpuIdentity:
    """Read the identity of an attached GPU; what it does not tell is ""."""
    pci = device.ask("nvmlDeviceGetPciInfo")
    capability = device.ask("nvmlDeviceGetCudaComputeCapability")
    brand = device.ask("nvmlDeviceGetBrand")
    kind = kind or memory_kind(device)
    return GpuIdentity(
        index=index,
        uuid=device.ask_text("nvmlDeviceGetUUID"),
        name=device.ask_text("nvmlDeviceGetName"),
        serial=device.ask_text("nvmlDeviceGetSerial"),
        pci_bus_id=_pci_bus_id(pci),
        vbios_version=device.ask_text("nvmlDeviceGetVbiosVersion"),
        brand=_BRANDS.get(brand, "") if brand is not None else "",
        compute_capability=f"{capability[0]}.{capability[1]}" if capability else "",
        mig_enabled=mig_enabled(device),
        memory_kind=kind,
        numa_node=count(_told(device, "nvmlDeviceGetNumaNodeId")) if kind is MemoryKind.COHERENT else None,
    )


def refresh_pci_address(device: NvmlDevice) -> None:
    """Ask again for an address that could not be read so far."""
    if device.address_read:
        return
    address = _pci_bus_id(device.ask("nvmlDeviceGetPciInfo"))
    if address:
        device.address_read = True
        device.identity = dataclasses.replace(device.identity, pci_bus_id=address)


def refresh_mig_mode(device: NvmlDevice) -> None:
    """Ask whether MIG was switched while the handle stayed valid. An answer that fails leaves it as it was.

    With MIG on, utilization, remapped rows and more are not supported, and others are (nvml.h).
    """
    failures = len(device.failures)
    enabled = mig_enabled(device)
    if len(device.failures) == failures and enabled != device.identity.mig_enabled:
        device.identity = dataclasses.replace(device.identity, mig_enabled=enabled)
        device.forget_unsupported()


def mig_enabled(device: NvmlDevice) -> bool | None:
    """Return whether MIG mode is on; None where the GPU has none."""
    modes = device.ask("nvmlDeviceGetMigMode")
    return None if modes is None else bool(modes[0])


def _pci_bus_id(pci: object | None) -> str:
    try:
        bus_id = getattr(pci, "busId", "")
    except UnicodeDecodeError:  # pynvml decodes on access
        return ""
    return bus_id.decode("ascii", "replace") if isinstance(bus_id, bytes) else str(bus_id)


_BAR1 = "nvmlDeviceGetBAR1MemoryInfo"
_ADDRESSES_OF_THE_CPU = 2  # NVML_DEVICE_ADDRESSING_MODE_ATS
_SAME_SIZE_RATIO = 0.02


def memory_kind(device: NvmlDevice) -> MemoryKind:
    """Return where the memory of the GPU is, by more than one sign.

    GB10, Jetson and the like answer NOT_SUPPORTED to every form of the memory call, and only they
    (https://github.com/leptonai/gpud/issues/1170); on one, the call was seen to succeed with the figures of the host
    (https://github.com/XuehaiPan/nvitop/issues/208): then the size is that of the host, and there is no BAR1 through
    which a CPU would reach memory on a board. A lost GPU answers otherwise and is not taken for one.
    """
    total = _total_bytes(device)
    if total == _NOT_SUPPORTED:
        return MemoryKind.UNIFIED
    host = device.host_memory()
    as_large = host is not None and abs(total - host.total_bytes) <= _SAME_SIZE_RATIO * host.total_bytes
    if as_large and device.ask(_BAR1) is None and device.lacks(_BAR1):
        return MemoryKind.UNIFIED
    if _c2c_links(device) or _told(device, "nvmlDeviceGetAddressingMode") == _ADDRESSES_OF_THE_CPU:
        return MemoryKind.COHERENT
    return MemoryKind.DEDICATED


def _told(device: NvmlDevice, function: str, *args: object) -> Any | None:
    """Return what a call answers; None where it fails: that nearly every GPU lacks it is no news."""
    try:
        return device.library.call(function, device.handle, *args)
    except NvmlFailure as failure:
        if failure.lost or failure.ends_session:
            raise
        return None


def _c2c_links(device: NvmlDevice) -> int:
    answers = _told(device, "nvmlDeviceGetFieldValues", [C2C_LINKS])
    return int(answers[0].value.uiVal) if answers and not answers[0].nvmlReturn else 0


_NOT_SUPPORTED = -1


def _total_bytes(device: NvmlDevice) -> int:
    """Return the size that the driver tells; _NOT_SUPPORTED where no form of the call is, 0 where one fails."""
    for version in ("nvmlMemory_v2", None):
        args = () if version is None else (device.library.constant(version),)
        try:
            return int(device.library.call("nvmlDeviceGetMemoryInfo", device.handle, *args).total)
        except NvmlFailure as failure:
            if failure.code != NOT_SUPPORTED:
                return 0
    return _NOT_SUPPORTED
