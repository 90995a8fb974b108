"""What torch's figures are where its tensors are on the CPU: glibc's, whose malloc such a torch takes them from.

malloc is to the kernel what torch's caching allocator is to the driver: it hands out pieces, keeps what is freed for
the next one who asks, and gives little of it back. mallinfo2(3) has both sides. Standard library only: this runs
beside torch, in the interpreter of the app.
"""

from __future__ import annotations

import ctypes
from types import ModuleType
from typing import Any, NamedTuple

FIELDS = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
)  # fmt: skip


class MallInfo(ctypes.Structure):
    """`struct mallinfo2` (malloc.h), since glibc 2.33."""

    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]


class Properties(NamedTuple):
    """Of the "device". Without a UUID: the agent takes the one GPU on which the driver lists this process."""

    name: str = "the heap of glibc"
    total_memory: int = 0


class Heap:
    """The malloc of the running process."""

    def __init__(self) -> None:
        self._mallinfo2 = ctypes.CDLL(None).mallinfo2
        self._mallinfo2.restype = MallInfo

    def figures(self, _device: int = 0) -> dict[str, Any]:
        """In the nested form of torch._C._cuda_memoryStats."""
        info = self._mallinfo2()
        allocated, reserved = info.uordblks + info.hblkhd, info.arena + info.hblkhd
        return {
            "allocated_bytes": {"all": {"current": allocated}},
            "reserved_bytes": {"all": {"current": reserved}},
        }

    def modules(self, version: str) -> dict[str, ModuleType]:
        """What the client looks for in torch, in the place of `sys.modules`."""
        torch, cuda, below = (ModuleType(name) for name in ("torch", "torch.cuda", "torch._C"))
        torch.__dict__.update(__version__=version, cuda=cuda, _C=below)
        cuda.__dict__.update(is_initialized=lambda: True, get_device_properties=lambda _device: Properties())
        below.__dict__.update(
            _cuda_memoryStats=self.figures,
            _cuda_getAllocatorBackend=lambda: "glibc",
            _cuda_getDeviceCount=lambda: 1,
        )
        return {module.__name__: module for module in (torch, cuda, below)}
