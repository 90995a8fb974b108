"""What processes are called in a line: one with its user and pid, several by what they have in common."""

from __future__ import annotations

from collections.abc import Mapping

from gpuagent.core.identity import format_container
from gpuagent.core.process_labels import alert_labels
from gpuagent.core.snapshot import ProcessReading
from gpuagent_alerts.messages.briefing_inputs import BriefingInputs, Successors


def times(number: int) -> str:
    """Return `once`, `twice`, `3 times`."""
    return "once" if number == 1 else "twice" if number == 2 else f"{number} times"


def labels_of(process: ProcessReading) -> dict[str, str]:
    """Return what an alert's labels say of a process, and of one that has ended what it was."""
    info = process.info or process.former
    if info is None:
        return {"pid": str(process.pid), "process": "[dead]"}
    labels = {"pid": str(process.pid), "process": info.name, "user": info.user, **alert_labels(info)}
    return {name: value for name, value in labels.items() if value}


def process_name(labels: Mapping[str, str]) -> str:
    """Return `whisper-api (svc-ml, pid 81204)`, a rank with its job."""
    job = f"Slurm job {labels['slurm_job']}" if labels.get("slurm_job") else ""
    who = ", ".join(part for part in (labels.get("user", ""), job, f"pid {labels.get('pid', '?')}") if part)
    return f"{labels.get('process', 'a process')} ({who})"


def group_name(seen: BriefingInputs, labels: Mapping[str, str], again: Successors | None = None) -> str:
    """Return what several processes have in common, the narrowest first; `again` was started in place of them."""
    common = {name: text for name, text in seen.incident.labels.items() if text}
    # What is created anew has another id: of several that ran one after another only what they share is a name.
    labels = common or labels if seen.incident.restarts else {**labels, **common}
    if again is not None and again.origin:
        labels = {name: text for name, text in labels.items() if again.origin.get(name, text) == text}
    if labels.get("slurm_job"):
        return f"Slurm job {labels['slurm_job']}"
    if labels.get("pod_name"):
        return f"pod {labels.get('pod_namespace', '')}/{labels['pod_name']}"
    if labels.get("pod_uid"):
        return f"pod {labels['pod_uid'][:8]}"
    if labels.get("unit"):
        return labels["unit"]
    if labels.get("container_id"):
        return f"container {format_container(labels['container_id'])}"
    return labels.get("process", "processes")
