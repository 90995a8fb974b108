"""An incident in one line, as a push notification shows it, and the facts that its briefing is made of.

`CRITICAL node7 GPU 0: whisper-api (svc-ml, pid 81204) leaking 84.4 GiB/h, full in 8 min`
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpuagent.growth import Growth, MemoryKey, Verdict
from gpuagent.naming import format_container
from gpuagent.reading import GpuReading, GpuState, NvmlState, ProcessReading, Snapshot
from gpuagent.units import MAX_SECONDS, format_bytes, format_duration
from gpuagent_alerts.alert import UNKNOWN_END, Alert, CauseKind, Incident, Status, resolved_summary, shown_annotations
from gpuagent_exporters.xids import explain_xid

LEAK = "GpuProcessMemoryLeak"
FULL = frozenset({"GpuMemoryFull", "GpuInstanceMemoryFull"})
SOON = "GpuMemoryExhaustionSoon"
_SEVERITIES = ("critical", "error", "warning", "info", "none")
_ORDER = (
    "GpuLost", "GpuXidCritical", "GpuProcessUnkillable", LEAK, *sorted(FULL), SOON, "GpuMemoryLeak", "GpuMemoryHigh",
    "GpuXidWarning",
)  # fmt: skip
"""Alerts in the order in which they name an incident. The leak comes before the full GPU that it led to."""
_NOTES = frozenset({"GpuRemedy", "GpuRemedyAnnounced"})
"""Alerts that tell what is done about an incident, and never name one that has something else."""
_FULL_RATIO = 0.98
_CAN_BLAME = frozenset({"census", "lines"})


@dataclass(frozen=True, slots=True)
class BriefingInputs:
    """Facts known of an incident when a message about it is made."""

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
        """Bytes an hour by which its processes grow together; 0 where no alert that is true says so."""
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
        """Return whether the app of this process can be asked which line of Python holds its memory."""
        client = None if self.snapshot is None else self.snapshot.clients.get(pid)
        return client is not None and bool(_CAN_BLAME & set(client.capabilities))


def main_alert(seen: BriefingInputs) -> Alert | None:
    """Return the alert that names what happened; None for a message without alerts."""
    return min(_candidates(seen), key=lambda pair: pair[0], default=(None, None))[1]


def _candidates(seen: BriefingInputs) -> Iterator[tuple[tuple[object, ...], Alert]]:
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


_PLACE = re.compile(r"GPU \d+(?: \(GPU-[^)]*\))?(?::| )\s*")
"""Beginning of a rule's text that the headline says by itself."""
_COARSE_SECONDS = 120.0
"""Time above which a forecast is told in whole minutes."""


def headline_of(seen: BriefingInputs, main: Alert | None, node: str) -> str:
    """Return the line: severity, node and GPU, what happened, and what comes of it as long as that is true."""
    return f"{_severity(seen)} {_place(seen, node)}: {_what(seen, main)}"


def _severity(seen: BriefingInputs) -> str:
    return "RESOLVED" if seen.incident.is_over else (seen.incident.severity or "firing").upper()


def _place(seen: BriefingInputs, node: str) -> str:
    indices = seen.indices
    if not indices or seen.incident.kind is CauseKind.NODE:
        return node
    instance = seen.incident.labels.get("gpu_instance_id", "")
    mig = f" MIG {instance}" if len(indices) == 1 and instance.isdecimal() else ""
    return f"{node} GPU{'s' if len(indices) > 1 else ''} {', '.join(indices)}{mig}"


def _what(seen: BriefingInputs, main: Alert | None) -> str:
    if main is None:
        return f"incident {seen.incident.key}"
    if seen.incident.is_over:
        return _what_was(seen, main)
    write = _WRITERS.get(main.name)
    return _summary(main) if write is None else write(seen, main)


def _leak(seen: BriefingInputs, main: Alert) -> str:
    pace = f" {format_bytes(seen.pace)}/h" if seen.pace else ""
    return f"{_subject(seen, main)} leaking{pace}{_forecast(seen)}"


def _soon(seen: BriefingInputs, _: Alert) -> str:
    """Return who grows most, where somebody does: whoever is woken asks that first."""
    grower = seen.grower
    if grower is None:
        return f"memory running out{_forecast(seen)}"
    process, growth, pace = grower
    verb = "leaking" if growth.verdict is Verdict.LEAKING else "growing"
    return f"{_name(process)} {verb} {format_bytes(pace)}/h{_forecast(seen)}"


