"""A torch with CUDA for machines without: modules with the functions, the shapes and the refusals of the real one.

Standard library only, in syntax of Python 3.9: apps of the tests run it under any interpreter. What must never be
called before CUDA is up is here too, so that a call is seen.
"""

from __future__ import annotations

import os
import sys
import types
from typing import Any

GIB = 1024**3
STATISTICS = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)
FILLED_BY_ASYNC = ("allocated_bytes", "reserved_bytes", "active_bytes")
STARTS_CUDA = ("is_available", "mem_get_info", "get_per_process_memory_fraction", "reset_peak_memory_stats")
STARTS_CUDA_BELOW = ("_cuda_record_memory_history", "_cuda_attach_out_of_memory_observer", "_cuda_isHistoryEnabled")


class Properties:
    """What `get_device_properties` gives; torch 2.2 has no uuid."""

    def __init__(self, index: int, *, uuid: bool) -> None:
        self.name = "NVIDIA GeForce RTX 4090"
        self.total_memory = 24 * GIB
        if uuid:
            self.uuid = f"1f8b4a3e-7c2d-4e5f-9a0b-00000000000{index}"


class Stream:
    """A stream on which a graph may be being captured."""

    def __init__(self) -> None:
        self.capturing = False


class FakeTorch:
    """The state behind the modules. `backend` is native, cudaMallocAsync or pluggable."""

    def __init__(self, *, version: str = "2.13.0+cu130", backend: str = "native", devices: int = 1) -> None:
        self.backend = backend
        self.devices = devices
        self.owner = os.getpid()
        self.up = False
        self.allocated = [0] * devices
        self.reserved = [0] * devices
        self.peak = [0] * devices
        self.churned = [0] * devices
        self.fraction = [1.0] * devices
        self.stream = Stream()
        self.current_stream: Stream | None = None
        self.calls: list[str] = []
        self.broken = ""
        self.old = version.startswith("2.2")
        self.modules = self._modules(version)

    def install(self) -> FakeTorch:
        """Put it where the app's imports would have."""
        sys.modules.update(self.modules)
        return self

    def start_cuda(self) -> FakeTorch:
        """As the first tensor on a GPU does."""
        self.up = True
        return self

    def allocate(self, size: int, device: int = 0) -> None:
        """Tensors of so many bytes more."""
        self.allocated[device] += size
        self.churned[device] += size
        self.reserved[device] = max(self.reserved[device], self.allocated[device])
        self.peak[device] = max(self.peak[device], self.allocated[device])

    def free(self, size: int, device: int = 0) -> None:
        """Tensors of so many bytes less; they stay cached."""
        self.allocated[device] -= size

    def forbidden_calls(self) -> list[str]:
        """What would have started CUDA, or poisoned a fork, although the app had not."""
        return [call for call in self.calls if call.startswith("FORBIDDEN ")]

    def is_initialized(self) -> bool:
        """False in a child of a process with CUDA."""
        return self.up and os.getpid() == self.owner

    def memory_stats(self, device: int) -> dict[str, Any]:
        """The nested form: torch._C._cuda_memoryStats."""
        self.calls.append("_cuda_memoryStats")
        if not self.is_initialized():
            raise RuntimeError("Invalid device argument.")
        if self.broken:
            raise RuntimeError(self.broken)
        if self.backend == "pluggable":
            raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats.")
        current = {
            "allocated_bytes": self.allocated[device],
            "reserved_bytes": self.reserved[device],
            "active_bytes": self.allocated[device],
            "requested_bytes": self.allocated[device],
            "segment": 3,
        }
        peak = {"allocated_bytes": self.peak[device], "reserved_bytes": self.reserved[device]}
        nested: dict[str, Any] = {
            key: {
                pool: {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
                for pool in ("all", "small_pool", "large_pool")
            }
            for key in STATISTICS
        }
        for key, value in current.items():
            if self.backend == "native" or key in FILLED_BY_ASYNC:
                nested[key]["all"].update(current=value, peak=peak.get(key, value))
        nested["allocated_bytes"]["all"]["allocated"] = self.churned[device]
        for key in ("oversize_allocations", "oversize_segments"):
            nested[key] = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
        nested.update(num_alloc_retries=0, num_ooms=0, max_split_size=-1)
        return nested

    def empty_cache(self) -> None:
        """Give back what no tensor is in; on a process without CUDA nothing happens."""
        self.calls.append("empty_cache")
        self.reserved = list(self.allocated)

    def set_fraction(self, fraction: float, device: int = 0) -> None:
        """torch.cuda.set_per_process_memory_fraction, which starts CUDA."""
        self._note("set_per_process_memory_fraction")
        if not isinstance(fraction, float):
            raise TypeError("Invalid type for fraction argument, must be `float`")
        if self.backend == "pluggable":
            raise RuntimeError("CUDAPluggableAllocator does not yet support setMemoryFraction.")
        self.fraction[device] = fraction

    def _note(self, name: str) -> None:
        self.calls.append(name if self.is_initialized() else f"FORBIDDEN {name}")

    def _starter(self, name: str) -> Any:
        def function(*_args: object, **_kwargs: object) -> bool:
            self._note(name)
            return False

        return function

    def _capturing(self) -> bool:
        self._note("is_current_stream_capturing")
        return self.current_stream is not None and self.current_stream.capturing

    def _use_stream(self, stream: Stream) -> _UseStream:
        return _UseStream(self, stream)

    def _modules(self, version: str) -> dict[str, types.ModuleType]:
        torch, cuda, below = (types.ModuleType(name) for name in ("torch", "torch.cuda", "torch._C"))
        torch.__dict__.update(__version__=version, cuda=cuda, _C=below)
        cuda.__dict__.update({name: self._starter(name) for name in STARTS_CUDA})
        cuda.__dict__.update(
            is_initialized=self.is_initialized,
            empty_cache=self.empty_cache,
            set_per_process_memory_fraction=self.set_fraction,
            get_device_properties=self._properties,
            is_current_stream_capturing=self._capturing,
            graph=types.SimpleNamespace(default_capture_stream=self.stream),
            stream=self._use_stream,
        )
        below.__dict__.update({name: self._starter(name) for name in STARTS_CUDA_BELOW})
        below.__dict__.update(
            _cuda_memoryStats=self.memory_stats,
            _cuda_getAllocatorBackend=lambda: self.backend,
            _cuda_getDeviceCount=self._count,
        )
        if not self.old:
            below.__dict__.update(_cuda_getMemoryFraction=self._fraction, _cuda_hasPrimaryContext=self._has_context)
        return {"torch": torch, "torch.cuda": cuda, "torch._C": below}

    def _properties(self, device: int) -> Properties:
        self._note("get_device_properties")
        return Properties(device, uuid=not self.old)

    def _count(self) -> int:
        self._note("_cuda_getDeviceCount")
        return self.devices

    def _fraction(self, device: int) -> float:
        self._note("_cuda_getMemoryFraction")
        return self.fraction[device]

    def _has_context(self, device: int) -> bool:
        self._note("_cuda_hasPrimaryContext")
        return self.reserved[device] > 0


class _UseStream:
    def __init__(self, torch: FakeTorch, stream: Stream) -> None:
        self._torch = torch
        self._stream = stream

    def __enter__(self) -> None:
        self._torch.current_stream = self._stream

    def __exit__(self, *_: object) -> None:
        self._torch.current_stream = None
