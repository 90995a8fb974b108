"""An incident in one line, as a push notification shows it.

`CRITICAL node7 GPU 0: whisper-api (svc-ml, pid 81204) leaking 84.4 GiB/h, full in 8 min`
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gpuagent.alerting.briefed import FULL, LEAK, SOON, Briefed
from gpuagent.core.growth import Verdict
from gpuagent.core.identity import format_container
from gpuagent.core.snapshot import ProcessReading
from gpuagent.core.units import MAX_SECONDS, format_bytes, format_duration
from gpuagent_alerts.alert import Alert
from gpuagent_alerts.annotations import UNKNOWN_END, resolved_summary, shown_annotations
from gpuagent_alerts.incident import CauseKind
from gpuagent_exporters.xids import explain_xid

_PLACE = re.compile(r"GPU \d+(?: \(GPU-[^)]*\))?(?::| )\s*")
"""What a rule's text begins with, and the headline says by itself."""
_COARSE_SECONDS = 120.0
"""Above this a forecast is told in whole minutes."""


def headline_of(seen: Briefed, main: Alert | None, node: str) -> str:
    """Return the line: severity, node and GPU, what happened, and what comes of it as long as that is true."""
    return f"{_severity(seen)} {_place(seen, node)}: {_what(seen, main)}"


def _severity(seen: Briefed) -> str:
    return "RESOLVED" if seen.incident.is_over else (seen.incident.severity or "firing").upper()


def _place(seen: Briefed, node: str) -> str:
    indices = seen.indices
    if not indices or seen.incident.kind is CauseKind.NODE:
        return node
    instance = seen.incident.labels.get("gpu_instance_id", "")
    mig = f" MIG {instance}" if len(indices) == 1 and instance.isdecimal() else ""
    return f"{node} GPU{'s' if len(indices) > 1 else ''} {', '.join(indices)}{mig}"


def _what(seen: Briefed, main: Alert | None) -> str:
    if main is None:
        return f"incident {seen.incident.key}"
    if seen.incident.is_over:
        return _what_was(seen, main)
    write = _WRITERS.get(main.name)
    return _summary(main) if write is None else write(seen, main)


def _leak(seen: Briefed, main: Alert) -> str:
    pace = f" {format_bytes(seen.pace)}/h" if seen.pace else ""
    return f"{_subject(seen, main)} leaking{pace}{_forecast(seen)}"


def _soon(seen: Briefed, _: Alert) -> str:
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


def _full(seen: Briefed, main: Alert) -> str:
    return _summary(main) + _largest(seen)


def _lost(seen: Briefed, _: Alert) -> str:
    return "the GPU is lost" + "".join(f" after Xid {xid} ({explain_xid(xid).meaning})" for xid in seen.xids[:1])


def _xid(seen: Briefed, main: Alert) -> str:
    return ", ".join(f"Xid {xid}: {explain_xid(xid).meaning}" for xid in seen.xids) or _summary(main)


_WRITERS: dict[str, Callable[[Briefed, Alert], str]] = {
    LEAK: _leak,
    SOON: _soon,
    **dict.fromkeys(FULL, _full),
    "GpuLost": _lost,
    "GpuXidCritical": _xid,
    "GpuXidWarning": _xid,
}


def _what_was(seen: Briefed, main: Alert) -> str:
    if main.name == LEAK and len(seen.pids) > 1:
        return f"{_subject(seen, main)} was leaking memory: {main.end_reason or UNKNOWN_END}"
    return _without_place(resolved_summary(main))


def _summary(alert: Alert) -> str:
    return _without_place(shown_annotations(alert).get("summary") or alert.name)


def _without_place(text: str) -> str:
    return _PLACE.sub("", text, count=1) if _PLACE.match(text) else text


def _subject(seen: Briefed, main: Alert) -> str:
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


def _group(seen: Briefed, main: Alert) -> str:
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


def _forecast(seen: Briefed) -> str:
    if seen.is_full:
        return ", GPU full now"
    seconds = seen.seconds_to_full
    if seconds is None or not 0 <= seconds <= MAX_SECONDS:
        return ""
    return f", full in {format_duration(round(seconds / 60) * 60 if seconds >= _COARSE_SECONDS else seconds)}"


def _largest(seen: Briefed) -> str:
    """Return who holds most of a full GPU."""
    uuids = {gpu.identity.uuid for gpu in seen.gpus}
    listed = [] if seen.snapshot is None else seen.snapshot.processes
    held = [one for one in listed if one.gpu_uuid in uuids and one.used_bytes and one.info is not None]
    if not held:
        return ""
    most = max(held, key=lambda one: one.used_bytes or 0)
    return f", {format_bytes(most.used_bytes or 0)} of it held by {_name(most)}"
