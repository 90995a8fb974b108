"""Labels that say where a process comes from: declared once, the same on every surface."""

from __future__ import annotations

from gpuagent.core.identity import ProcessId
from gpuagent.core.metrics import FAMILIES
from gpuagent.core.process_labels import ALERT_LABELS, ORIGIN_LABELS, alert_labels
from gpuagent.core.snapshot import ProcessInfo

INFO = ProcessInfo(
    ProcessId("boot", 7, 1), "train", 1000, "ann", unit="a.service", container_id="c", pod="api-1", namespace="prod",
    pod_uid="0123abcd", slurm_job="42",
)  # fmt: skip


def test_incidents_name_the_narrowest_first() -> None:
    """A job before a pod before a unit: people read the first words."""
    assert [(name, value) for name, value in alert_labels(INFO).items() if value] == [
        ("slurm_job", "42"), ("pod_namespace", "prod"), ("pod_name", "api-1"), ("pod_uid", "0123abcd"),
        ("container_id", "c"),
        ("unit", "a.service"),
    ]  # fmt: skip


def test_series_have_every_label() -> None:
    """Those of the info series are all that there are, and dead processes keep those that outlive them."""
    labels = {family.name: set(family.labels) for family in FAMILIES}

    assert {label.name for label in ORIGIN_LABELS} <= labels["gpuagent_process_info"]
    assert {label.name for label in ORIGIN_LABELS if label.outlives} <= labels[
        "gpuagent_dead_process_memory_used_bytes"
    ]
    assert {label.name for label in ALERT_LABELS} <= labels["gpuagent_process_info"]


def test_no_label_collides_with_one_of_a_scrape() -> None:
    """`pod`, `namespace` and `container` would be renamed by Prometheus where the scrape sets them."""
    assert not {label.name for label in ORIGIN_LABELS} & {"pod", "namespace", "container", "node", "instance", "job"}
