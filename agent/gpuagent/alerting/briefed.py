"""An incident with its alerts and the snapshot beside it: the facts that its briefing is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuagent.core.growth import Growth, MemoryKey, Verdict
from gpuagent.core.snapshot import GpuReading, GpuState, ProcessReading, Snapshot
from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.annotations import UNKNOWN_END
from gpuagent_alerts.incident import Incident

LEAK = "GpuProcessMemoryLeak"
FULL = frozenset({"GpuMemoryFull", "GpuInstanceMemoryFull"})
SOON = "GpuMemoryExhaustionSoon"
_SEVERITIES = ("critical", "error", "warning", "info", "none")
_ORDER = (
    "GpuLost", "GpuXidCritical", "GpuProcessUnkillable", LEAK, *sorted(FULL), SOON, "GpuMemoryLeak", "GpuMemoryHigh",
    "GpuXidWarning",
)  # fmt: skip
"""Of alerts of one incident, which one names what happened. The leak stands before the full GPU that it led to."""
_NOTES = frozenset({"GpuRemedy", "GpuRemedyAnnounced"})
"""They tell what is done about it, and never name an incident that has something else."""
_FULL_RATIO = 0.98
_CAN_BLAME = frozenset({"census", "lines"})


@dataclass(frozen=True, slots=True)
class Briefed:
    """What is known of an incident when a message about it is made."""

    incident: Incident
    alerts: tuple[Alert, ...]
    snapshot: Snapshot | None

    @property
    def gpus(self) -> list[GpuReading]:
        """The GPUs that it happened on, as they were read last, by index."""
        if self.snapshot is None:
            return []
        uuids = {labels.get("uuid", "") for labels in (self.incident.labels, *(one.labels for one in self.alerts))}
        return sorted(
            (gpu for gpu in self.snapshot.gpus if gpu.identity.uuid in uuids), key=lambda gpu: gpu.identity.index
        )

    @property
    def indices(self) -> list[str]:
        """Indices of its GPUs as the labels have them, in order; of a GPU that was never read, too."""
        found = {labels.get("gpu", "") for labels in (self.incident.labels, *(one.labels for one in self.alerts))}
        return sorted(found - {""}, key=lambda text: (not text.isdecimal(), len(text), text))

    @property
    def pids(self) -> set[int]:
        """Processes that its alerts name."""
        texts = {one.labels.get("pid", "") for one in self.alerts} | {self.incident.labels.get("pid", "")}
        return {int(text) for text in texts if text.isdecimal()}

    @property
    def processes(self) -> list[ProcessReading]:
        """The processes that its alerts name, as the driver lists them on its GPUs."""
        uuids, pids = {gpu.identity.uuid for gpu in self.gpus}, self.pids
        listed = () if self.snapshot is None else self.snapshot.processes
        return [process for process in listed if process.pid in pids and process.gpu_uuid in uuids]

    @property
    def xids(self) -> list[int]:
        """Codes of the Xids that its alerts name."""
        return sorted({int(text) for one in self.alerts if (text := one.labels.get("xid", "")).isdecimal()})

    @property
    def pace(self) -> float:
        """By how many bytes an hour its processes grow together; 0 where no alert that is true says so."""
        found: dict[tuple[str, str, str], float] = {}
        for alert in self.alerts:
            labels = alert.labels
            if alert.name == LEAK and alert.status is Status.FIRING and alert.true_until is None:
                key = labels.get("uuid", ""), labels.get("pid", ""), labels.get("gpu_instance_id", "")
                found[key] = max(found.get(key, 0.0), alert.value)  # one alert for each standard, with one pace
        return sum(value for value in found.values() if value > 0)

    @property
    def grower(self) -> tuple[ProcessReading, Growth, float] | None:
        """The process on its GPUs that grows most, and by how many bytes an hour; None where none is known to grow."""
        if self.snapshot is None:
            return None
        uuids = {gpu.identity.uuid for gpu in self.gpus}
        found = [
            (process, growth, growth.slope.value * 3600)
            for process in self.snapshot.processes
            if process.gpu_uuid in uuids
            and (growth := self.snapshot.growth.get(process.key)) is not None
            and growth.slope is not None
            and growth.verdict in {Verdict.GROWING, Verdict.LEAKING}
            and growth.slope.value > 0
        ]
        return max(found, key=lambda one: one[2], default=None)

    @property
    def is_full(self) -> bool:
        """Whether one of its GPUs has no room."""
        if any(one.name in FULL and one.status is Status.FIRING and one.true_until is None for one in self.alerts):
            return True
        ratios = (gpu.memory.used_ratio for gpu in self.gpus if gpu.memory is not None and gpu.state is GpuState.OK)
        return any(ratio is not None and ratio >= _FULL_RATIO for ratio in ratios)

    @property
    def seconds_to_full(self) -> float | None:
        """Seconds until the first of its GPUs is full; None where no forecast is true now."""
        found = [
            one.value
            for one in self.alerts
            if one.name == SOON and one.status is Status.FIRING and one.true_until is None and one.value >= 0
        ]
        growth = {} if self.snapshot is None else self.snapshot.growth
        for gpu in self.gpus:
            whole = growth.get(MemoryKey(gpu.identity.uuid))
            if whole is not None and whole.exhaustion is not None:
                found.append(whole.exhaustion.value)
        return min(found, default=None)

    def can_blame(self, pid: int) -> bool:
        """Whether the app of this process can be asked which line of Python holds its memory."""
        client = None if self.snapshot is None else self.snapshot.clients.get(pid)
        return client is not None and bool(_CAN_BLAME & set(client.capabilities))


def main_alert(seen: Briefed) -> Alert | None:
    """Return the alert that names what happened; None for a message without alerts."""
    return min(_candidates(seen), key=lambda pair: pair[0], default=(None, None))[1]


def _candidates(seen: Briefed) -> Iterator[tuple[tuple[object, ...], Alert]]:
    over = seen.incident.is_over
    for place, alert in enumerate(seen.alerts):
        named = _ORDER.index(alert.name) if alert.name in _ORDER else len(_ORDER)
        severity = alert.labels.get("severity", "")
        yield (
            (
                not over and alert.status is not Status.FIRING,
                alert.name in _NOTES,
                named,
                over and alert.end_reason in {"", UNKNOWN_END},
                _SEVERITIES.index(severity) if severity in _SEVERITIES else 1,
                place,
            ),
            alert,
        )
