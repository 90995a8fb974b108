"""torch's allocator: found where the app has loaded torch, never imported, and never the cause that CUDA starts.

What initializes CUDA, or breaks a later fork, is not called before the app itself has CUDA up: `is_available`,
`mem_get_info`, the memory fraction, the allocation history. Functions are looked up at each use and their versions
never compared, for torch may be half imported, be a CPU build, or be of 2.2 or of next year.

The flat `torch.cuda.memory_stats()` costs ten times the call below it, and each `memory_allocated()` calls it anew, so
the nested form is taken and about ten numbers are picked from it.
https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.memory_stats.html
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Callable, NamedTuple

from gpuagent_client.errors import suppress_errors

_MISSING = object()


class TorchFunctionMissing(Exception):
    """Raised where this torch lacks a function, or is not loaded."""


class Torch:
    """Access to the app's torch. `modules` is `sys.modules`."""

    def __init__(self, modules: Mapping[str, ModuleType] | None = None) -> None:
        self._modules = sys.modules if modules is None else modules

    def find(self, module: str, name: str) -> Any:  # noqa: ANN401 - torch has no types here
        """Return something in a module of torch.

        Raises:
            TorchFunctionMissing: not loaded, not loaded to the end, or not in this version.
        """
        # Not getattr: a module's own __getattr__ may import what the app has not asked for.
        found = getattr(self._modules.get(module), "__dict__", {}).get(name, _MISSING)
        if found is _MISSING:
            raise TorchFunctionMissing(f"{module}.{name}")
        return found

    def call(self, module: str, name: str, *args: object) -> Any:  # noqa: ANN401 - likewise
        """Call something in a module of torch.

        Raises:
            TorchFunctionMissing: it has no such function.
        """
        function: Callable[..., Any] = self.find(module, name)
        return function(*args)

    def version(self) -> str:
        """Return such as "2.13.0+cu130"; "" as long as the app has not loaded torch."""
        try:
            return str(self.find("torch", "__version__"))
        except TorchFunctionMissing:
            return ""

    def initialized(self) -> bool:
        """Return whether CUDA is up in this very process; a child forked from a process with CUDA says no."""
        try:
            return bool(self.call("torch.cuda", "is_initialized"))
        except TorchFunctionMissing:
            return False

    def backend(self) -> str:
        """Return the allocator's name: native, cudaMallocAsync or pluggable; "" before CUDA is up."""
        try:
            return str(self.call("torch._C", "_cuda_getAllocatorBackend")) if self.initialized() else ""
        except TorchFunctionMissing:
            return ""

    def device_count(self) -> int:
        """Return how many GPUs are visible to the app; 0 before CUDA is up."""
        try:
            return int(self.call("torch._C", "_cuda_getDeviceCount")) if self.initialized() else 0
        except TorchFunctionMissing:
            return 0

    def has_context(self, device: int) -> bool:
        """Return whether the app uses this GPU: asking the allocator about another could make a context there."""
        try:
            return bool(self.call("torch._C", "_cuda_hasPrimaryContext", device))
        except TorchFunctionMissing:
            return True

    def capturing(self) -> bool:
        """Return whether a CUDA graph is being captured, as far as can be seen from this thread.

        torch reports the current stream only. Captures that go through `torch.cuda.graph` without a stream of their
        own use one that it keeps, so that one is asked too.
        """
        if not self.initialized():
            return False
        try:
            return self._on_a_used_device(self._stream_is_capturing)
        except TorchFunctionMissing:
            return False
        except RuntimeError:  # CUDA has failed, and nobody can say: then as if it were
            return True

    def _on_a_used_device(self, ask: Callable[[], bool]) -> bool:
        """Ask on a GPU that the app uses: on another, the question would make a context.

        The current GPU of a thread of ours is the first one, whichever the app uses.
        """
        try:
            current = int(self.call("torch._C", "_cuda_getDevice"))
        except TorchFunctionMissing:
            return ask()
        if self.has_context(current):
            return ask()
        used = next((number for number in range(self.device_count()) if self.has_context(number)), None)
        if used is None:
            return False
        with self.call("torch.cuda", "device", used):
            return ask()

    def _stream_is_capturing(self) -> bool:
        if self.call("torch.cuda", "is_current_stream_capturing"):
            return True
        stream = getattr(self.find("torch.cuda", "graph"), "default_capture_stream", None)
        if stream is None:
            return False
        with self.call("torch.cuda", "stream", stream):
            return bool(self.call("torch.cuda", "is_current_stream_capturing"))


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
    """Properties of a device that never change."""

    uuid: str
    """UUID as torch prints it, without NVML's `GPU-`; "" where it has none (before 2.4)."""
    name: str
    total_bytes: int


