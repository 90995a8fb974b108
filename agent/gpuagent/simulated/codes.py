"""nvmlReturn_t.

The codes that an entry point answers with (nvml.h), and the exception that carries one.
"""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """nvmlReturn_t, without its prefix NVML_ERROR_."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    ALREADY_INITIALIZED = 5
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    INSUFFICIENT_POWER = 8
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    IRQ_ISSUE = 11
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    CORRUPTED_INFOROM = 14
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    MEMORY = 20
    NO_DATA = 21
    VGPU_ECC_NOT_SUPPORTED = 22
    INSUFFICIENT_RESOURCES = 23
    FREQ_NOT_SUPPORTED = 24
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    NOT_READY = 27
    GPU_NOT_FOUND = 28
    INVALID_STATE = 29
    RESET_TYPE_NOT_SUPPORTED = 30
    UNKNOWN = 999


class Refusal(Exception):
    """Ends an entry point with a code other than SUCCESS."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = int(code)


_TEXTS = {
    Code.GPU_IS_LOST: "GPU is lost",
    Code.LIB_RM_VERSION_MISMATCH: "Driver/library version mismatch",
    Code.UNKNOWN: "Unknown Error",
}


def error_text(code: int) -> str:
    """What nvmlErrorString says."""
    try:
        known = Code(code)
    except ValueError:
        return _TEXTS[Code.UNKNOWN]
    return _TEXTS.get(known, known.name.replace("_", " ").title())


def parse_code(value: int | str) -> int:
    """A code by number or by name (`gpu_is_lost`).

    Raises:
        ValueError: no such name.
    """
    if isinstance(value, int):
        return value
    name = value.strip().upper().removeprefix("NVML_").removeprefix("ERROR_")
    if name.isdecimal():
        return int(name)
    if name not in Code.__members__:
        raise ValueError(f"{value!r} is not an NVML error code; one of {', '.join(Code.__members__).lower()}")
    return int(Code[name])
