"""Pods by the folders of their logs."""

from __future__ import annotations

from pathlib import Path

from gpuagent.core.clock import ManualClock
from gpuagent.procfs.containers import RESCAN_SECONDS, PodName, PodNames

UID = "2c4b2241-5c01-11e9-8e4e-42010a800002"


def test_a_pod_is_named_by_its_log_folder(tmp_path: Path) -> None:
    """Namespace and name stand before the uid; folders of another shape are left out."""
    (tmp_path / f"ml-team_whisper-0_{UID}").mkdir()
    (tmp_path / "lost+found").mkdir()
    pods = PodNames(ManualClock(), str(tmp_path))

    assert pods.lookup(UID) == PodName("ml-team", "whisper-0")
    assert pods.lookup("lost+found") == PodName()


def test_a_new_pod_is_found_but_unknown_ones_do_not_cost_a_scan_each(tmp_path: Path) -> None:
    """A uid that nobody knows is looked for once in 30 seconds, however often it is asked for."""
    clock = ManualClock()
    pods = PodNames(clock, str(tmp_path))
    assert pods.lookup(UID) == PodName()
    (tmp_path / f"ml_whisper-0_{UID}").mkdir()

    assert pods.lookup(UID) == PodName()
    clock.advance(RESCAN_SECONDS)
    assert pods.lookup(UID) == PodName("ml", "whisper-0")


def test_a_node_without_kubernetes_has_no_pods(tmp_path: Path) -> None:
    """A missing folder is no error."""
    assert PodNames(ManualClock(), str(tmp_path / "none")).lookup(UID) == PodName()


def test_pods_that_went_are_forgotten(tmp_path: Path) -> None:
    """The memory of names is bounded by the pods there are."""
    clock = ManualClock()
    folder = tmp_path / f"ml_whisper-0_{UID}"
    folder.mkdir()
    pods = PodNames(clock, str(tmp_path))
    pods.lookup(UID)
    folder.rmdir()
    clock.advance(RESCAN_SECONDS)

    pods.lookup("another")

    assert pods.lookup(UID) == PodName()
