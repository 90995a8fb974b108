"""Alerts about growth that an earlier agent left firing: they stay as they were until this one has measured anew.

The history of a process may not have outlived the restart. Then the leak detector says nothing, or that memory is
steady, of what still leaks: neither is a reason for an end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from gpuagent.core.growth import Growth, MemoryKey, Verdict
from gpuagent.core.snapshot import GpuReading, GpuState, NvmlState, Snapshot
from gpuagent_alerts.alert import fingerprint
from gpuagent_alerts.messages.briefing_inputs import FULL
from gpuagent_alerts.messages.end_facts import has_instance, key_of, memory_of
from gpuagent_alerts.notify.incident_record import IncidentRecord, are_processes_gone
from gpuagent_alerts.notify.succession import MemoryMeter
from gpuagent_alerts.remedies.safeguards.rule_sampling import GROWTH
from gpuagent_alerts.states.group import RunningRule
from gpuagent_alerts.states.instance import State

LONGEST_WAIT_SECONDS = 900.0
"""Wait for a verdict: the detector has one 6 to 9 min after it began anew."""
LONGEST_GROWTH_SECONDS = 14_400.0
"""Wait for a verdict on what still grows: the windows of slow growth are long."""
_ROOM_RATIO = 0.9
_FORECAST = "gpuagent_gpu_memory_exhaustion_seconds"
_IS_MEASURED = frozenset({Verdict.LEAKING, Verdict.LEVELLED_OFF, Verdict.CACHED})
"""Verdicts that take a history: it was kept, or has been learned anew."""


class RestoredGrowth:
    """Alerts about growth that were loaded, and have not been seen true since."""

    def __init__(self, incidents: Callable[[], Mapping[str, IncidentRecord]]) -> None:
        self._incidents = incidents
        self._meters: dict[str, MemoryMeter] = {}
        self._unproven: set[str] = set()
        self._loaded_at = 0.0
        """Clock at which the states were loaded."""
        self._forecasts: set[str] = set()
        """Fingerprints of alerts on the time until a GPU is full."""
        self._full: set[str] = set()
        """UUIDs of the GPUs that were full when the states were kept."""

    def note_loaded(self, rules: Sequence[RunningRule], now: float) -> None:
        """Remember what fires right after the states were loaded. `now` is CLOCK_BOOTTIME in seconds."""
        self._meters = {
            instance.fingerprint: MemoryMeter(now)
            for running in rules
            if running.states is not None and running.rule.expression.metric_names & GROWTH
            for instance in running.states.instances
            if instance.state is State.FIRING and not instance.is_kept
        }
        self._forecasts = {
            instance.fingerprint
            for running in rules
            if running.states is not None and _FORECAST in running.rule.expression.metric_names
            for instance in running.states.instances
        }
        self._unproven = set(self._meters)
        self._loaded_at = now
        self._full = {
            instance.labels.get("uuid", "")
            for running in rules
            if running.states is not None
            for instance in running.states.instances
            if instance.state is State.FIRING and instance.labels["alertname"] in FULL
        }

    def observe(self, rules: Iterable[RunningRule], snapshot: Snapshot) -> None:
        """Measure what they are about, before an evaluation."""
        if not self._meters:
            return
        seen: set[str] = set()
        for running in rules:
            for instance in running.states.instances if running.states is not None else ():
                name = instance.fingerprint
                if name not in self._meters or instance.state is not State.FIRING:
                    continue
                is_true_again = instance.true_clock is not None
                if not is_true_again and self._is_unproven(name, instance.labels, snapshot):
                    seen.add(name)
        self._meters = {name: meter for name, meter in self._meters.items() if name in seen}
        self._unproven = seen

    def is_unproven(self, labels: Mapping[str, str]) -> bool:
        """Return whether the alert of these labels is neither seen true again nor known to be over."""
        return bool(self._unproven) and fingerprint(labels) in self._unproven

    def _is_unproven(self, name: str, labels: Mapping[str, str], snapshot: Snapshot) -> bool:
        key = key_of(labels)
        gpu = next((one for one in snapshot.gpus if one.identity.uuid == labels.get("uuid")), None)
        if key is None:
            return False
        if gpu is None or snapshot.node.nvml_state is not NvmlState.READY or gpu.state is not GpuState.OK:
            return self._may_come_back(name, gpu, snapshot)
        if not has_instance(labels, gpu):
            return False
        return self._is_unproven_on(gpu, key, name, labels, snapshot)

    def _may_come_back(self, name: str, gpu: GpuReading | None, snapshot: Snapshot) -> bool:
        """Return whether a GPU that is not read now may be there: what is missing is frozen by itself."""
        if gpu is not None or snapshot.node.nvml_state is not NvmlState.READY:
            return True
        # A board that the driver finds and cannot name yet may be this one.
        is_any_unnamed = any(not one.identity.uuid for one in snapshot.gpus)
        return is_any_unnamed and self._may_wait(name, snapshot.clock_seconds)

    def _is_unproven_on(
        self, gpu: GpuReading, key: MemoryKey, name: str, labels: Mapping[str, str], snapshot: Snapshot
    ) -> bool:
        """Return the same of an alert on a GPU that was read."""
        running = {
            f"{one.info.id.boot_id}:{one.info.id.pid}:{one.info.id.start_ticks}"
            for one in snapshot.processes if one.info is not None
        }  # fmt: skip
        if gpu.processes_known and are_processes_gone(self._incidents(), name, running):
            return False
        if not key.pid and key.gpu_uuid in self._full and gpu.memory and (gpu.memory.taken_ratio or 1.0) < _ROOM_RATIO:
            return False  # a forecast of a GPU that was full, and has room again
        used = _used(key, snapshot, labels)
        if used is None:
            return key.pid == 0 or not gpu.processes_known
        self._meters[name].add({name: used}, snapshot.clock_seconds)
        # Growth that stops for want of room proves nothing.
        is_full = gpu.memory is not None and gpu.memory.is_full
        growth = snapshot.growth.get(key)
        since_boot = snapshot.clock_seconds - snapshot.time_seconds
        if growth is not None and self._is_measured(name, growth, since_boot):
            return False
        return self._may_grow(name, growth, snapshot.clock_seconds, is_full=is_full)

    def _is_measured(self, name: str, growth: Growth, since_boot: float) -> bool:
        """Return whether the detector says by a history what has become of it; `since_boot` turns Unix time into clock.

        A forecast is one by itself.
        """
        if growth.verdict in _IS_MEASURED:
            return True
        if growth.verdict is not Verdict.GROWING:
            return False
        was_kept = growth.since_seconds is not None and growth.since_seconds + since_boot < self._loaded_at
        return was_kept or (name in self._forecasts and growth.exhaustion is not None)

    def _may_grow(self, name: str, growth: Growth | None, now: float, *, is_full: bool) -> bool:
        """Return whether memory that is there may grow as it did, by the detector and by what was measured of it."""
        meter, verdict = self._meters[name], None if growth is None else growth.verdict
        is_growing = verdict is Verdict.GROWING or (growth is not None and growth.fast)
        is_growing = is_growing and now - self._loaded_at < LONGEST_GROWTH_SECONDS
        measured = meter.measure(0.0, now)
        if is_growing or is_full or (measured.is_complete and measured.bytes_per_second):
            meter.began = now
            return True
        is_flat = measured.is_flat and verdict is not Verdict.LEARNING
        return not is_flat and self._may_wait(name, now)

    def _may_wait(self, name: str, now: float) -> bool:
        return now - self._meters[name].began < LONGEST_WAIT_SECONDS


def _used(key: MemoryKey, snapshot: Snapshot, labels: Mapping[str, str]) -> int | None:
    """Return what the process, or all of the GPU or MIG instance, uses; None where that is not known."""
    if key.pid:
        found = [one.used_bytes for one in snapshot.processes if one.pid == key.pid and one.gpu_uuid == key.gpu_uuid]
        return next((used for used in found if used is not None), None)
    memory = memory_of(labels, snapshot)
    return None if memory is None else memory.used_bytes
