"""The figures of torch's allocator, one device at a time, at the cost of one call into it.

The flat `torch.cuda.memory_stats()` costs ten times the call below it, and each `memory_allocated()` calls it anew, so
the nested form is taken and about ten numbers are picked from it.
https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.memory_stats.html
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gpuagent_client.guard import harmless
from gpuagent_client.torch_door import NotThere, Torch

PICKED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("allocated_bytes", ("allocated_bytes", "all", "current")),
    ("allocated_peak_bytes", ("allocated_bytes", "all", "peak")),
    ("reserved_bytes", ("reserved_bytes", "all", "current")),
    ("reserved_peak_bytes", ("reserved_bytes", "all", "peak")),
    ("requested_bytes", ("requested_bytes", "all", "current")),
    ("active_bytes", ("active_bytes", "all", "current")),
    ("inactive_split_bytes", ("inactive_split_bytes", "all", "current")),
    ("segments", ("segment", "all", "current")),
    ("alloc_retries", ("num_alloc_retries",)),
    ("ooms", ("num_ooms",)),
)
KEPT_BY_ASYNC = frozenset(
    {"allocated_bytes", "allocated_peak_bytes", "reserved_bytes", "reserved_peak_bytes", "active_bytes"}
)
"""cudaMallocAsync has all the keys and fills these: its other zeros mean that nobody counts
(c10/cuda/CUDAMallocAsyncAllocator.cpp)."""
_LIMIT_EVERY = 10
"""The limit changes by hand, so it is not asked for at each reading."""


class Properties(NamedTuple):
    """What stays the same about a device."""

    uuid: str
    """As torch prints it, without NVML's `GPU-`; "" where it has none (before 2.4)."""
    name: str
    total_bytes: int


class Device(NamedTuple):
    """One GPU that the app holds memory on."""

    ordinal: int
    """CUDA's ordinal, under CUDA_VISIBLE_DEVICES."""
    properties: Properties
    figures: Mapping[str, int]
    """In bytes or counts; what the allocator does not keep is not in it."""
    limit_ratio: float | None = None


class Reading(NamedTuple):
    """The allocator at one moment."""

    initialised: bool
    devices: tuple[Device, ...] = ()
    error: str = ""
    """In one word why there are no figures although CUDA is up."""


class Allocator:
    """Reads the allocator of the app's torch. Threads may share it: at worst something is asked for twice."""

    def __init__(self, torch: Torch) -> None:
        self._torch = torch
        self._properties: dict[int, Properties] = {}
        self._limits: dict[int, float | None] = {}
        self._with_context: set[int] = set()
        self._unsupported = False
        self._readings = 0

    def read(self) -> Reading:
        """The figures of all devices with memory; never raises."""
        if not self._torch.initialised():
            return Reading(initialised=False)
        if self._unsupported:
            return Reading(initialised=True, error="unsupported")
        try:
            return Reading(initialised=True, devices=tuple(self._devices()))
        except NotThere:
            self._unsupported = True
            return Reading(initialised=True, error="unsupported")
        except Exception as error:  # noqa: BLE001 - torch raises what it likes
            # A pluggable allocator that keeps no figures says so in the same kind of error as a GPU that has failed
            # (torch/csrc/cuda/CUDAPluggableAllocator.cpp): only the former is final.
            self._unsupported = "not yet support" in str(error)
            return Reading(initialised=True, error="unsupported" if self._unsupported else "failed")

    def _devices(self) -> list[Device]:
        refresh_limits = self._readings % _LIMIT_EVERY == 0
        self._readings += 1
        kept = KEPT_BY_ASYNC if self._torch.backend() == "cudaMallocAsync" else None
        devices = []
        for index in range(self._torch.device_count()):
            if index not in self._with_context:
                if not self._torch.has_context(index):
                    continue
                self._with_context.add(index)
            figures = pick(self._torch.call("torch._C", "_cuda_memoryStats", index), kept)
            if not figures.get("reserved_bytes"):
                continue
            if refresh_limits or index not in self._limits:
                self._limits[index] = self._limit(index)
            devices.append(Device(index, self._properties_of(index), figures, self._limits[index]))
        return devices

    def forget_limits(self) -> None:
        """A limit was just set: ask again at the next reading."""
        self._limits.clear()

    def _limit(self, index: int) -> float | None:
        try:
            ratio = float(self._torch.call("torch._C", "_cuda_getMemoryFraction", index))
        except Exception:  # noqa: BLE001  absent before 2.6, and refused by allocators without limits
            return None
        return ratio if 0 <= ratio < 1 else None

    def _properties_of(self, index: int) -> Properties:
        known = self._properties.get(index)
        if known is None:
            known = Properties("", f"GPU {index}", 0)
            with harmless("read the properties of a GPU"):
                found = self._torch.call("torch.cuda", "get_device_properties", index)
                uuid = getattr(found, "uuid", None)
                known = Properties("" if uuid is None else str(uuid), str(found.name), int(found.total_memory))
            self._properties[index] = known
        return known


def pick(nested: Mapping[str, Any], kept: frozenset[str] | None = None) -> dict[str, int]:
    """About ten numbers from the allocator's nested figures; what is absent stays absent."""
    figures = {}
    for name, path in PICKED:
        if kept is not None and name not in kept:
            continue
        value: Any = nested
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, int) and value >= 0:
            figures[name] = value
    return figures


def as_sent(device: Device) -> dict[str, Any]:
    """A device in the form of a `stats` message."""
    message: dict[str, Any] = {"index": device.ordinal}
    if device.properties.uuid:
        message["uuid"] = device.properties.uuid
    message.update(device.figures)
    if device.limit_ratio is not None:
        message["fraction"] = device.limit_ratio
    return message
