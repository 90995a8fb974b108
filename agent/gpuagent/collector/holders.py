"""Remember who held the memory of processes that have ended: what /proc said of each while it lived.

The driver lists a pid for as long as its memory is not back, and /proc knows nothing of it any more. What was known
is kept for each entry of a GPU's list, over restarts of the agent too. It is for people to read: no act goes by it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpuagent.collector.saved_state import LatestWriter
from gpuagent.core.clock import Clock
from gpuagent.core.growth import MemoryKey
from gpuagent.core.identity import ProcessId
from gpuagent.core.snapshot import ProcessInfo, ProcessReading, ProcessState
from gpuagent.procfs.machine import PidMark, PidSpace
from gpuagent.runtime.state_files import read_state

log = logging.getLogger(__name__)

UNLISTED_SECONDS = 60.0
"""Time without an entry on a complete list before its process is forgotten: lists come and go."""
_SCHEMA = 1
_MOST = 4096
"""Processes in the file."""
_MOST_AT_ONCE = 256
"""Number of processes beyond which the file is not written at every change, but every `_SAVE_SECONDS`."""
_SAVE_SECONDS = 30.0
_TEXTS = (
    "name", "user", "command", "unit", "container_id", "container_runtime", "container_name", "pod_uid", "pod",
    "namespace", "slurm_job",
)  # fmt: skip
"""Fields of `ProcessInfo` that are kept, beside uid, pid and times."""


class LastHolders:
    """Remember the processes of each GPU's list by what they were. For one thread."""

    def __init__(
        self, clock: Clock, path: Path | None = None, boot_id: str = "", pid_space: PidSpace | None = None
    ) -> None:
        """Load what an agent of this boot has left in `path`; None keeps everything in memory only.

        What it has left is not believed where pids may have been given twice since, by `pid_space`.
        """
        self._clock = clock
        self._boot_id = boot_id
        self._pid_space = pid_space
        self._known: dict[MemoryKey, ProcessInfo] = {}
        self._missed: dict[MemoryKey, float] = {}
        """Time since when a known entry has not been listed."""
        self._written: dict[MemoryKey, ProcessId] = {}
        self._written_at = -_SAVE_SECONDS
        self._writer = None if path is None else LatestWriter(path, content="processes on the GPUs", keep_old=True)
        if path is not None:
            self._load(path)

    def name(self, gpu_uuid: str, readings: Sequence[ProcessReading], *, complete: bool) -> list[ProcessReading]:
        """Return one GPU's processes, those that have ended with who they were.

        `complete` says that a process which is not among them is not listed.
        """
        made = []
        self._forget_missed()
        for reading in readings:
            key, info = reading.key, reading.info
            if reading.state is ProcessState.LIVE and info is not None:
                if info.id.start_ticks > 0 and not reading.holder_unproven:
                    self._known[key] = info
                made.append(reading)
            elif reading.state is ProcessState.DEAD:
                made.append(reading._replace(former=_with_end(self._known.get(key), reading.former)))
            else:
                made.append(reading)
        if complete:
            self._note_missed(gpu_uuid, {reading.key for reading in readings})
        self._save_if_changed()
        return made

    def _forget_missed(self) -> None:
        now = self._clock.now()
        for key in [key for key, since in self._missed.items() if now - since >= UNLISTED_SECONDS]:
            del self._known[key], self._missed[key]

    def _note_missed(self, gpu_uuid: str, listed: set[MemoryKey]) -> None:
        for key in self._known:
            if key in listed:
                self._missed.pop(key, None)
            elif key.gpu_uuid == gpu_uuid:
                self._missed.setdefault(key, self._clock.now())

    def _save_if_changed(self) -> None:
        if self._writer is None:
            return
        now = self._clock.now()
        if len(self._known) > _MOST_AT_ONCE and now - self._written_at < _SAVE_SECONDS:
            return
        ids = {key: info.id for key, info in self._known.items()}
        if ids != self._written:
            self._written, self._written_at = ids, now
            self._writer.write(self._document)

    def _document(self) -> dict[str, object]:
        mark = PidMark(None, None) if self._pid_space is None else self._pid_space.mark()
        return {
            "schema": _SCHEMA,
            "boot_id": self._boot_id,
            "forks": mark.forks,
            "pid_max": mark.numbers,
            "processes": [_entry(key, info) for key, info in list(self._known.items())[:_MOST]],
        }

    def _load(self, path: Path) -> None:
        try:
            stored = json.loads(read_state(path))
            if stored["schema"] != _SCHEMA or stored["boot_id"] != self._boot_id:
                return
            mark = PidMark(_whole(stored["forks"]), _whole(stored["pid_max"]))
            if self._pid_space is None or self._pid_space.may_have_wrapped(mark):
                return
            self._known = dict(_process(entry, self._boot_id) for entry in stored["processes"][:_MOST])
            self._written = {key: info.id for key, info in self._known.items()}
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            log.warning("%s cannot be read, processes that have ended meanwhile have no name: %s", path, error)
            self._known, self._written = {}, {}


def _entry(key: MemoryKey, info: ProcessInfo) -> dict[str, object]:
    return {
        "gpu": key.gpu_uuid,
        "instance": key.gpu_instance_id,
        "pid": info.id.pid,
        "start_ticks": info.id.start_ticks,
        "start_time": info.start_time_seconds,
        "uid": info.uid,
        **{field: getattr(info, field) for field in _TEXTS},
    }


def _process(entry: Mapping[str, object], boot_id: str) -> tuple[MemoryKey, ProcessInfo]:
    pid, ticks, uid, instance = (_whole(entry[field]) for field in ("pid", "start_ticks", "uid", "instance"))
    started = entry["start_time"]
    if pid is None or ticks is None or uid is None or instance is None or not isinstance(started, int | float):
        raise TypeError(f"{entry!r} is no process")
    texts = {field: entry[field] for field in _TEXTS}
    if not all(isinstance(value, str) for value in texts.values()):
        raise TypeError(f"{entry!r} is no process")
    info = ProcessInfo(ProcessId(boot_id, pid, ticks), uid=uid, start_time_seconds=float(started), **texts)  # type: ignore[arg-type]
    return MemoryKey(str(entry["gpu"]), pid, instance), info


def _whole(value: object) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _with_end(known: ProcessInfo | None, zombie: ProcessInfo | None) -> ProcessInfo | None:
    """Return what a process was, and that it is a zombie where /proc still lists it."""
    if zombie is None or known is None or known.id != zombie.id:
        return zombie or known
    return replace(known, state=zombie.state, resident_bytes=zombie.resident_bytes)
