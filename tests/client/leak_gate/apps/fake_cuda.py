"""A GPU for torch's CPU build: the allocator's figures, which functions of the tests move."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

BLOCK = 512


class FakeCuda:
    """Figures of one device; `backend` is native or pluggable, which keeps none."""

    def __init__(self, torch: ModuleType, backend: str = "native") -> None:
        self.allocated = 64 * BLOCK
        self.reserved = 2 << 20
        self.backend = backend
        functions: dict[Any, dict[str, object]] = {
            torch.cuda: {
                "is_initialized": lambda: True,
                "is_current_stream_capturing": lambda: False,
                "get_device_properties": lambda index: SimpleNamespace(name="fake", total_memory=1 << 30, uuid=None),
            },
            torch._C: {
                "_cuda_getAllocatorBackend": lambda: backend,
                "_cuda_getDeviceCount": lambda: 1,
                "_cuda_hasPrimaryContext": lambda index: True,
                "_cuda_memoryStats": self._stats,
            },
        }
        for module, members in functions.items():
            for name, function in members.items():
                setattr(module, name, function)

    def allocate(self, size: int) -> None:
        """Hold so many bytes more, in whole blocks."""
        self.allocated += -(-size // BLOCK) * BLOCK
        self.reserved = max(self.reserved, self.allocated)

    def free(self, size: int) -> None:
        """Hold less; what is reserved stays."""
        self.allocated -= -(-size // BLOCK) * BLOCK

    def _stats(self, index: int) -> dict[str, object]:
        if self.backend == "pluggable":
            raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")
        return {
            "allocated_bytes": {"all": {"current": self.allocated}},
            "reserved_bytes": {"all": {"current": self.reserved}},
        }
