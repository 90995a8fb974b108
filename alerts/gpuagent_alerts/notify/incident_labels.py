"""The labels of an incident: what all that it happened to has in common, and what its latest run has."""

from __future__ import annotations

from collections.abc import Mapping

from gpuagent_alerts.alert import CauseKind
from gpuagent_alerts.notify.cause import Cause
from gpuagent_alerts.notify.incident_record import IncidentRecord
from gpuagent_alerts.notify.succession import Restarts

PROCESS_KINDS = frozenset({CauseKind.PROCESS, CauseKind.GROUP})
"""Kinds of incidents that are about processes."""
_GONE_LABELS = ("pid", "gpu", "uuid", "gpu_instance_id", "profile", "container_id", "unit", "pod_name", "pod_uid")
"""Labels in which the processes of one group differ: where they do, the incident has none of them."""
_OF_RUN = ("pid", "container_id", "unit", "pod_name", "pod_uid")
"""Those in which a process differs from the one that it was started in place of."""


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
        elif labels[name] != value and name in _GONE_LABELS:
            labels[name] = ""
    return labels


def labels_of_runs(labels: Mapping[str, str], restarts: Restarts) -> Mapping[str, str]:
    """Return the labels of an incident without what the process that was started last has no more."""
    gone = [name for name in _OF_RUN if labels.get(name) and restarts.last.get(name, "") != labels[name]]
    return {**labels, **dict.fromkeys(gone, "")} if restarts.last and gone else labels
