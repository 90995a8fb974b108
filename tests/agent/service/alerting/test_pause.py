"""A pause of measuring and a GPU without an index of its own: every surface says the same, and names who and which."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.core.growth import Evidence, Growth, Range, Verdict
from gpuagent.core.metrics.alerting import FiringAlert
from gpuagent.core.snapshot import GpuReading, GpuState, NvmlState, Pause, Snapshot
from gpuagent.core.units import GIB
from gpuagent.core.xids import Severity
from gpuagent_alerts.alert import Alert, CauseKind, Incident, Status
from gpuagent_alerts.messages.briefing import BriefingWriter
from gpuagent_alerts.messages.snapshot_inputs import with_place
from gpuagent_exporters.status.problems import find_problems
from tests.agent.service.alerting.stage import Stage, grown, leaking
from tests.fakes.readings import NOW, absent_gpu, gpu, process, snapshot

BY_ALICE = "by alice until 2026-11-27 14:37 UTC"
LEAK = grown(snapshot([gpu(0)], [process(7)]), 7, leaking(Evidence.BALANCED))


def paused(*, left_seconds: float, now: float, gpus: tuple[GpuReading, ...] = ()) -> Snapshot:
    """The node while alice has paused it, with so much of it left."""
    node = {
        "nvml_state": NvmlState.PAUSED, "nvml_reason": BY_ALICE, "pause": Pause("alice", now + left_seconds),
        "gpus_expected": 1,
    }  # fmt: skip
    why = "measuring is paused " + BY_ALICE
    unread = replace(gpu(0), state=GpuState.FAILED, reason=why, runs=(), processes_known=False, memory=None)
    return snapshot(gpus or [unread], [], node=node, measured_seconds=now)


def test_a_pause_is_a_warning_and_its_overrun_critical(tmp_path: Path) -> None:
    """Who asked and until when is in the message; a pause that does not end as it should wakes somebody."""
    stage = Stage(tmp_path / "state.db")
    end = stage.clock.now() + 300.0
    while stage.clock.now() < end - 15.0:
        stage.show(paused(left_seconds=end - stage.clock.now(), now=stage.clock.now()))
    assert stage.told() == ["began warning: MonitorBlind/"]
    assert stage.headlines() == [f"WARNING node7: measuring is paused {BY_ALICE}"]

    while stage.clock.now() < end + 180.0:
        stage.show(paused(left_seconds=end - stage.clock.now(), now=stage.clock.now()))
    assert [one.partition(":")[0] for one in stage.told()] == ["began warning", "worsened critical"]
    assert f"{BY_ALICE}, and should have begun again 2 min" in stage.headlines()[1]


def test_status_and_alert_agree_on_a_pause() -> None:
    """One severity; the node's line and the GPU's say that it is paused, and by whom."""
    for left, severity in ((200.0, Severity.WARNING), (-90.0, Severity.CRITICAL)):
        found = find_problems(paused(left_seconds=left, now=NOW), NOW)
        assert [(one.kind, one.severity) for one in found] == [("nvml_paused", severity)]
        assert found[0].text.startswith(f"measuring is paused {BY_ALICE}")


def test_a_leak_during_a_pause_is_told_as_of_then(tmp_path: Path) -> None:
    """What was measured last is never told as what is so now: a reminder has its age, and why nothing is newer."""
    stage = Stage(tmp_path / "state.db")
    stage.show(LEAK, 30.0)
    assert "last known" not in stage.headlines()[0]
    (incident,) = [one.incident for one in stage.messages if one.incident is not None]
    stage.briefings.snapshot = replace(paused(left_seconds=200.0, now=NOW + 120), clock_seconds=NOW + 120)
    headline = stage.briefings.headline(incident, stage.messages[0].alerts)

    assert headline.endswith(f"(last known 2 min ago: measuring is paused {BY_ALICE})"), headline


def test_who_fills_a_gpu_is_named_during_a_pause(tmp_path: Path) -> None:
    """A forecast has no process of its own: the incident knows who grew when that was measured last."""
    stage, slope = Stage(tmp_path / "state.db"), Range(GIB / 60, GIB / 60, GIB / 60)
    grows = Growth(Verdict.GROWING, slope=slope, exhaustion=Range(600.0, 300.0, 900.0), suspected=True)
    stage.show(grown(snapshot([gpu(0)], [process(7)]), 7, grows), 120.0)
    assert "python3 (alice, pid 7) growing 60.0 GiB/h, full in 10 min" in stage.headlines()[0]
    (incident,) = [one.incident for one in stage.messages if one.incident is not None]
    stage.briefings.snapshot = replace(paused(left_seconds=200.0, now=NOW + 120), clock_seconds=NOW + 120)

    headline = stage.briefings.headline(incident, stage.messages[0].alerts)
    assert ": python3 (alice, pid 7) growing, full in 10 min (last known 2 min ago" in headline


def test_a_lost_gpu_is_never_called_by_the_index_of_another(tmp_path: Path) -> None:
    """GPU-04: after the others have moved up, texts and commands name its UUID and PCI address."""
    gone = absent_gpu(0, GpuState.GONE, "no longer enumerated by the driver")
    gone = replace(gone, identity=replace(gone.identity, pci_bus_id="00000000:18:00.0"))
    other = gpu(0, identity=replace(gpu(1).identity, index=0))
    seen = snapshot([other, gone], [], node={"gpus_expected": 2})
    name = f"the former GPU 0 ({gone.identity.uuid}, PCI 00000000:18:00.0)"
    lost = Alert(
        {"alertname": "GpuLost", "gpu": "0", "uuid": gone.identity.uuid},
        {"summary": "GPU 0 is lost", "description": "Then nvidia-smi -r -i 0.", "runbook_url": "https://h/GPU 0"},
        Status.FIRING,
        0.0,
    )

    (told,) = [one for one in find_problems(seen, NOW) if one.kind == "gpu_gone"]
    assert (told.gpu, told.sentence.startswith(f"{name}: gone")) == (None, True)
    assert (told.is_about(gone.identity), told.is_about(other.identity)) == (True, False)
    assert with_place(lost, seen).annotations == {
        "summary": f"{name} is lost",
        "description": f"Then nvidia-smi -r -i {gone.identity.uuid}.",
        "runbook_url": "https://h/GPU 0",
    }
    healthy = replace(lost, labels={**lost.labels, "uuid": other.identity.uuid})
    assert with_place(healthy, seen) is healthy
    fires = FiringAlert("Mine", "critical", False, gone.identity.uuid, gpu=0, summary="GPU 0: reset with -i 0")
    (mine,) = [one for one in find_problems(seen, NOW, firing=[fires]) if one.kind == "alert"]
    assert mine.sentence == f"{name}: reset with -i {gone.identity.uuid}"

    stage = Stage(tmp_path / "state.db")
    stage.show(seen, 60.0)
    assert [one.startswith(f"CRITICAL node7 {name}: ") for one in stage.headlines()] == [True]


def test_full_is_no_news_right_after_full_soon(tmp_path: Path) -> None:
    """Who was told that a GPU is full in a moment is not told again when it is; a minute later it is news."""
    stage = Stage(tmp_path / "state.db")
    soon = grown(snapshot([gpu(0, used_gib=22.0)], [process(7)]), 7, leaking(Evidence.BALANCED, full_in=300.0))
    full = grown(snapshot([gpu(0, used_gib=23.9)], [process(7)]), 7, leaking(Evidence.BALANCED, full_in=0.0))
    while not any("ExhaustionSoon" in one.alerts for one in stage.heard):
        stage.show(soon, 15.0)
    told = len(stage.heard)
    stage.show(full, 45.0)
    assert len(stage.heard) == told, stage.told()
    stage.show(full, 60.0)
    assert len(stage.heard) == told + 1, stage.told()
    assert stage.heard[-1].news == "worsened"


@pytest.mark.parametrize(
    ("state", "index", "name"),
    [
        (NvmlState.READY, 1, "the former GPU 1 (GPU-gone)"),
        (NvmlState.READY, 0, "GPU 1"),
        (NvmlState.FAILED, 1, "GPU 1"),
    ],
    ids=["its index has another", "its index has none", "GPUs are not known"],
)
def test_a_gpu_that_went_before_a_restart_is_never_called_by_the_index_of_another(
    state: NvmlState, index: int, name: str
) -> None:
    """GPU-04: it is in no snapshot of this agent; what is known of it are the labels of its alerts."""
    other = gpu(index, identity=replace(gpu(index).identity, uuid="GPU-other"))
    seen = snapshot([other], [], node={"nvml_state": state})
    lost = Alert({"alertname": "GpuLost", "gpu": "1", "uuid": "GPU-gone"}, {"summary": "GPU 1 is lost"},
                 Status.FIRING, 0.0)  # fmt: skip
    assert with_place(lost, seen).annotations["summary"] == f"{name} is lost"
    incident = Incident("inc-1", CauseKind.GPU, {"gpu": "1", "uuid": "GPU-gone"}, "critical", 0.0)
    assert BriefingWriter("node7", snapshot=seen).headline(incident, [lost]).startswith(f"CRITICAL node7 {name}: ")