class Device(NamedTuple):
    """One GPU that the app holds memory on."""

    ordinal: int
    """CUDA's ordinal, under CUDA_VISIBLE_DEVICES."""
    properties: Properties
    figures: Mapping[str, int]
    """Figures in bytes or counts; what the allocator does not keep is not in it."""
    limit_ratio: float | None = None


class Reading(NamedTuple):
    """Figures of the allocator at one moment."""

    initialized: bool
    devices: tuple[Device, ...] = ()
    error: str = ""
    """One word that says why there are no figures although CUDA is up."""


class Allocator:
    """Read the allocator of the app's torch. Threads may share it: at worst something is asked for twice."""

    def __init__(self, torch: Torch) -> None:
        self._torch = torch
        self._properties: dict[int, Properties] = {}
        self._limits: dict[int, float | None] = {}
        self._with_context: set[int] = set()
        self._unsupported = False
        self._readings = 0

    def read(self) -> Reading:
        """Return the figures of all devices with memory; never raises."""
        if not self._torch.initialized():
            return Reading(initialized=False)
        if self._unsupported:
            return Reading(initialized=True, error="unsupported")
        try:
            return Reading(initialized=True, devices=tuple(self._devices()))
        except TorchFunctionMissing:
            self._unsupported = True
            return Reading(initialized=True, error="unsupported")
        except Exception as error:  # noqa: BLE001 - torch raises what it likes
            # A pluggable allocator that keeps no figures says so in the same kind of error as a GPU that has failed
            # (torch/csrc/cuda/CUDAPluggableAllocator.cpp): only the former is final.
            self._unsupported = "not yet support" in str(error)
            return Reading(initialized=True, error="unsupported" if self._unsupported else "failed")

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
            figures = pick_figures(self._torch.call("torch._C", "_cuda_memoryStats", index), kept)
            if not figures.get("reserved_bytes"):
                continue
            if refresh_limits or index not in self._limits:
                self._limits[index] = self._limit(index)
            devices.append(Device(index, self._properties_of(index), figures, self._limits[index]))
        return devices

    def forget_limits(self) -> None:
        """Ask for limits again at the next reading: one was just set."""
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
            with suppress_errors("read the properties of a GPU"):
                found = self._torch.call("torch.cuda", "get_device_properties", index)
                uuid = getattr(found, "uuid", None)
                known = Properties("" if uuid is None else str(uuid), str(found.name), int(found.total_memory))
            self._properties[index] = known
        return known


def pick_figures(nested: Mapping[str, Any], kept: frozenset[str] | None = None) -> dict[str, int]:
    """Pick about ten numbers from the allocator's nested figures; what is absent stays absent."""
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


def to_wire(device: Device) -> dict[str, Any]:
    """Return a device in the form of a `stats` message."""
    message: dict[str, Any] = {"index": device.ordinal}
    if device.properties.uuid:
        message["uuid"] = device.properties.uuid
    message.update(device.figures)
    if device.limit_ratio is not None:
        message["fraction"] = device.limit_ratio
    return message
