"""The file that open faults of GPUs are kept in over restarts of the agent, within one boot."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from gpuagent.monitor.listings_file import LatestWriter
from gpuagent.runtime.state_files import read_state

log = logging.getLogger(__name__)

_SCHEMA = 1
_MOST_GPUS = 1024
_MOST_XIDS = 64
"""For each GPU, as many as the event thread counts."""


class StoredXid(NamedTuple):
    """Last Xid of one code. `time_seconds` is Unix time."""

    xid: int
    time_seconds: float
    open: bool


class StoredGpu(NamedTuple):
    """What is kept of one GPU. `lost_since_seconds` is CLOCK_BOOTTIME."""

    lost_since_seconds: float | None
    energy_joules: float | None
    driver_version: str
    advised: bool
    xids: tuple[StoredXid, ...]


class RepairsFile:
    """Reads the file once, and writes it in a thread of its own. An old file is kept where no new one can be had."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._writer = LatestWriter(path, content="faults of the GPUs", keep_old=True)

    def load(self, now_seconds: float) -> Mapping[str, StoredGpu]:
        """Return the faults of this boot by UUID; none where the file is missing, of another boot or damaged."""
        try:
            stored = json.loads(read_state(self._path))
            if stored["boot_id"] != self._boot_id or stored["schema"] != _SCHEMA:
                return {}
            return {str(entry["uuid"]): _gpu(entry, now_seconds) for entry in stored["gpus"][:_MOST_GPUS]}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            log.warning("%s cannot be read, GPUs that were not repaired are not known any more: %s", self._path, error)
            return {}

    def save(self, gpus: Mapping[str, StoredGpu]) -> None:
        """Have these written."""
        document = {
            "schema": _SCHEMA,
            "boot_id": self._boot_id,
            "gpus": [
                {
                    "uuid": uuid,
                    "lost_since": gpu.lost_since_seconds,
                    "energy": gpu.energy_joules,
                    "driver_version": gpu.driver_version,
                    "advised": gpu.advised,
                    "xids": [xid._asdict() for xid in gpu.xids],
                }
                for uuid, gpu in gpus.items()
            ],
        }
        self._writer.write(lambda: document)


def _gpu(entry: Mapping[str, object], now_seconds: float) -> StoredGpu:
    xids = entry["xids"]
    if not isinstance(xids, list):
        raise TypeError("xids are not a list")
    lost = _number(entry["lost_since"])
    if lost is not None and lost > now_seconds:
        raise ValueError(f"lost since {lost}, which is in the future")
    return StoredGpu(
        lost, _number(entry["energy"]), str(entry["driver_version"]), entry["advised"] is True,
        tuple(_xid(xid) for xid in xids[:_MOST_XIDS]),
    )  # fmt: skip


def _xid(entry: Mapping[str, object]) -> StoredXid:
    code, seconds = entry["xid"], _number(entry["time_seconds"])
    if not isinstance(code, int) or seconds is None:
        raise TypeError(f"{entry!r} is no Xid")
    return StoredXid(code, seconds, entry["open"] is True)


def _number(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)
