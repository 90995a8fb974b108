"""Logs of `nvidia-smi --query-compute-apps=timestamp,gpu_uuid,pid,process_name,used_memory --format=csv -l 5`.

They have no free memory: it is what the processes leave of the total, which the caller must know.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from gpuagent_alerts.leak.replay.rows import Leftover, OnFault, Rows, TraceError

_TIME: Final = "timestamp"
_USED: Final = ("used_gpu_memory", "used_memory")
_NAMES: Final = ("process_name", "name")
_GPUS: Final = ("gpu_uuid", "gpu_bus_id", "gpu_serial")
_UNITS: Final = {"": 2**20, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_FORMAT: Final = "%Y/%m/%d %H:%M:%S.%f"


def is_smi_header(line: str) -> bool:
    """Whether a file that begins with this line is one of these."""
    names = [cell.split("[")[0].strip() for cell in line.split(",")]
    return _TIME in names and "pid" in names and any(name in names for name in _USED)


def read_smi(lines: Iterable[str], total_bytes: float | None, on_fault: OnFault) -> Rows:
    """The rows; the local time of the log is taken for UTC. Raises TraceError if the total is not known."""
    if total_bytes is None:
        raise TraceError(
            "an nvidia-smi log does not tell what is free: give the memory of the GPU, such as --total 80GiB"
        )
    reader = csv.reader(lines, skipinitialspace=True)
    header = next(reader, [])
    names = [cell.split("[")[0].strip() for cell in header]
    time_at, pid_at = names.index(_TIME), names.index("pid")
    used_at = next(names.index(name) for name in _USED if name in names)
    name_at = next((names.index(name) for name in _NAMES if name in names), None)
    gpu_at = next((names.index(name) for name in _GPUS if name in names), None)
    unit = _UNITS.get(header[used_at].partition("[")[2].rstrip("] "), 2**20)
    leftovers: dict[str, Leftover] = {}
    for row in reader:
        if not row or row == header:  # runs that were appended to one file
            continue
        try:
            if len(row) != len(header):
                raise ValueError(f"{len(row)} cells where the first line has {len(header)}")
            moment = datetime.strptime(row[time_at].strip(), _FORMAT).replace(tzinfo=UTC).timestamp()
            used = _bytes_of(row[used_at], unit)
        except ValueError as error:
            on_fault(reader.line_num, str(error))
            continue
        gpu = row[gpu_at] if gpu_at is not None else ""
        name = row[name_at].rpartition("/")[2] if name_at is not None else "process"
        process = f"{name}:{row[pid_at]}" + (f" on {gpu}" if gpu else "")
        if gpu not in leftovers:
            leftovers[gpu] = Leftover(total_bytes)
        free = leftovers[gpu].after(moment, process, used)
        yield moment, used, free, None, None, process


def _bytes_of(cell: str, unit: int) -> float | None:
    """Bytes of `1234 MiB`, or of `1234` in the header's unit; None where the driver does not tell."""
    text = cell.strip()
    if not text or text.startswith("["):  # [N/A], [Not Supported], [Insufficient Permissions]
        return None
    amount, _, written = text.partition(" ")
    if written and written not in _UNITS:
        raise ValueError(f"{text} has an unknown unit")
    value = float(amount) * (_UNITS[written] if written else unit)
    if not 0 <= value < 2**63:
        raise ValueError(f"{text} is no amount of memory")
    return value