def _name(process: ProcessReading) -> str:
    info = process.info
    user = "" if info is None else info.user
    who = ", ".join(part for part in (user, f"pid {process.pid}") if part)
    return f"{'a process' if info is None else info.name} ({who})"


def _full(seen: BriefingInputs, main: Alert) -> str:
    return _summary(main) + _largest(seen)


def _lost(seen: BriefingInputs, _: Alert) -> str:
    return "the GPU is lost" + "".join(f" after Xid {xid} ({explain_xid(xid).meaning})" for xid in seen.xids[:1])


def _xid(seen: BriefingInputs, main: Alert) -> str:
    return ", ".join(f"Xid {xid}: {explain_xid(xid).meaning}" for xid in seen.xids) or _summary(main)


def _blind(seen: BriefingInputs, main: Alert) -> str:
    """Return what cannot be read, and that somebody paused the agent, where that is why."""
    node = None if seen.snapshot is None else seen.snapshot.node
    if node is not None and node.nvml_state is NvmlState.PAUSED:
        return "measuring is paused" + (f": {node.nvml_reason}" if node.nvml_reason else "")
    scope = main.labels.get("scope", "")
    if scope == "processes":
        return _summary(main)
    is_one = scope == "gpu" and len(seen.indices) == 1 and seen.incident.kind is not CauseKind.NODE
    return "the agent cannot read this GPU" if is_one else "the agent cannot read any GPU"


_WRITERS: dict[str, Callable[[BriefingInputs, Alert], str]] = {
    LEAK: _leak,
    SOON: _soon,
    **dict.fromkeys(FULL, _full),
    "GpuLost": _lost,
    "GpuXidCritical": _xid,
    "GpuXidWarning": _xid,
    "GpuMonitorBlind": _blind,
}


def _what_was(seen: BriefingInputs, main: Alert) -> str:
    if main.name == LEAK and len(seen.pids) > 1:
        return f"{_subject(seen, main)} was leaking memory: {main.end_reason or UNKNOWN_END}"
    return _without_place(resolved_summary(main))


def _summary(alert: Alert) -> str:
    return _without_place(shown_annotations(alert).get("summary") or alert.name)


def _without_place(text: str) -> str:
    return _PLACE.sub("", text, count=1) if _PLACE.match(text) else text


def _subject(seen: BriefingInputs, main: Alert) -> str:
    """Return who it is: one process with its user and pid, or several by what they have in common."""
    labels = main.labels
    user = labels.get("user", "")
    if len(seen.pids) < 2:
        who = ", ".join(part for part in (user, f"pid {labels.get('pid', '?')}") if part)
        return f"{labels.get('process', 'a process')} ({who})"
    users = {one.labels.get("user", "") for one in seen.alerts if one.labels.get("pid")} - {""}
    is_job = bool(labels.get("slurm_job"))
    many = f"{len(seen.pids)} {'ranks' if is_job else 'processes'}"
    return f"{_group(seen, main)} ({', '.join([many, *sorted(users)])})"


def _group(seen: BriefingInputs, main: Alert) -> str:
    """Return what several processes have in common, the narrowest first."""
    labels = {**main.labels, **{name: text for name, text in seen.incident.labels.items() if text}}
    if labels.get("slurm_job"):
        return f"Slurm job {labels['slurm_job']}"
    if labels.get("pod_name"):
        return f"pod {labels.get('pod_namespace', '')}/{labels['pod_name']}"
    if labels.get("unit"):
        return labels["unit"]
    if labels.get("container_id"):
        return f"container {format_container(labels['container_id'])}"
    return labels.get("process", "processes")


def _forecast(seen: BriefingInputs) -> str:
    if seen.is_full:
        return ", GPU full now"
    seconds = seen.seconds_to_full
    if seconds is None or not 0 <= seconds <= MAX_SECONDS:
        return ""
    return f", full in {format_duration(round(seconds / 60) * 60 if seconds >= _COARSE_SECONDS else seconds)}"


def _largest(seen: BriefingInputs) -> str:
    """Return who holds most of a full GPU."""
    uuids = {gpu.identity.uuid for gpu in seen.gpus}
    listed = [] if seen.snapshot is None else seen.snapshot.processes
    held = [one for one in listed if one.gpu_uuid in uuids and one.used_bytes and one.info is not None]
    if not held:
        return ""
    most = max(held, key=lambda one: one.used_bytes or 0)
    return f", {format_bytes(most.used_bytes or 0)} of it held by {_name(most)}"
