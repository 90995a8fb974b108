"""Load and call NVML: the only module that imports pynvml. Every kind of failure becomes `NvmlFailure`."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from typing import Any

import pynvml

from gpuagent.driver.backend import DriverFailure

LIBRARY_UNLOADABLE = "the driver's library cannot be loaded"
COUNT_GPUS = "nvmlDeviceGetCount"
GET_HANDLE = "nvmlDeviceGetHandleByIndex"
IMPOSSIBLE = -2
"""No code of NVML's: the call succeeded, and what it answered cannot be true."""
SUCCESS = 0
UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18
ARGUMENT_VERSION_MISMATCH = 25
DEPRECATED = 26
GPU_NOT_FOUND = 28
UNKNOWN = 999

_ABSENT = {NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, DEPRECATED}
_LACKING = {NOT_SUPPORTED, FUNCTION_NOT_FOUND}
_SESSION_ENDED = {UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH}
_OF_THE_LIBRARY = {"nvmlInitWithFlags", COUNT_GPUS}
"""Where "no GPUs were found" (nvml.h) is said of the node; anywhere else it is said of the one GPU that was asked."""

_TEXTS = {
    UNINITIALIZED: "NVML is not initialized",
    INVALID_ARGUMENT: "invalid argument",
    NOT_SUPPORTED: "not supported",
    NO_PERMISSION: "no permission",
    NOT_FOUND: "not found",
    INSUFFICIENT_SIZE: "list longer than the buffer",
    DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
    TIMEOUT: "timeout",
    LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 was not found",
    FUNCTION_NOT_FOUND: "this driver's library lacks the function",
    GPU_IS_LOST: "the GPU is lost",
    RESET_REQUIRED: "the GPU requires a reset",
    LIB_RM_VERSION_MISMATCH: "driver and library versions differ (the driver was upgraded underneath)",
    ARGUMENT_VERSION_MISMATCH: "this driver's library has another version of the structure",
    DEPRECATED: "deprecated by this driver",
    GPU_NOT_FOUND: "no such GPU",
    UNKNOWN: "unknown error",
}


class NvmlFailure(DriverFailure):
    """An NVML call that did not answer with a value.

    `code` is the nvmlReturn_t, -1 if Python failed first, IMPOSSIBLE if the answer cannot be true.
    """

    def __init__(self, function: str, code: int, text: str = "") -> None:
        self.function = function
        self.code = code
        self.text = text or _TEXTS.get(code, f"NVML error {code}")
        super().__init__(f"{function}: {self.text}")

    @property
    def absent(self) -> bool:
        """The GPU, driver or permission lacks this for good: stop asking until the next initialization."""
        return self.code in _ABSENT

    @property
    def lacking(self) -> bool:
        """There is nothing to tell, and not merely no leave to ask, or no way that the driver understands."""
        return self.code in _LACKING

    @property
    def lost(self) -> bool:
        return self.code in {GPU_IS_LOST, GPU_NOT_FOUND}

    @property
    def ends_session(self) -> bool:
        return self.code in _SESSION_ENDED or (self.code == GPU_NOT_FOUND and self.function in _OF_THE_LIBRARY)

    @property
    def unreachable(self) -> bool:
        return self.lost or (self.function == GET_HANDLE and self.code != NO_PERMISSION)

    @property
    def driver_unloaded(self) -> bool:
        return self.code == DRIVER_NOT_LOADED

    @property
    def needs_new_process(self) -> bool:
        return self.code == LIB_RM_VERSION_MISMATCH


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
        """Load the library if need be and initialize it; devices are not touched (that is the handle's job).

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
        """Return a new instance of one of pynvml's structures."""
        return getattr(pynvml, name)()

    def constant(self, name: str) -> int:
        """Return one of pynvml's constants."""
        return int(getattr(pynvml, name))


def _why_not_loaded() -> str:
    """Return the dynamic loader's words, which pynvml swallows: a missing file and a wrong ELF class differ."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        return f"{LIBRARY_UNLOADABLE}: {error}"
    return "libnvidia-ml.so.1 appeared just now"
