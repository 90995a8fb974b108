"""What processes are called in a line: one with its user and pid, several by what they have in common."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gpuagent.core.identity import format_container
from gpuagent.core.process_labels import alert_labels
from gpuagent.core.snapshot import ProcessReading
from gpuagent_alerts.alert import Alert, condition_times
from gpuagent_alerts.messages.briefing_inputs import DEAD, BriefingInputs, Successors
from gpuagent_alerts.messages.snapshot_inputs import template_of


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
    if unit := _template(seen)[0] or labels.get("unit"):
        return unit
    if labels.get("container_id"):
        return f"container {format_container(labels['container_id'])}"
    return labels.get("process", "processes")


_INSTANCES = re.compile(r"\d+ instances of ")
READ_IT = re.compile(r"\bread it\b")
_PLACE = re.compile(r"(?:the former )?GPU \d+(?: \(GPU-[^)]*\))?(?:, MIG instance \d+(?: \([^)]*\))?)?(?::| )\s*")
"""Beginning of a rule's text that the headline says by itself."""


def without_place(text: str) -> str:
    """Return a rule's text without the GPU that it begins with."""
    return _PLACE.sub("", text, count=1) if _PLACE.match(text) else text


def last_run(seen: BriefingInputs, main: Alert) -> tuple[Alert, ...]:
    """Return the alerts of an incident; of one that has ended after restarts those of the processes that ran last.

    Those ran at the same time as the one that `main` names.
    """
    if not (seen.incident.is_over and seen.incident.restarts):
        return seen.conditions
    begins, _ = condition_times(main)
    return tuple(one for one in seen.conditions if (end := condition_times(one)[1]) is None or end > begins)


def subject_name(seen: BriefingInputs, main: Alert) -> str:
    """Return who it is: one process with its user and pid, or several by what they have in common."""
    labels = main.labels if main.labels.get("pid") else _first_labels(seen) or main.labels
    told = {int(text) for one in last_run(seen, main) if (text := one.labels.get("pid", "")).isdecimal()}
    pids = told | {each.process.pid for each in seen.members} or seen.pids
    is_past = not seen.members and not seen.incident.restarts
    number = max(len(pids), seen.incident.grew_together if is_past else 0)
    if number < 2:
        return process_name(labels)
    users = {one.labels.get("user", "") for one in seen.conditions if one.labels.get("pid")}
    users |= {each.process.info.user for each in seen.members if each.process.info is not None}
    template, instances = _template(seen)
    if template and not labels.get("slurm_job"):
        return f"{instances} instances of {template} ({', '.join(sorted(users - {''}))})"
    many = f"{number} {'ranks' if labels.get('slurm_job') else 'processes'}"
    return f"{group_name(seen, labels)} ({', '.join([many, *sorted(users - {''})])})"


def was_leaking(subject: str) -> str:
    """Return the begin of a sentence on what leaked: several instances of a unit were, a job or a unit was."""
    return f"{subject} {'were' if _INSTANCES.match(subject) else 'was'} leaking memory"


def _template(seen: BriefingInputs) -> tuple[str, int]:
    """Return the template of which the units of an incident are instances, and how many; "" where they are not."""
    units = {one.labels.get("unit", "") for one in seen.conditions if one.labels.get("pid")}
    units |= {each.process.info.unit for each in seen.members if each.process.info is not None}
    templates = {template_of(unit) for unit in units}
    return (templates.pop(), len(units)) if len(units) > 1 and len(templates) == 1 else ("", 0)


def _first_labels(seen: BriefingInputs) -> dict[str, str]:
    """Return what the labels of an alert would say of the process that grows most."""
    if not seen.members:
        return {}
    return labels_of(seen.members[0].process)


def held_by_the_dead(alerts: Sequence[Alert]) -> tuple[dict[str, str], float]:
    """Return the ended processes by pid, each with its name and user, and how much they hold on all GPUs."""
    dead = [one for one in alerts if one.name == DEAD]
    who = {one.labels.get("pid", ""): process_name(one.labels) for one in dead}
    return who, sum(one.value for one in dead if one.value > 0)


def dead_subject(seen: BriefingInputs, who: Mapping[str, str]) -> str:
    """Return the name of a process that has ended, or what several have in common."""
    if len(who) < 2:
        return next(iter(who.values()), "a process")
    labels = [one.labels for one in seen.alerts if one.name == DEAD]
    shared = {name: text for name, text in labels[0].items() if all(one.get(name) == text for one in labels)}
    job = shared.get("slurm_job", "")
    many = f"{len(who)} {'ranks' if job else 'processes'}"
    return f"Slurm job {job} ({', '.join(part for part in (many, shared.get('user', '')) if part)})" if job else many
