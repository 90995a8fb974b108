"""Read and set the limit that the driver keeps for a cgroup on one GPU.

To read takes no privilege, to set takes root. MIG devices have no limits. A cgroup without one answers NOT_FOUND or
NOT_SUPPORTED, the latter like a driver that keeps no limits: only a limit that is read back tells that it does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from gpuagent.core.memory_limits import FIRST_DRIVER, LimitReading, LimitRefused
from gpuagent.driver.nvml.library import (
    FUNCTION_NOT_FOUND,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    Handle,
    Library,
    NvmlFailure,
)

_GET, _SET = "nvmlDeviceGetMemoryLimits_v1", "nvmlDeviceSetMemoryLimits_v1"
_NO_LIMIT_CODES = frozenset({NOT_FOUND, NOT_SUPPORTED})
_TOO_OLD = f"this driver keeps no memory limits for cgroups: that takes driver {FIRST_DRIVER} or newer"
_MIG_ON = 1


class NvmlMemoryLimits:
    """The limits of all GPUs. Each `session` initializes NVML for itself: NVML counts that."""

    def __init__(self, library: Library) -> None:
        self._library = library

    @contextmanager
    def session(self) -> Iterator[None]:
        """Have NVML initialized meanwhile. Raises LimitRefused."""
        try:
            self._library.call("nvmlInitWithFlags", 0)
        except NvmlFailure as failure:
            raise LimitRefused(f"NVML cannot be used: {failure.text}") from None
        try:
            yield
        finally:
            self._library.shutdown()

    def read(self, gpu_uuid: str, folder: str) -> LimitReading | None:
        """Return the limit of a cgroup, or of the nearest one above that has any; None where none is told.

        Raises LimitRefused: the driver keeps no limits, or cannot be asked.
        """
        asked = self._library.struct("c_nvmlGetMemoryLimits_v1_t")
        asked.nameSpace = os.fsencode(folder)
        try:
            self._library.call(_GET, self._handle(gpu_uuid), asked)
        except NvmlFailure as failure:
            if failure.code in _NO_LIMIT_CODES and failure.function == _GET:  # another call: the GPU is not found
                return None
            raise LimitRefused(_text(failure)) from None
        found = LimitReading(int(asked.softLimit), int(asked.hardLimit), int(asked.currentUsed))
        return None if found.is_none else found

    def write(self, gpu_uuid: str, folder: str, soft_bytes: int, hard_bytes: int) -> None:
        """Set both limits of a cgroup. Raises LimitRefused."""
        given = self._library.struct("c_nvmlSetMemoryLimits_v1_t")
        given.nameSpace, given.softLimit, given.hardLimit = os.fsencode(folder), soft_bytes, hard_bytes
        try:
            self._library.call(_SET, self._handle(gpu_uuid), given)
        except NvmlFailure as failure:
            raise LimitRefused(_text(failure)) from None

    def _handle(self, gpu_uuid: str) -> Handle:
        handle = self._library.call("nvmlDeviceGetHandleByUUID", gpu_uuid)
        try:
            modes = self._library.call("nvmlDeviceGetMigMode", handle)
        except NvmlFailure as failure:
            if failure.code in {NOT_SUPPORTED, FUNCTION_NOT_FOUND}:
                return handle
            raise
        if _MIG_ON in modes:
            raise LimitRefused("MIG is on, or will be: the driver keeps no memory limits for MIG devices")
        return handle


def _text(failure: NvmlFailure) -> str:
    if failure.code == FUNCTION_NOT_FOUND:
        return _TOO_OLD
    if failure.code == NO_PERMISSION:
        return "only root may set a memory limit"
    if failure.code in _NO_LIMIT_CODES and failure.function == _SET:
        return (
            f"the driver sets no memory limit on this cgroup ({failure.text}): with the dmem controller of the kernel"
            " the cgroup needs a file dmem.max (its parent has to have dmem in cgroup.subtree_control)"
        )
    return f"{failure.function}: {failure.text}"
