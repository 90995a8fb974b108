"""Read memory errors: ECC counts, remapped rows, retired pages, and what the driver advises to do."""

from __future__ import annotations

import ctypes

from gpuagent.core.hardware import Ecc
from gpuagent.driver.nvml.device import Field, NvmlDevice, count

_VOLATILE_CORRECTED, _VOLATILE_UNCORRECTED, _AGGREGATE_CORRECTED, _AGGREGATE_UNCORRECTED = 3, 4, 5, 6
_RETIRED_SINGLE, _RETIRED_DOUBLE, _RETIRED_PENDING = 29, 30, 31
_REMAPPED_CORRECTED, _REMAPPED_UNCORRECTED, _REMAP_PENDING, _REMAP_FAILED = 142, 143, 144, 145
_RECOVERY_ACTION = 230

_COUNTS = {
    # field: (nvmlMemoryErrorType_t, nvmlEccCounterType_t) of the old call
    _VOLATILE_CORRECTED: (0, 0),
    _VOLATILE_UNCORRECTED: (1, 0),
    _AGGREGATE_CORRECTED: (0, 1),
    _AGGREGATE_UNCORRECTED: (1, 1),
}


def collect(device: NvmlDevice) -> Ecc:
    """Read all of it in one call of field values, with the single calls where a GPU lacks the fields."""
    fields = device.fields(
        *_COUNTS,
        _RETIRED_SINGLE, _RETIRED_DOUBLE, _RETIRED_PENDING,
        _REMAPPED_CORRECTED, _REMAPPED_UNCORRECTED, _REMAP_PENDING, _REMAP_FAILED,
        _RECOVERY_ACTION,
    )  # fmt: skip
    mode = device.ask("nvmlDeviceGetEccMode")
    counts = _counts(device, fields) if mode is not None else {}
    rows = _rows(device, fields)
    return Ecc(
        enabled=None if mode is None else bool(mode[0]),
        volatile_corrected=counts.get(_VOLATILE_CORRECTED),
        volatile_uncorrected=counts.get(_VOLATILE_UNCORRECTED),
        aggregate_corrected=counts.get(_AGGREGATE_CORRECTED),
        aggregate_uncorrected=counts.get(_AGGREGATE_UNCORRECTED),
        sram_threshold_exceeded=_sram_threshold_exceeded(device) if mode is not None else None,
        remapped_rows_corrected=rows[0],
        remapped_rows_uncorrected=rows[1],
        remap_pending=_flag(rows[2]),
        remap_failed=_flag(rows[3]),
        retired_pages_single_bit=count(fields.get(_RETIRED_SINGLE)),
        retired_pages_double_bit=count(fields.get(_RETIRED_DOUBLE)),
        retired_pages_pending=_flag(count(fields.get(_RETIRED_PENDING))),
        recovery_action=count(fields.get(_RECOVERY_ACTION)),
    )


def _counts(device: NvmlDevice, fields: dict[Field, float]) -> dict[int, int | None]:
    counts: dict[int, int | None] = {}
    for field, old_arguments in _COUNTS.items():
        value = fields.get(field)
        if value is None:
            value = device.ask("nvmlDeviceGetTotalEccErrors", *old_arguments)
        counts[field] = count(value)
    return counts


def _rows(device: NvmlDevice, fields: dict[Field, float]) -> tuple[int | None, ...]:
    wanted = (_REMAPPED_CORRECTED, _REMAPPED_UNCORRECTED, _REMAP_PENDING, _REMAP_FAILED)
    if any(field in fields for field in wanted):
        return tuple(count(fields.get(field)) for field in wanted)
    rows = device.ask("nvmlDeviceGetRemappedRows")
    return (None,) * 4 if rows is None else tuple(count(value) for value in rows)


def _sram_threshold_exceeded(device: NvmlDevice) -> bool | None:
    """Return whether the error threshold of the field diagnostic is exceeded (nvml.h).

    pynvml's wrapper hands its argument on as it is: without `byref` the structure goes by value, and the process dies.
    """
    status = device.library.struct("c_nvmlEccSramErrorStatus_v1_t")
    if device.attempt(
        "nvmlDeviceGetSramEccErrorStatus",
        lambda: device.library.call("nvmlDeviceGetSramEccErrorStatus", device.handle, ctypes.byref(status)) or True,
    ):
        return bool(status.bThresholdExceeded)
    return None


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)
