"""The labels of an incident: what all that it happened to has in common, and what its latest run has."""

from __future__ import annotations

from collections.abc import Mapping

from gpuagent_alerts.alert import CauseKind
from gpuagent_alerts.notify.cause import Cause
from gpuagent_alerts.notify.incident_record import IncidentRecord
from gpuagent_alerts.notify.succession import PLACE_LABELS, Restarts

PROCESS_KINDS = frozenset({CauseKind.PROCESS, CauseKind.GROUP})
"""Kinds of incidents that are about processes."""
_GONE_LABELS = ("pid", "gpu", "uuid", "gpu_instance_id", "profile", "container_id", "unit", "pod_name", "pod_uid")
"""Labels in which the processes of one group differ: where they do, the incident has none of them."""
_OF_PROGRAM = ("process", "app")
"""The same of those that run at one time; what was started in place of another one may have another name."""
_OF_RUN = ("pid", "container_id", "unit", "pod_name", "pod_uid")
"""Labels in which a process differs from the one that it was started in place of."""
_OF_PLACE = (*PLACE_LABELS, "gpu_instance_id", "profile")


def merged_labels(found: IncidentRecord, cause: Cause) -> dict[str, str]:
    """Return what all that it happened to has in common, and what only one of them tells."""
    told = dict(cause.labels or {})
    if not found.identities:
        return told
    adopted = found.kind not in PROCESS_KINDS and cause.kind in PROCESS_KINDS
    labels = dict(told if adopted else found.labels)
    for name, value in (found.labels if adopted else told).items():
        if name not in labels or (name == "gpu" and told.get("uuid", "") == found.labels.get("uuid", "") != ""):
            labels[name] = told.get(name, value)  # the index may have changed, the UUID says which GPU it is
        elif labels[name] != value and (name in _GONE_LABELS or (name in _OF_PROGRAM and not found.restarts.count)):
            labels[name] = ""
    return labels


def labels_of_runs(labels: Mapping[str, str], restarts: Restarts) -> Mapping[str, str]:
    """Return the labels of an incident without what the process that was started last has no more.

    Where that one grows on another GPU, the labels are of this one: it is where something is to be done.
    """
    last = restarts.last
    gone = [name for name in _OF_RUN if labels.get(name) and last.get(name, "") != labels[name]] if last else []
    has_moved = restarts.last_grew and restarts.runs_as and labels.get("uuid") and "uuid" in last
    if has_moved and last["uuid"] != labels["uuid"]:
        return {**labels, **dict.fromkeys(gone, ""), **{name: last.get(name, "") for name in _OF_PLACE}}
    return {**labels, **dict.fromkeys(gone, "")} if gone else labels
