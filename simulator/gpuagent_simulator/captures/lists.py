"""Answers with a layout of their own: process lists, utilization samples, field values and GPM metrics.

A process list is written as `{stride: 24, processes: [[pid, bytes, GPU instance, compute instance], ...]}`, null where
the driver says "not available"; `raw` has its bytes where the entries do not make up all of them. Samples are
`{samples: [[pid, age in microseconds, SM, memory, encoder, decoder, ...], ...]}`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuagent_simulator.abi import (
    NO_INSTANCE,
    NOT_AVAILABLE,
    PROCESS,
    PROCESS_DETAIL,
    PROCESS_SHORT,
    SAMPLE,
    SAMPLE_INFO,
    Code,
    FieldValue,
    GpmMetric,
    GpmMetricsGet,
    NvmlError,
    ProcessDetailList,
    ProcessesUtilizationInfo,
    address,
    number,
    parse_code,
    put_bytes,
    view,
)
from gpuagent_simulator.captures.arguments import RAW, bytes_from_hex, hex_value, whole
from gpuagent_simulator.spec import FIRST_MADE_UP_PID

PROCESS_LISTS = frozenset(
    f"nvmlDeviceGet{kind}RunningProcesses{version}"
    for kind in ("Compute", "Graphics", "MPSCompute")
    for version in ("", "_v2", "_v3")
)
DETAIL_LIST = "nvmlDeviceGetRunningProcessDetailList"
OLD_SAMPLES, NEW_SAMPLES = "nvmlDeviceGetProcessUtilization", "nvmlDeviceGetProcessesUtilizationInfo"
FIELD_VALUES = "nvmlDeviceGetFieldValues"
GPM_METRICS = "nvmlGpmMetricsGet"
GPM_SAMPLES = ("nvmlGpmSampleGet", "nvmlGpmMigSampleGet")

ERROR = "error"
_LAYOUTS = {layout.size: layout for layout in (PROCESS, PROCESS_DETAIL, PROCESS_SHORT)}
MOST_STRIDE = PROCESS_DETAIL.size
UNWRITTEN = 0xAA
"""Byte that a caller puts into a buffer to see how much of it the driver writes: no entry ends with one."""
_BLANKS = (None, NOT_AVAILABLE, NO_INSTANCE, NO_INSTANCE, NOT_AVAILABLE)
_VALUE_TYPES = ("double", "uint", "ulong", "ulonglong", "longlong", "int", "ushort")
_MEMBERS: tuple[Any, ...] = (
    ctypes.c_double, ctypes.c_uint, ctypes.c_ulong, ctypes.c_ulonglong,
    ctypes.c_longlong, ctypes.c_int, ctypes.c_ushort,
)  # fmt: skip
"""Member of nvmlValue_t by nvmlValueType_t (nvml.h)."""
_VALUE_OFFSET = FieldValue.value.offset

Pid = Callable[[int], int]


def made_up_pid(pid: int) -> int:
    """Return the pid that stands for a captured one: above all that a kernel gives out, so no real one is meant."""
    return pid + FIRST_MADE_UP_PID - 1 if 0 < pid < FIRST_MADE_UP_PID else pid


# ---- process lists -------------------------------------------------------------------------------


def read_list(data: bytes, count: int, stride: int = 0) -> dict[str, Any]:
    """Return a list of `count` entries that the driver has written as `data`; without a `stride` by their length."""
    if not stride:
        stride = len(data) // count if count and len(data) % count == 0 else PROCESS.size
    layout = _LAYOUTS.get(stride, PROCESS)
    entries = list(layout.iter_unpack(data[: len(data) // layout.size * layout.size][: count * layout.size]))
    found: dict[str, Any] = {"stride": layout.size, "processes": [_shown(entry) for entry in entries]}
    if data != b"".join(layout.pack(*entry) for entry in entries):
        found[RAW] = hex_value(data)
    return found


def _shown(entry: Sequence[int]) -> list[int | None]:
    return [None if value == blank else value for value, blank in zip(entry, _BLANKS, strict=False)]


def list_bytes(answer: Mapping[str, Any], pid_of: Pid = made_up_pid) -> tuple[int, bytes]:
    """Return the number of entries and the bytes of a list, each pid as `pid_of` has it. Raises ValueError."""
    stride = int(answer.get("stride", 24))
    if stride not in _LAYOUTS:
        raise ValueError(f"stride is one of {', '.join(map(str, _LAYOUTS))}")
    layout, rows = _LAYOUTS[stride], answer.get("processes") or ()
    width = len(layout.unpack(bytes(layout.size)))
    data = bytearray(bytes_from_hex(answer[RAW]) if RAW in answer else b"")
    data.extend(bytes(max(0, len(rows) * stride - len(data))))
    for position, row in enumerate(rows):
        given = [*row, *[None] * (width - len(row))][:width]
        entry = [blank if value is None else whole(value) for value, blank in zip(given, _BLANKS, strict=False)]
        if width == len(_BLANKS) and len(row) < width:
            entry[-1] = 0  # memory that confidential computing protects: none
        entry[0] = pid_of(int(entry[0] or 0))
        layout.pack_into(data, position * stride, *entry)
    return len(rows), bytes(data)


def answer_list(answer: Mapping[str, Any], args: tuple[Any, ...]) -> None:
    """Answer a call (count, buffer). Raises NvmlError where the list is longer than the buffer, and ValueError."""
    count, data = list_bytes(answer)
    room = view(ctypes.c_uint, args[0])
    capacity, room.value = room.value, count
    if capacity < count or (count and not address(args[1])):
        raise NvmlError(Code.INSUFFICIENT_SIZE)
    if count:
        put_bytes(args[1], data)


def answer_details(answer: Mapping[str, Any], args: tuple[Any, ...]) -> None:
    """Answer nvmlDeviceGetRunningProcessDetailList. Raises as `answer_list` does."""
    count, data = list_bytes({"stride": MOST_STRIDE, **answer})
    request = view(ProcessDetailList, args[0])
    capacity, request.count = request.count, count
    if capacity < count or (count and not request.array):
        raise NvmlError(Code.INSUFFICIENT_SIZE)
    if count:
        put_bytes(request.array, data)


# ---- samples -------------------------------------------------------------------------------------


def read_samples(data: bytes, now_microseconds: int, *, new: bool) -> dict[str, Any]:
    """Return samples, each stamp as the age that it had."""
    rows = [
        [row[1], now_microseconds - row[0], *row[2:]] if new else [row[0], now_microseconds - row[1], *row[2:]]
        for row in (SAMPLE_INFO if new else SAMPLE).iter_unpack(data)
    ]
    return {"samples": rows}


def answer_samples(answer: Mapping[str, Any], args: tuple[Any, ...], now_microseconds: int, *, new: bool) -> None:
    """Answer with samples of the age that they had. NOT_FOUND where none is newer than the caller asks for."""
    rows = [[made_up_pid(row[0]), now_microseconds - row[1], *row[2:]] for row in answer["samples"]]
    request = view(ProcessesUtilizationInfo, args[0]) if new else None
    since = request.lastSeenTimeStamp if request is not None else number(args[2])
    rows = [row for row in rows if row[1] > since]
    if not rows:
        raise NvmlError(Code.NOT_FOUND)
    room = request if request is not None else view(ctypes.c_uint, args[1])
    name = "count" if new else "value"
    capacity = getattr(room, name)
    setattr(room, name, len(rows))
    out = request.array if request is not None else args[0]
    if capacity < len(rows) or not address(out):
        raise NvmlError(Code.INSUFFICIENT_SIZE)
    put_bytes(out, b"".join(_sample(row, new=new) for row in rows))


def _sample(row: Sequence[int], *, new: bool) -> bytes:
    pid, stamp, *percent = [int(value) for value in row]
    width = 6 if new else 4
    percent = [*percent, *[0] * width][:width]
    return SAMPLE_INFO.pack(stamp, pid, *percent) if new else SAMPLE.pack(pid, stamp, *percent)


# ---- field values --------------------------------------------------------------------------------


def field_key(field: int, scope: int) -> str:
    """Return how a capture names a field: its number, and after a slash the scope (a link, say) but for 0."""
    return f"{field}/{scope}" if scope else str(field)


def read_field(entry: FieldValue) -> Any:
    """Return `uint 70123`, or `error not_supported` for a field that fails alone."""
    if entry.nvmlReturn:
        return f"{ERROR} {code_name(entry.nvmlReturn)}"
    kind = entry.valueType
    if not 0 <= kind < len(_MEMBERS):
        return {"type": kind, "hex": bytes(entry.value).hex()}
    member = _MEMBERS[kind].from_address(ctypes.addressof(entry) + _VALUE_OFFSET)
    return f"{_VALUE_TYPES[kind]} {member.value}"


def answer_field(entry: FieldValue, answer: Any, now_microseconds: int) -> None:
    """Answer one field. A number alone is an unsigned one of 64 bits, or a double. Raises ValueError."""
    entry.timestamp, entry.latencyUsec, entry.nvmlReturn = now_microseconds, 0, Code.SUCCESS
    entry.value.ullVal = 0
    error = field_error(answer)
    if error is not None:
        entry.nvmlReturn = parse_code(error)
        return
    if isinstance(answer, Mapping):
        entry.valueType = int(answer["type"])
        entry.value.ullVal = int.from_bytes(bytes_from_hex(answer["hex"]), "little")
        return
    kind, value = _typed(answer)
    entry.valueType = kind
    _MEMBERS[kind].from_address(ctypes.addressof(entry) + _VALUE_OFFSET).value = value


def field_error(answer: Any) -> Any:
    """Return the code that a field fails with, None if it does not. `{error: ...}` is understood as well."""
    if isinstance(answer, Mapping):
        return answer.get(ERROR)
    return answer.removeprefix(f"{ERROR} ") if isinstance(answer, str) and answer.startswith(f"{ERROR} ") else None


def _typed(answer: Any) -> tuple[int, int | float]:
    if isinstance(answer, str):
        name, _, text = answer.partition(" ")
        if name not in _VALUE_TYPES:
            raise ValueError(f"{name!r} is none of {', '.join(_VALUE_TYPES)}")
        return _VALUE_TYPES.index(name), float(text) if name == "double" else int(text)
    return (0, answer) if isinstance(answer, float) else (3 if answer >= 0 else 4, int(answer))


# ---- GPM -----------------------------------------------------------------------------------------


def _metrics(request: GpmMetricsGet) -> Sequence[GpmMetric]:
    kind: Any = GpmMetric * request.numMetrics
    found: Sequence[GpmMetric] = kind.from_address(ctypes.addressof(request) + ctypes.sizeof(request))
    return found


def read_metrics(request: GpmMetricsGet) -> dict[str, Any]:
    """Return the value of each metric by its number, or the code that it has alone."""
    return {
        str(metric.metricId): {ERROR: code_name(metric.nvmlReturn)} if metric.nvmlReturn else metric.value
        for metric in _metrics(request)
    }


def answer_metrics(request: GpmMetricsGet, answer: Mapping[Any, Any]) -> None:
    """Answer the metrics that were captured; NOT_SUPPORTED for any other."""
    for metric in _metrics(request):
        value = answer.get(str(metric.metricId), answer.get(metric.metricId, {ERROR: "not_supported"}))
        metric.nvmlReturn = parse_code(value[ERROR]) if isinstance(value, Mapping) else Code.SUCCESS
        metric.value = 0.0 if isinstance(value, Mapping) else float(value)


def code_name(code: int) -> str | int:
    """Return an nvmlReturn_t by its name where it has one."""
    try:
        return Code(code).name.lower()
    except ValueError:
        return code
