"""The one door to pynvml: loading, calling, and turning every kind of failure into `NvmlFailure`."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from typing import Any

import pynvml

from gpuagent.nvml.failure import (
    FUNCTION_NOT_FOUND,
    LIBRARY_NOT_FOUND,
    SUCCESS,
    UNKNOWN,
    NvmlFailure,
)

PID_MAX_LIMIT = 4194304
"""The kernel's highest possible pid (PID_MAX_LIMIT in include/linux/threads.h)."""

Handle = Any
"""An `nvmlDevice_t`: a ctypes pointer, neither hashable nor comparable."""

# Two of pynvml's wrappers raise TypeError where memory is "not available", none of which we use; a TypeError from
# any other would be a misuse that must not pass in silence. Strings are decoded strictly by pynvml.
_ERRORS = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError, UnicodeDecodeError)


class Library:
    """NVML as this process has it: the driver's own library, or an object with the same C entry points.

    `implementation` takes the place of the shared library under pynvml: the one global assignment we allow.
    `max_pid` bounds what is believed of a process list.
    """

    def __init__(self, implementation: object | None = None, *, max_pid: int = PID_MAX_LIMIT) -> None:
        self.max_pid = max_pid
        self.initializations = 0
        self._lock = threading.Lock()
        if implementation is not None:
            pynvml.nvmlLib = implementation
            pynvml._nvmlGetFunctionPointer_cache.clear()

    def initialize(self) -> None:
        """Load the library if need be and initialise it; devices are not touched (that is the handle's job).

        Raises:
            NvmlFailure: with the loader's own words when the library cannot be loaded.
        """
        with self._lock:
            try:
                self.call("nvmlInitWithFlags", 0)
            except NvmlFailure as failure:
                if failure.code == LIBRARY_NOT_FOUND:
                    raise NvmlFailure(failure.function, failure.code, _why_not_loaded()) from None
                raise
            self.initializations += 1

    def shutdown(self) -> None:
        """Give every handle back.

        Never call it while another thread is inside the library: that is a segmentation fault
        (https://github.com/XuehaiPan/nvitop/issues/222).
        """
        with self._lock, contextlib.suppress(NvmlFailure):
            self.call("nvmlShutdown")

    def call(self, name: str, *args: Any) -> Any:
        """Call one of pynvml's wrappers by name.

        Raises:
            NvmlFailure: for everything that is not a value.
        """
        wrapper = getattr(pynvml, name, None)
        if wrapper is None:
            raise NvmlFailure(name, FUNCTION_NOT_FOUND, "this nvidia-ml-py lacks the function")
        try:
            return wrapper(*args)
        except pynvml.NVMLError as error:
            raise NvmlFailure(name, int(getattr(error, "value", UNKNOWN))) from None
        except _ERRORS as error:
            raise NvmlFailure(name, -1, str(error)) from None

    def raw(self, name: str, *args: Any) -> int:
        """Call a C entry point with ctypes arguments; returns the nvmlReturn_t.

        For the few calls where pynvml's wrapper costs too much, allocates too little, or fails on odd bytes.
        """
        try:
            function = pynvml._nvmlGetFunctionPointer(name)
        except pynvml.NVMLError as error:
            return int(getattr(error, "value", UNKNOWN))
        return int(function(*args))

    def text(self, name: str, *args: Any, size: int = 96) -> str:
        """Call an entry point that fills a string buffer; bytes that are not UTF-8 come back escaped.

        Raises:
            NvmlFailure: as `call` does.
        """
        buffer = ctypes.create_string_buffer(size)
        code = self.raw(name, *args, buffer, ctypes.c_uint(size))
        if code != SUCCESS:
            raise NvmlFailure(name, code)
        return buffer.value.decode("utf-8", "backslashreplace")

    def struct(self, name: str) -> Any:
        """A new instance of one of pynvml's structures."""
        return getattr(pynvml, name)()

    def constant(self, name: str) -> int:
        """One of pynvml's constants."""
        return int(getattr(pynvml, name))


def _why_not_loaded() -> str:
    """The dynamic loader's words, which pynvml swallows: a missing file and a wrong ELF class differ."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        return f"the driver's library cannot be loaded: {error}"
    return "libnvidia-ml.so.1 appeared just now"
