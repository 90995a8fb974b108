"""Read the limit that the driver keeps on GPU memory for the agent's own cgroup (NVML 13.4, driver 615).

Where a cgroup has one, NVML tells the processes in it of the limit instead of the GPU: `nvmlDeviceGetMemoryInfo_v2` has
the limit as its total (https://docs.nvidia.com/deploy/mps/mpsv3-memory-partitioning.html). MIG devices have none. To
read it takes no privilege; nothing here sets one, as a limit would outlive the agent.
"""

from __future__ import annotations

from gpuagent.driver.nvml.device import NvmlDevice
from gpuagent.driver.nvml.library import FUNCTION_NOT_FOUND, NvmlFailure

_GET = "nvmlDeviceGetMemoryLimits_v1"
_NO_LIMIT = "NVML_DEVICE_MEMORY_LIMIT_MAX"


def own_limit_bytes(device: NvmlDevice) -> int | None:
    """Return the hard limit of the agent's cgroup on this GPU; None where there is none, or that is not told.

    A cgroup without a limit answers NOT_FOUND, or NOT_SUPPORTED like a driver without limits: it is asked again, as one
    may be set at any time. A driver whose library lacks the call is not.

    Raises:
        NvmlFailure: the GPU is lost or the session has ended.
    """
    if not device.own_cgroup or device.lacks(_GET):
        return None
    limits = device.library.struct("c_nvmlGetMemoryLimits_v1_t")
    limits.nameSpace = device.own_cgroup.encode()
    try:
        device.library.call(_GET, device.handle, limits)
    except NvmlFailure as failure:
        if failure.lost or failure.ends_session:
            raise
        if failure.code == FUNCTION_NOT_FOUND:
            device.note_absent(_GET, failure)
        return None
    hard = int(limits.hardLimit)
    return hard if 0 < hard < device.library.constant(_NO_LIMIT) else None
