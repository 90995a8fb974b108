"""The one door to torch: found where the app has loaded it, never imported, and never the cause that CUDA starts.

What initialises CUDA, or breaks a later fork, is not called before the app itself has CUDA up: `is_available`,
`mem_get_info`, the memory fraction, the allocation history. Functions are looked up at each use and their versions
never compared, for torch may be half imported, be a CPU build, or be of 2.2 or of next year.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Callable

_MISSING = object()


class NotThere(Exception):
    """This torch has no such function."""


class Torch:
    """What the app has of torch. `modules` is `sys.modules`."""

    def __init__(self, modules: Mapping[str, ModuleType] | None = None) -> None:
        self._modules = sys.modules if modules is None else modules

    def find(self, module: str, name: str) -> Any:  # noqa: ANN401 - torch has no types here
        """Something in a module of torch.

        Raises:
            NotThere: not loaded, not loaded to the end, or not in this version.
        """
        # Not getattr: a module's own __getattr__ may import what the app has not asked for.
        found = getattr(self._modules.get(module), "__dict__", {}).get(name, _MISSING)
        if found is _MISSING:
            raise NotThere(f"{module}.{name}")
        return found

    def call(self, module: str, name: str, *args: object) -> Any:  # noqa: ANN401 - likewise
        """Call something in a module of torch.

        Raises:
            NotThere: it has no such function.
        """
        function: Callable[..., Any] = self.find(module, name)
        return function(*args)

    def version(self) -> str:
        """Such as "2.13.0+cu130"; "" as long as the app has not loaded torch."""
        try:
            return str(self.find("torch", "__version__"))
        except NotThere:
            return ""

    def initialised(self) -> bool:
        """Whether CUDA is up in this very process; a child forked from a process with CUDA says no."""
        try:
            return bool(self.call("torch.cuda", "is_initialized"))
        except NotThere:
            return False

    def backend(self) -> str:
        """The allocator's name: native, cudaMallocAsync or pluggable; "" before CUDA is up."""
        try:
            return str(self.call("torch._C", "_cuda_getAllocatorBackend")) if self.initialised() else ""
        except NotThere:
            return ""

    def device_count(self) -> int:
        """How many GPUs are visible to the app; 0 before CUDA is up."""
        try:
            return int(self.call("torch._C", "_cuda_getDeviceCount")) if self.initialised() else 0
        except NotThere:
            return 0

    def has_context(self, device: int) -> bool:
        """Whether the app uses this GPU: asking the allocator about another could make a context there."""
        try:
            return bool(self.call("torch._C", "_cuda_hasPrimaryContext", device))
        except NotThere:
            return True

    def capturing(self) -> bool:
        """Whether a CUDA graph is being captured, as far as can be seen from this thread.

        torch tells of the current stream only. Captures that go through `torch.cuda.graph` without a stream of their
        own use one that it keeps, so that one is asked too.
        """
        if not self.initialised():
            return False
        try:
            if self.call("torch.cuda", "is_current_stream_capturing"):
                return True
            stream = getattr(self.find("torch.cuda", "graph"), "default_capture_stream", None)
            if stream is None:
                return False
            with self.call("torch.cuda", "stream", stream):
                return bool(self.call("torch.cuda", "is_current_stream_capturing"))
        except NotThere:
            return False
