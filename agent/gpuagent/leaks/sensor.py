"""The leak detector as a sensor among others: what it says of a snapshot becomes series, as what was measured does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from gpuagent.growth import Growth, MemoryKey
from gpuagent.leaks.gpu import GpuSensor, News
from gpuagent.leaks.places import readable
from gpuagent.leaks.registry import Histories
from gpuagent.reading import ProcessReading, Snapshot

_SWEEP_SECONDS = 15.0


class LeakSensor:
    """Fed with every snapshot, in order. For one thread."""

    def __init__(self, histories: Histories) -> None:
        self._histories = histories
        self._gpus: dict[str, GpuSensor] = {}
        self._growth: Mapping[MemoryKey, Growth] = {}
        self._swept_seconds = 0.0

    def observe(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with what is said of it. What could not be read has no growth, and its history waits."""
        now = snapshot.clock_seconds
        to_unix = snapshot.time_seconds - now
        by_gpu: dict[str, list[ProcessReading]] = defaultdict(list)
        for process in snapshot.processes:
            by_gpu[process.gpu_uuid].append(process)
        sweep = now - self._swept_seconds >= _SWEEP_SECONDS
        chooses = self._histories.take_chosen_anew(sweep=sweep)
        news: News = {}
        for reading in snapshot.gpus:
            uuid = reading.identity.uuid
            if not uuid:
                continue
            gpu = self._gpus.get(uuid)
            if gpu is None:
                gpu = self._gpus[uuid] = GpuSensor(uuid, self._histories, snapshot.node.boot_id)
            if chooses:
                gpu.choose(by_gpu[uuid], snapshot.clients, now)
            if not readable(reading):
                gpu.hide(news)
            elif gpu.is_new(reading):
                gpu.take(reading, by_gpu[uuid], snapshot.clients, now, to_unix, news)
                if sweep:
                    gpu.sweep(now)
        if sweep:
            self._swept_seconds = now
            self._histories.sweep(now)
        self._hide_gone(snapshot, news)
        self._adopt(news)
        return replace(snapshot, growth=self._growth)

    def _hide_gone(self, snapshot: Snapshot, news: News) -> None:
        """The driver was reloaded, or a GPU has another name now."""
        seen = {reading.identity.uuid for reading in snapshot.gpus}
        for uuid in self._gpus.keys() - seen:
            self._gpus[uuid].hide(news)

    def _adopt(self, news: News) -> None:
        """A snapshot is frozen: what was handed out is never changed, and handed out again while nothing is new."""
        changed = {key: growth for key, growth in news.items() if self._growth.get(key) is not growth}
        if changed:
            merged = {**self._growth, **changed}
            self._growth = {key: growth for key, growth in merged.items() if growth is not None}
