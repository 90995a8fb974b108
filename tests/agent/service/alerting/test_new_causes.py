"""What begins an incident of its own, and what belongs to one that is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuagent.core.growth import Evidence, Growth, GrowthState, MemoryKey, Range, Verdict
from gpuagent.core.hardware import Clocks
from gpuagent.core.snapshot import GpuState, NvmlState, Snapshot, XidCount
from gpuagent.core.units import GIB
from gpuagent_alerts.alert import Alert, News, Status
from gpuagent_alerts.notify.state import NotifiedAlert
from gpuagent_alerts.notify.told_subjects import failed_since
from gpuagent_alerts.remedies.settings import MemoryBudget
from tests.agent.service.alerting.stage import PID, Stage, grown, leaking
from tests.fakes.readings import absent_gpu, gpu, process, snapshot

MINUTE, HOUR = 60.0, 3600.0


@pytest.mark.parametrize("runs_on", [False, True])
def test_a_gpu_that_others_fill_after_the_end_is_another_incident(tmp_path: Path, runs_on: bool) -> None:
    """A leaker has ended, and another user's job fills the GPU at once: nothing of the message names the leaker.

    Where the leaker runs on, its memory is a part of what fills the GPU.
    """
    stage = Stage(tmp_path / "state")
    leaker = process(PID, used_gib=12.0, name="emb", unit="emb.service", process_group=0)
    seen = snapshot([gpu(0, used_gib=13.0)], [leaker])
    stage.show(grown(seen, PID, leaking(Evidence.BALANCED)), 10 * MINUTE)
    stage.show(seen if runs_on else snapshot([gpu(0, used_gib=1.0)], []), 15 * MINUTE)
    other = process(9, used_gib=11.0 if runs_on else 23.0, name="tr", user="dave")
    stage.show(snapshot([gpu(0, used_gib=23.9)], [other, *([leaker] if runs_on else [])]), 2 * MINUTE)

    assert [one.news for one in stage.heard] == ["began", "ended", "began"]
    last = stage.messages[-1].incident
    assert last is not None
    assert len(stage.keys()) == (1 if runs_on else 2)
    assert (last.kind, last.labels.get("pid")) == (("process", str(PID)) if runs_on else ("gpu", None))
    if not runs_on:
        assert stage.headlines()[-1] == (
            "CRITICAL node7 GPU 0: memory is full (100 %), 23.0 GiB of it held by tr (dave, pid 9)"
        )


@pytest.mark.slow
@pytest.mark.parametrize("grows", [True, False])
def test_a_gpu_that_others_fill_while_a_restart_is_waited_for_is_another_incident(tmp_path: Path, grows: bool) -> None:
    """The leaker of a unit has just ended, and its memory is back: who fills the GPU next is no part of it."""
    stage = Stage(tmp_path / "state")
    leaker = process(PID, used_gib=22.9, name="emb", unit="emb.service", process_group=0)
    seen = snapshot([gpu(0, used_gib=23.9)], [leaker])
    stage.show(grown(seen, PID, leaking(Evidence.BALANCED, full_in=1.0)), 10 * MINUTE)
    stage.show(snapshot([gpu(0, used_gib=1.0)], []), 20.0)
    other = process(9, used_gib=23.0, name="tr", user="dave", uid=7)
    fast = Growth(Verdict.GROWING, slope=Range(1e9, 1e9, 1e9), fast=True, fast_exhaustion_seconds=0.5)
    full = snapshot([gpu(0, used_gib=23.9)], [other])
    stage.show(grown(full, 9, fast) if grows else full, 30.0)
    stage.show(full, 10 * MINUTE)

    assert len(stage.keys()) == 2
    (end,) = [one.incident for one in stage.messages if one.incident is not None and one.incident.news == "ended"]
    assert end.briefing.headline.endswith(
        "emb (alice, pid 4242) was leaking memory: the process ended; 22.9 GiB came back"
    )
    of_other = [one for one in stage.messages if one.incident is not None and one.incident.key != end.key]
    assert all("pid 9" in one.incident.briefing.headline for one in of_other if one.incident is not None)


def lost(gpus: int, nvml: NvmlState) -> Snapshot:
    """A node whose GPUs have all fallen off the bus."""
    gone = [absent_gpu(each, GpuState.LOST) for each in range(gpus)]
    seen = snapshot(gone, [], node={"nvml_state": nvml})
    fell = XidCount(0, "GPU-00000000", 79, 1, seen.time_seconds)
    return replace(seen, xids=(fell,))


@pytest.mark.slow
@pytest.mark.parametrize("gpus", [1, 2])
def test_a_node_whose_gpus_are_all_lost_is_no_incident_beside_them(tmp_path: Path, gpus: int) -> None:
    """That no GPU can be read is what the loss of the last one looks like: one beginning and one end for all GPUs."""
    stage = Stage(tmp_path / "state")
    well = snapshot([gpu(each, used_gib=5.0) for each in range(gpus)], [])
    stage.show(well, 2 * MINUTE)
    stage.show(lost(gpus, NvmlState.READY), MINUTE)
    stage.show(lost(gpus, NvmlState.FAILED), 10 * MINUTE)
    assert stage.briefings.snapshot is not None
    stage.show(replace(well, node=replace(well.node, nvml_initializations=9)), 20 * MINUTE)

    assert [one.news for one in stage.heard] == ["began", "ended"]
    assert len(stage.keys()) == 1
    ends = [one for one in stage.messages if one.incident is not None and one.incident.news == "ended"]
    names = [{alert.name for alert in one.alerts} for one in ends]
    assert sum("GpuMonitorBlind" in each for each in names) == 1
    back = "was lost: the GPU answers" if gpus == 1 else "were lost: they answer"
    assert any(line.endswith(f"{back} again after NVML was initialized again") for line in stage.headlines())


def failed(xid: int, *gpus: int) -> Snapshot:
    """Four GPUs, of which these have an Xid that takes a repair, or are lost if it is 79."""
    seen = snapshot([gpu(each, used_gib=5.0) for each in range(4)], [])
    xids = {each: (XidCount(each, f"GPU-0000000{each}", xid, 1, seen.time_seconds),) for each in gpus}
    state = GpuState.LOST if xid == 79 else GpuState.OK
    made = [
        replace(one, unrepaired_xids=xids[each], state=state, memory=None if xid == 79 else one.memory)
        if each in xids else one
        for each, one in enumerate(seen.gpus)
    ]  # fmt: skip
    return replace(seen, gpus=tuple(made), xids=tuple(one for each in xids.values() for one in each))


@pytest.mark.slow
@pytest.mark.parametrize(("xid", "said"), [(74, "Xid 74"), (79, "all are lost after Xid 79")])
def test_hardware_that_fails_on_several_gpus_at_once_is_one_incident(tmp_path: Path, xid: int, said: str) -> None:
    """A switch, or their power: one beginning with all of them and one end; one that follows later is told."""
    stage = Stage(tmp_path / "state")
    stage.show(failed(xid), MINUTE)
    stage.show(failed(xid, 0, 1), MINUTE)
    assert [one.news for one in stage.heard] == ["began"]
    assert f"node7 GPUs 0, 1: {said}" in stage.headlines()[0]
    stage.show(failed(xid, 0, 1, 2), 5 * MINUTE)
    assert [one.news for one in stage.heard] == ["began", "worsened"] or len(stage.keys()) == 2
    stage.show(failed(xid), 40 * MINUTE)
    assert [one.news for one in stage.heard].count("ended") == len(stage.keys())


def braked(reason: str, *gpus: int) -> Snapshot:
    """Four GPUs, of which these have their clocks limited for a reason."""
    limited = {each: Clocks(event_reasons=((reason, each in gpus),)) for each in range(4)}
    return snapshot([replace(gpu(each, used_gib=5.0), clocks=limited[each]) for each in limited], [])


@pytest.mark.parametrize(
    ("reason", "what"),
    [("hw_power_brake_slowdown", "slowed down by the power supply"), ("hw_thermal_slowdown", "slowed down by heat")],
)
def test_what_comes_to_several_gpus_at_one_time_is_one_incident(tmp_path: Path, reason: str, what: str) -> None:
    """One supply, or one fan, that fails for three GPUs: one beginning with all of them and one end, not three."""
    stage = Stage(tmp_path / "state")
    stage.show(braked(reason), MINUTE)
    stage.show(braked(reason, 1), 5.0)
    stage.show(braked(reason, 1, 2), 5.0)
    stage.show(braked(reason, 1, 2, 3), 10 * MINUTE)
    assert stage.headlines() == [f"WARNING node7 GPUs 1, 2, 3: {what}"]
    stage.show(braked(reason, 2, 3), 4 * MINUTE)
    stage.show(braked(reason), 4 * MINUTE)

    assert [one.news for one in stage.heard] == ["began", "ended"]
    assert stage.headlines()[-1].startswith(f"RESOLVED node7 GPUs 1, 2, 3: was {what}: its clocks")


@pytest.mark.slow
def test_a_gpu_that_is_slowed_down_much_later_is_another_incident(tmp_path: Path) -> None:
    """A GPU that runs hot half an hour after another has not come to it by the same cause: that is told."""
    stage = Stage(tmp_path / "state")
    stage.show(braked("hw_thermal_slowdown", 0), 30 * MINUTE)
    stage.show(braked("hw_thermal_slowdown", 0, 3), 10 * MINUTE)

    assert stage.headlines() == [f"WARNING node7 GPU {each}: slowed down by heat" for each in (0, 3)]


@pytest.mark.slow
@pytest.mark.parametrize("grows_before", [True, False])
@pytest.mark.parametrize("user", ["alice", "dave"])
def test_a_budget_that_a_leaker_exceeds_is_of_its_incident(tmp_path: Path, user: str, grows_before: bool) -> None:
    """One process that grows above its budget, leaks and ends: one incident. Another user's budget is another one."""
    stage = Stage(tmp_path / "state", budgets=(MemoryBudget("limit", 10 * GIB, user=user),))
    leaker = process(PID, used_gib=12.0, name="emb", user="alice", on_host=True)
    other = process(9, used_gib=11.0, name="tr", user="dave", uid=7, on_host=True)
    seen = snapshot([gpu(0, used_gib=23.2)], [leaker, other])
    grows = grown(seen, PID, Growth(Verdict.GROWING, slope=Range(1e6, 1e6, 1e6)))
    stage.show(grows if grows_before else seen, 1.5 * MINUTE)
    used = 12 if user == "alice" else 11
    assert stage.headlines() == [f"WARNING node7 GPU 0: limit uses {used}.0 GiB, more than its budget of 10.0 GiB"]
    stage.show(grown(seen, PID, leaking(Evidence.BALANCED)), 10 * MINUTE)
    stage.show(snapshot([gpu(0, used_gib=11.5)], [other]), 10 * MINUTE)

    assert len(stage.keys()) == (1 if user == "alice" else 2)
    if user == "alice":
        assert stage.heard[-1].news == "ended"
        assert [one.news for one in stage.heard].count("ended") == 1
        assert stage.headlines()[-1] == (
            "RESOLVED node7 GPU 0: emb (alice, pid 4242) was leaking memory: the process ended; 12.0 GiB came back"
        )


