"""What a GPU is called whose index another GPU has now.

NVML numbers the GPUs that it lists. After one has gone, those behind it move up, and the index of the one that has
gone means a healthy one: `nvidia-smi -r -i 0` would reset that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpuagent.core.snapshot import GpuIdentity, GpuState, NvmlState, Snapshot

_MOST_DIGITS = 9


def displaced_gpus(snapshot: Snapshot | None) -> dict[str, GpuIdentity]:
    """Return, by UUID, the GPUs that are not listed any more and whose index another GPU has now."""
    gpus = () if snapshot is None else snapshot.gpus
    listed = {gpu.identity.index for gpu in gpus if gpu.state is not GpuState.GONE}
    return {
        gpu.identity.uuid: gpu.identity
        for gpu in gpus
        if gpu.state is GpuState.GONE and gpu.identity.uuid and gpu.identity.index in listed
    }


def displaced_gpu(labels: Mapping[str, str], snapshot: Snapshot | None) -> GpuIdentity | None:
    """Return the GPU that an alert with these labels names, if another one has its index now; None else.

    One that went before the agent was started is not in the snapshot: its labels are all that is known of it.
    """
    uuid, index = labels.get("uuid", ""), labels.get("gpu", "")
    if (known := displaced_gpus(snapshot).get(uuid)) is not None or snapshot is None:
        return known
    is_index = index.isdecimal() and len(index) <= _MOST_DIGITS
    if not uuid or not is_index or snapshot.node.nvml_state is not NvmlState.READY:
        return None
    uuids = {gpu.identity.uuid: str(gpu.identity.index) for gpu in snapshot.gpus if gpu.identity.uuid}
    return GpuIdentity(int(index), uuid) if uuid not in uuids and index in uuids.values() else None


def name_displaced(gpu: GpuIdentity) -> str:
    """Return `the former GPU 0 (GPU-51a0f2d4-..., PCI 00000000:1B:00.0)`."""
    address = f", PCI {gpu.pci_bus_id}" if gpu.pci_bus_id else ""
    return f"the former GPU {gpu.index} ({gpu.uuid}{address})"


def rename_displaced(text: str, gpu: GpuIdentity) -> str:
    """Return a text about this GPU in which its index, alone or after `-i`, is no other GPU's."""
    text = re.sub(rf"(?i)\bGPU {gpu.index}\b(?! \(GPU-)", name_displaced(gpu).replace("\\", r"\\"), text)
    return re.sub(rf"(?<=-i ){gpu.index}\b", gpu.uuid.replace("\\", r"\\"), text)


def rename_in(texts: Mapping[str, str], gpu: GpuIdentity) -> dict[str, str]:
    """Return the same texts with `rename_displaced` applied to each that is no address."""
    return {key: text if "://" in text else rename_displaced(text, gpu) for key, text in texts.items()}
