"""Labels that say where a process comes from: one declaration each, from which every surface follows.

From a declaration here follow the label of `gpuagent_process_info`, the key in documents of the API with its text,
and, as `in_alerts` and `outlives` say, the labels of incidents and of the memory of dead processes. What a label may
permit does not follow: who may be acted on, and who counts towards a budget, is decided by names that are proven
(`gpuagent.procfs.cgroup_owner`), each under a key of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from gpuagent.core.snapshot import ProcessInfo


@dataclass(frozen=True, slots=True)
class ProcessLabel:
    """One label of processes."""

    name: str
    """Name in series and alerts. `pod`, `namespace` and `container` would collide with a scrape's and be renamed
    (dcgm-exporter#85)."""
    of: Callable[[ProcessInfo], str]
    """Takes the value from what /proc tells; "" where the process has none. It must not change while it lives."""
    key: str = ""
    """Key in the API's documents; by default the name."""
    help: str = ""
    """What it says, for the reference of the API."""
    in_alerts: bool = False
    """Whether incidents and messages name it. It should tell processes apart for a person."""
    outlives: bool = False
    """Whether the series of a dead process's memory have it."""

    @property
    def document_key(self) -> str:
        """Key in the API's documents."""
        return self.key or self.name


ORIGIN_LABELS = (
    ProcessLabel("unit", attrgetter("unit"), help="systemd's.", in_alerts=True, outlives=True),
    ProcessLabel("container_id", attrgetter("container_id"), in_alerts=True, outlives=True),
    ProcessLabel("container_runtime", attrgetter("container_runtime")),
    ProcessLabel(
        "container_name", attrgetter("container_name"), outlives=True,
        help="Where it is known; `namespace/pod/container` in Kubernetes.",
    ),
    ProcessLabel("pod_uid", attrgetter("pod_uid"), in_alerts=True),
    ProcessLabel("pod_name", attrgetter("pod"), key="pod", in_alerts=True, outlives=True),
    ProcessLabel("pod_namespace", attrgetter("namespace"), key="namespace", in_alerts=True, outlives=True),
    ProcessLabel("slurm_job", attrgetter("slurm_job"), in_alerts=True, outlives=True),
)  # fmt: skip
"""Every label, in the order in which series and documents have them."""
ALERT_LABELS = tuple(label for label in ORIGIN_LABELS if label.in_alerts)
"""Labels that incidents and messages name."""


def alert_labels(info: ProcessInfo) -> dict[str, str]:
    """Return the values of the labels that incidents name, the narrowest first; "" where the process has none."""
    return {label.name: label.of(info) for label in reversed(ALERT_LABELS)}
