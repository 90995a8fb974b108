"""What can be asked of the leak detector, and told to it: evidence, traces, and whether it was right."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from gpuagent.core.clock import Clock
from gpuagent.core.snapshot import GpuReading, ProcessReading
from gpuagent.service.leak_feedback import SCHEMA, FeedbackFailure, FeedbackStore
from gpuagent_alerts.leak.evidence import evidence_document
from gpuagent_alerts.leak.histories import History
from gpuagent_alerts.leak.replay.exported import trace_document
from gpuagent_alerts.leak.sensor import LeakDetection
from gpuagent_exporters.api.alert_routes import LABELS, NotKept

log = logging.getLogger(__name__)

Document = dict[str, Any]
SAID: Final = {"false": "does not leak", "true": "leaks"}
MOST_TRACES: Final = 256
"""The most traces of one GPU in one answer, the largest first: each may be 200 KiB."""
MOST_NOTE_CHARACTERS: Final = 1000


class LeakCommands:
    """The answers. KeyError, ValueError and NotKept carry words for the person who asked."""

    def __init__(
        self, leaks: LeakDetection, clock: Clock, feedback: FeedbackStore, *, node: str, simulated: bool
    ) -> None:
        self._leaks = leaks
        self._clock = clock
        self._feedback = feedback
        self._node = node
        self._simulated = simulated

    def explain(self, pid: int, gpu: str) -> Document:
        """Return the evidence on a process. Raises KeyError, ValueError where it is on several GPUs."""
        history = self._one(pid, gpu)
        histories = self._leaks.histories
        evidence = evidence_document(history, histories.overrides, histories.sensitivity, self._to_unix())
        return {**evidence, "time_seconds": self._clock.wall(), **self._who(history)}

    async def traces(self, pid: int | None, gpu: str) -> Document:
        """Return the history of a process, of each process on a GPU, or of all. Raises as `explain` does."""
        found = self._all(gpu) if pid is None else [self._one(pid, gpu)]
        shown = sorted(found, key=lambda one: -(one.used_bytes or 0))[:MOST_TRACES]
        copies = [(self._who(history), self._prepared(history)) for history in shown]
        # A crowd of processes may have a hundred thousand runs: not for the event loop.
        traces = await asyncio.to_thread(lambda: [{**who, "trace": make()} for who, make in copies])
        return {
            "schema": SCHEMA,
            "time_seconds": self._clock.wall(),
            "node": self._node,
            "simulated": self._simulated,
            "left_out": len(found) - len(shown),
            "traces": traces,
        }

    async def feedback(self) -> Document:
        """Return what people have said, without the traces."""
        entries = await asyncio.to_thread(self._feedback.entries)
        return {"schema": SCHEMA, **self._feedback.limits, "feedback": entries}

    async def feedback_entry(self, entry_id: str) -> Document:
        """Return one, with its trace. Raises KeyError."""
        return await asyncio.to_thread(self._feedback.entry, entry_id)

    async def add_feedback(self, pid: int, gpu: str, label: str, note: str, creator: str) -> Document:
        """Keep a process's history with what somebody says of it. Raises as `explain` does, and NotKept."""
        if label not in LABELS:
            raise ValueError(f"label must be {' or '.join(LABELS)}")
        if len(note) > MOST_NOTE_CHARACTERS:
            raise ValueError(f"note must have at most {MOST_NOTE_CHARACTERS} characters")
        history = self._one(pid, gpu)
        if not len(history.trace):
            raise ValueError(f"nothing is remembered of process {pid} yet: the first 2 min are not kept")
        growth, now = history.growth, self._clock.wall()
        entry = {
            "schema": SCHEMA,
            "time_seconds": now,
            "label": label,
            "note": note,
            "by": creator,
            "node": self._node,
            "simulated": self._simulated,
            **self._who(history),
            "verdict": None if growth is None else growth.verdict,
            "evidence": None if growth is None else growth.grade,
            "sensitivity": history.detector.sensitivity,
        }
        kept = {**entry, "trace": self._prepared(history)()}
        try:
            entry_id, evicted = await asyncio.to_thread(self._feedback.add, kept, now, pid)
        except FeedbackFailure as error:
            raise NotKept(f"it could not be kept: {error}") from None
        log.info("%s says that process %d %s: %s", creator, pid, SAID[label], entry_id)
        return {**entry, "id": entry_id, "evicted": evicted}

    async def remove_feedback(self, entry_id: str) -> None:
        """Forget one. Raises KeyError and NotKept."""
        try:
            await asyncio.to_thread(self._feedback.remove, entry_id)
        except FeedbackFailure as error:
            raise NotKept(f"it could not be removed: {error}") from None

    def _to_unix(self) -> float:
        return self._clock.wall() - self._clock.now()

    def _prepared(self, history: History) -> Callable[[], Document]:
        """Return what makes its trace, in any thread."""
        return partial(
            trace_document,
            history.trace.copy(),
            _trace_name(self._reading(history), history, self._index(history)),
            total_bytes=history.beginning.total_bytes,
            started_seconds=history.beginning.started_seconds,
            clock_to_unix_seconds=self._to_unix() + history.beginning.phase,
        )

    def _one(self, pid: int, gpu: str) -> History:
        known = [one for one in self._candidates() if one.id.pid == pid]
        if not known:
            raise KeyError(f"nothing is remembered of a process {pid} on a GPU: it never was on one, or ended long ago")
        found = [one for one in known if not gpu or gpu in (one.key.gpu_uuid, str(self._index(one)))]
        if not found:
            raise KeyError(f"process {pid} is not on GPU {gpu[:50]}; it is on {self._places(known)}")
        running = [one for one in found if not one.over] or found[-1:]
        if len({one.key for one in running}) > 1:
            raise ValueError(f"process {pid} is on {self._places(running)}: say which with gpu")
        return running[-1]

    def _all(self, gpu: str) -> list[History]:
        running = [one for one in self._candidates() if not one.over]
        if not gpu:
            return running
        indices = {str(reading.identity.index): reading.identity.uuid for reading in self._gpus()}
        uuid = indices.get(gpu, gpu)
        if uuid not in indices.values():
            raise KeyError(f"there is no GPU {gpu[:50]}; there is {', '.join(indices) or 'none'}")
        return [one for one in running if one.key.gpu_uuid == uuid]

    def _candidates(self) -> Iterator[History]:
        """Give those of processes that have ended after a leak first: a later one of their pid comes after them."""
        histories = self._leaks.histories
        yield from (one for one in histories.ended if one.id.pid)
        yield from (one for one in histories if one.id.pid)

    def _gpus(self) -> tuple[GpuReading, ...]:
        snapshot = self._leaks.snapshot
        return () if snapshot is None else tuple(snapshot.gpus)

    def _index(self, history: History) -> int:
        found = (gpu.identity.index for gpu in self._gpus() if gpu.identity.uuid == history.key.gpu_uuid)
        return next(found, -1 if history.process is None else history.process.gpu_index)

    def _places(self, histories: list[History]) -> str:
        return ", ".join(dict.fromkeys(f"GPU {self._index(one)}" for one in histories))

    def _reading(self, history: History) -> ProcessReading | None:
        """Return the process as it is now, or as it was when it was seen last."""
        snapshot = self._leaks.snapshot
        for reading in () if snapshot is None or history.over else snapshot.processes:
            if reading.key == history.key and reading.info is not None and reading.info.id == history.id:
                return reading
        return history.process

    def _who(self, history: History) -> Mapping[str, Any]:
        reading = self._reading(history)
        info = None if reading is None else reading.info
        snapshot = self._leaks.snapshot
        client = None if snapshot is None else snapshot.clients.get(history.id.pid)
        return {
            "pid": history.id.pid,
            "process": "" if info is None else info.name,
            "user": "" if info is None else info.user,
            "unit": "" if info is None else info.unit,
            "container_id": "" if info is None else info.container_id,
            "app": client.app if client is not None and client.id == history.id else "",
            "gpu": self._index(history),
            "gpu_uuid": history.key.gpu_uuid,
            "gpu_instance_id": history.key.gpu_instance_id,
            "running": not history.over and history.shown,
        }


def _trace_name(reading: ProcessReading | None, history: History, index: int) -> str:
    """Return `name:pid/gpu0`, fit for a cell of CSV."""
    name = "" if reading is None or reading.info is None else reading.info.name
    clean = "".join(letter if letter.isprintable() and letter not in ',"' + "'" else "_" for letter in name)
    return f"{clean or 'process'}:{history.id.pid}/gpu{index}"