def test_which_gpus_are_told_to_have_failed() -> None:
    """GPU-01: by UUID, as indices may move up; by the index where one of the two has not told its UUID."""
    lost = {"alertname": "GpuLost"}
    told = Alert({**lost, "uuid": "GPU-a", "gpu": "0"}, {}, Status.FIRING, 10.0)
    unnamed, other = (
        replace(told, labels=labels, starts_at=20.0)
        for labels in ({**lost, "gpu": "0"}, {**lost, "uuid": "GPU-b", "gpu": "0"})
    )
    known = {"a": NotifiedAlert(told)}
    assert [failed_since(known, [one]) for one in (told, unnamed, other)] == [None, None, 20.0]


def test_another_service_that_grows_once_the_first_one_has_stopped_is_another_incident(tmp_path: Path) -> None:
    """Each is told by its own name, with its own figures: the forecast is of who grows, and the first one is over."""
    stage = Stage(tmp_path / "state")
    mine: dict[str, Any] = {"unit": "a.service", "user": "alice", "uid": 1000}
    other: dict[str, Any] = {"unit": "b.service", "user": "bob", "uid": 1001, "name": "other"}

    def seen(used: float, first: Growth, second: Growth, whole: Growth) -> Snapshot:
        processes = [process(PID, used_gib=8.0, **mine), process(5000, used_gib=used, **other)]
        said = {
            MemoryKey("GPU-00000000", PID): first,
            MemoryKey("GPU-00000000", 5000): second,
            MemoryKey("GPU-00000000"): whole,
        }
        return replace(snapshot([gpu(0, used_gib=9.0 + used)], processes), growth=said)

    leaks, steady = leaking(Evidence.BALANCED, full_in=3 * HOUR), Growth(Verdict.STEADY)
    stage.show(seen(4.0, leaks, steady, leaks), 10 * MINUTE)
    assert [one.news for one in stage.heard] == ["began"]
    stopped = replace(leaks, state=GrowthState.STOPPED, exhaustion=None)
    stage.show(seen(4.0, stopped, steady, stopped), 10 * MINUTE)
    pace = Range(*(9 * GIB / HOUR,) * 3)
    grows = replace(leaks, verdict=Verdict.GROWING, evidence=None, evidence_told=(), suspected=True, slope=pace,
                    state=GrowthState.RISING)  # fmt: skip
    stage.show(seen(5.0, stopped, grows, replace(leaks, slope=pace)), 10 * MINUTE)  # the GPU: one leaks, and it grows
    second = replace(grows, verdict=Verdict.LEAKING, evidence=Evidence.BALANCED, evidence_told=(Evidence.BALANCED,))
    stage.show(seen(6.0, stopped, second, second), 10 * MINUTE)

    began = [one.incident for one in stage.messages if one.incident is not None and one.incident.news is News.BEGAN]
    assert len({one.key for one in began}) == 2
    assert [one.labels.get("unit") for one in began] == ["a.service", "b.service"]
    for line in stage.headlines():
        assert not ("a.service" in line and "b.service" in line and "2 processes" in line), line
