"""What NVML can answer instead of a value, sorted by what has to be done about it."""

from __future__ import annotations

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
_SESSION_ENDED = {UNINITIALIZED, DRIVER_NOT_LOADED, GPU_NOT_FOUND, LIB_RM_VERSION_MISMATCH}

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


class NvmlFailure(Exception):
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
        """The GPU, driver or permission lacks this for good: stop asking until the next initialisation."""
        return self.code in _ABSENT

    @property
    def lacking(self) -> bool:
        """There is nothing to tell, and not merely no leave to ask, or no way that the driver understands."""
        return self.code in _LACKING

    @property
    def lost(self) -> bool:
        """The GPU behind the handle is gone; the others are not."""
        return self.code == GPU_IS_LOST

    @property
    def ends_session(self) -> bool:
        """Every handle is worthless: NVML has to be initialised again."""
        return self.code in _SESSION_ENDED

    @property
    def version_mismatch(self) -> bool:
        """Only a new process helps: the library that this one mapped is never unloaded."""
        return self.code == LIB_RM_VERSION_MISMATCH
