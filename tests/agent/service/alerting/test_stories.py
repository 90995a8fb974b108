"""What a receiver is told of whole stories, message by message: the shipped rules over snapshots."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuagent.core.growth import Evidence, Growth, GrowthState, MemoryKey, Range, Verdict
from gpuagent.core.matchers import parse_matcher
from gpuagent.core.metrics.remedies import RemedyFigures, RemedyNote, RemedyTarget
from gpuagent.core.snapshot import GpuIdentity, GpuState, NvmlState, ProcessState, Reconciliation, Snapshot, XidCount
from gpuagent.core.units import GIB
from gpuagent_alerts.messages.snapshot_inputs import subjects_of
from gpuagent_alerts.notify.routes import Recipient
from gpuagent_exporters.status.problems import find_problems
from tests.agent.service.alerting.stage import PID, Stage, dry_run, grown, leak, leaking, node
from tests.alerts.notify.parts import Route
from tests.fakes.readings import NOW, absent_gpu, gpu, process, snapshot

MINUTE, HOUR = 60.0, 3600.0


def to_the_wall(stage: Stage, *, kill: bool = False) -> None:
    """Evidence gets stricter, the forecast nearer, the GPU full; a ladder in dry run looks on."""
    both = (Evidence.BALANCED, Evidence.STRICT)
    for seen, minutes in (
        (node(10), 5),
        (leak(12, Evidence.BALANCED), 10),
        (leak(14, *both, full_in=3 * HOUR), 20),
        (leak(22, *both, full_in=25 * MINUTE), 20),
        (leak(23, *both, full_in=5 * MINUTE), 5),
        (leak(23.9, *both, full_in=1.0), 15),
    ):
        stage.show(seen, minutes * MINUTE)
        if kill:
            stage.kill()
            stage.show(seen, MINUTE)
        if seen.growth and seen.gpus[0].memory is not None and (seen.gpus[0].memory.used_bytes or 0) > 21 * GIB:
            stage.further = dry_run(PID, stage.clock.wall())


@pytest.mark.slow
@pytest.mark.parametrize("kill", [False, True])
def test_a_leak_to_the_wall(tmp_path: Path, kill: bool) -> None:
    """Three messages from the first evidence to a full GPU, dry runs included, and one for the end; one key."""
    stage = Stage(tmp_path / "state")
    to_the_wall(stage, kill=kill)
    before = list(stage.told())
    stage.further = RemedyFigures(1, stopped=False)
    stage.show(node(2, 9), 20 * MINUTE)

    assert [told.split(":")[0] for told in stage.told()] == [
        "began warning", "worsened critical", "worsened critical", "ended critical",
    ]  # fmt: skip
    assert before[0] == "began warning: ProcessMemoryLeak[balanced]/0"
    assert before[1].startswith("worsened critical: MemoryExhaustionSoon[minutes]/0 ")
    assert before[2].startswith("worsened critical: MemoryFull/0 ")
    assert "Remedy/0" in before[2]
    assert "ProcessMemoryLeak[strict]/0" in before[2]
    assert "MemoryHigh/0" in before[2]
    assert len(stage.keys()) == 1
    assert stage.messages[-1].incident is not None
    assert stage.messages[-1].incident.labels["pid"] == str(PID)


@pytest.mark.slow
def test_a_leak_beside_memory_that_is_held_evenly(tmp_path: Path) -> None:
    """A GPU that was told as high is told once more when somebody leaks there, and then as any leak is."""
    stage = Stage(tmp_path / "state")
    stage.show(node(22), 20 * MINUTE)
    for evidence in ((Evidence.STRICT,), (Evidence.STRICT, Evidence.CONFIRMED)):
        stage.show(leak(22.5, *evidence, full_in=HOUR), 10 * MINUTE)
    stage.show(leak(23, Evidence.CONFIRMED, full_in=25 * MINUTE), 10 * MINUTE)
    stage.show(leak(23.9, Evidence.CONFIRMED, full_in=1.0), 10 * MINUTE)
    stage.show(node(2, 9), 20 * MINUTE)

    assert [f"{one.news} {one.severity} {one.alerts.split()[0]}" for one in stage.heard] == [
        "began warning MemoryHigh/0", "worsened warning ProcessMemoryLeak[strict]/0",
        "worsened critical MemoryExhaustionSoon[minutes]/0", "worsened critical MemoryFull/0",
        "ended critical -MemoryHigh/0",
    ]  # fmt: skip
    assert "leaking" in stage.headlines()[1]
    assert len(stage.keys()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kill", [False, True])
def test_growth_that_stopped_with_the_gpu_nearly_full_is_told_as_less_severe(tmp_path: Path, kill: bool) -> None:
    """A cache that fills 91 % and stays there is a warning: the forecast is taken back once, and may come again."""
    stage = Stage(tmp_path / "state")
    soon, flat = leak(20, Evidence.STRICT, full_in=12 * MINUTE), node(22)
    reasons = ("growth stopped at 12.2 GiB with 2.0 GiB free: no new high for 1 h",)
    over = Growth(Verdict.LEVELLED_OFF, reasons=reasons, stopped_seconds=stage.clock.wall())
    flat = replace(flat, growth={MemoryKey("GPU-00000000", PID): over})
    stage.show(soon, 5 * MINUTE)
    stage.show(flat, 9 * MINUTE)
    assert [f"{one.news} {one.severity}" for one in stage.heard] == ["began critical"]
    if kill:
        stage.kill()
    stage.show(flat, 90 * MINUTE)

    assert [f"{one.news} {one.severity}" for one in stage.heard[1:]] == ["reminder warning"]
    assert stage.headlines()[-1].startswith("WARNING node7 GPU 0: 92 % of memory in use; growth stopped at 12.2 GiB")
    stage.show(soon, 5 * MINUTE)
    stage.show(flat, 25 * MINUTE)
    assert [f"{one.news} {one.severity}" for one in stage.heard[2:]] == ["worsened critical"]
    stage.show(flat, 10 * MINUTE)
    stage.show(node(2, 9), 40 * MINUTE)
    assert [f"{one.news} {one.severity}" for one in stage.heard[3:]] == ["reminder warning", "ended warning"]
    assert len(stage.keys()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kill", [False, True])
def test_an_end_after_a_restart_has_every_alert(tmp_path: Path, kill: bool) -> None:
    """What ended before the agent was killed, and was muted or told to nobody, is in the message of the end."""
    stage = Stage(tmp_path / "state")
    both = (Evidence.BALANCED, Evidence.STRICT)
    stage.show(leak(14, *both, full_in=3 * HOUR), 20 * MINUTE)
    stage.show(leak(22, *both, full_in=25 * MINUTE), 8 * MINUTE)
    stage.show(leak(20, *both, full_in=25 * MINUTE), 6 * MINUTE)
    assert all(one.name != "GpuMemoryHigh" for message in stage.messages for one in message.alerts)
    if kill:
        stage.kill()
    stage.show(node(2, 9), 20 * MINUTE)

    last = stage.messages[-1]
    assert last.incident is not None
    assert last.incident.news == "ended"
    assert {one.name + one.labels.get("tier", "") for one in last.alerts} == {
        "GpuProcessMemoryLeak", "GpuMemoryExhaustionSoonhours", "GpuMemoryExhaustionSoonminutes", "GpuMemoryHigh",
    }  # fmt: skip


@pytest.mark.slow
def test_six_ranks_of_one_job(tmp_path: Path) -> None:
    """Ranks that leak together on six GPUs are one incident, with as many messages as one leak."""
    stage = Stage(tmp_path / "state")

    def ranks(used_gib: float, leaks: int, **growth: float) -> Snapshot:
        gpus = [gpu(each, used_gib=used_gib) for each in range(6)]
        own = [process(100 + each, gpu_index=each, slurm_job="77", process_group=100 + each) for each in range(6)]
        seen = snapshot(gpus, own)
        for each in range(leaks):
            seen = grown(seen, 100 + each, leaking(Evidence.BALANCED, **growth), gpu=each)
        return seen

    for leaks in range(1, 7):
        stage.show(ranks(12, leaks), 10.0)
    stage.show(ranks(16, 6, full_in=2 * HOUR), 20 * MINUTE)
    stage.show(ranks(22, 6, full_in=20 * MINUTE), 10 * MINUTE)
    stage.show(ranks(23.9, 6, full_in=1.0), 10 * MINUTE)
    stage.show(snapshot([gpu(each, used_gib=1.0) for each in range(6)], []), 20 * MINUTE)

    assert [f"{one.news} {one.severity}" for one in stage.heard] == [
        "began warning", "worsened critical", "worsened critical", "ended critical",
    ]  # fmt: skip
    assert len(stage.keys()) == 1
    assert stage.heard[2].alerts.count("MemoryFull/") == 6
    incident = stage.messages[-1].incident
    assert incident is not None
    assert (incident.kind, incident.labels["slurm_job"]) == ("group", "77")
    assert "pid" not in incident.labels


@pytest.mark.slow
def test_a_lost_gpu_and_all_that_follows(tmp_path: Path) -> None:
    """Xid, loss, a GPU less, memory nobody gives back: one message, and one when all of it is over."""
    stage = Stage(tmp_path / "state")
    well = [gpu(0), gpu(1, used_gib=2.0)]
    stage.show(snapshot(well), MINUTE)
    at = stage.clock.wall()
    xids = (XidCount(0, "GPU-00000000", 79, 1, at),)
    lost = replace(absent_gpu(0, GpuState.LOST, "GPU is lost"), unrepaired_xids=xids)
    dead = process(PID, state=ProcessState.DEAD)
    stage.show(snapshot([replace(well[0], unrepaired_xids=xids), well[1]], xids=xids), 5.0)
    stage.show(snapshot([lost, well[1]], [dead], xids=xids, node={"gpus_expected": 2, "pci_gpus": 2}), 10 * MINUTE)
    stage.show(snapshot(well, xids=xids), 20 * MINUTE)

    assert stage.told()[0].startswith("began critical: XidCritical[79]/0 Lost/0")
    assert [f"{one.news} {one.severity}" for one in stage.heard] == ["began critical", "ended critical"]
    assert len(stage.keys()) == 1


def test_a_dead_process_on_two_gpus(tmp_path: Path) -> None:
    """Memory that one dead process holds on two GPUs is one incident."""
    stage = Stage(tmp_path / "state")
    held = Reconciliation(0, 4 * GIB, 0)
    gpus = [gpu(each, used_gib=4.0, reconciliation=held) for each in range(2)]
    dead = [process(PID, gpu_index=each, state=ProcessState.DEAD, used_gib=4.0) for each in range(2)]
    stage.show(snapshot(gpus, dead), 10 * MINUTE)
    stage.show(snapshot([gpu(0, used_gib=0.5), gpu(1, used_gib=0.5)], []), 5 * MINUTE)

    assert stage.told() == [
        "began warning: DeadProcessesHoldMemory/0 DeadProcessesHoldMemory/1",
        "ended warning: -DeadProcessesHoldMemory/0 -DeadProcessesHoldMemory/1",
    ]


@pytest.mark.slow
def test_flapping_at_the_threshold(tmp_path: Path) -> None:
    """Two hours around a limit: told twice that it began, under one key, and its end once it has been calm."""
    stage = Stage(tmp_path / "state")
    for _ in range(8):
        stage.show(node(22.5), 8 * MINUTE)
        stage.show(node(20), 7 * MINUTE)
    stage.show(node(20), HOUR)

    assert stage.told() == [
        "began warning: MemoryHigh/0", "ended warning: -MemoryHigh/0",
        "began warning: MemoryHigh/0", "ended warning: -MemoryHigh/0",
    ]  # fmt: skip
    assert len(stage.keys()) == 1


@pytest.mark.slow
def test_a_receiver_that_is_down_for_an_hour(tmp_path: Path) -> None:
    """It hears the same story when it is back, in order, and nothing of it twice."""
    stage = Stage(tmp_path / "state")
    stage.up = False
    to_the_wall(stage)
    assert stage.told() == []
    stage.up = True
    stage.show(leak(23.9, Evidence.BALANCED, Evidence.STRICT, full_in=1.0))
    stage.show(node(2, 9), 20 * MINUTE)

    assert [one.news for one in stage.heard] == ["began", "worsened", "worsened", "ended"]
    assert len({message.id for message in stage.messages}) == 4


@pytest.mark.slow
def test_a_leak_that_comes_back_within_half_an_hour(tmp_path: Path) -> None:
    """A service that is restarted and leaks again is the same incident; two hours later it is another."""
    stage = Stage(tmp_path / "state")

    def again(pid: int) -> Snapshot:
        return grown(node(12, pid, unit="api.service"), pid, leaking(Evidence.BALANCED))

    keys = []
    for pid, calm in ((100, 20 * MINUTE), (200, 2 * HOUR), (300, MINUTE)):
        stage.show(again(pid), 10 * MINUTE)
        keys.append(stage.heard[-1].key)
        stage.show(node(2, 9), calm)

    assert keys[0] == keys[1] != keys[2]


def test_two_programs_that_leak_on_one_gpu(tmp_path: Path) -> None:
    """Each is an incident of its own: what the second one does is no news of the first."""
    stage = Stage(tmp_path / "state")
    first = grown(node(12, 100, 200, unit="a.service", process_group=0), 100, leaking(Evidence.BALANCED))
    two = [process(100, unit="a.service"), process(200, unit="b.service")]
    both = grown(grown(snapshot([gpu(0, used_gib=12)], two), 100, leaking(Evidence.BALANCED)), 200,
                 leaking(Evidence.BALANCED))  # fmt: skip
    stage.show(first, 5 * MINUTE)
    stage.show(both, 5 * MINUTE)

    assert [one.news for one in stage.heard] == ["began", "began"]
    assert len(stage.keys()) == 2


def test_instances_of_a_template_that_leak(tmp_path: Path) -> None:
    """One incident of all of them, as of ranks; when one ends, it goes on."""
    stage = Stage(tmp_path / "state")

    def node_with(*pids: int) -> Snapshot:
        held = [
            process(pid, gpu_index=place, unit=f"whisper@{place}.service", process_group=0)
            for place, pid in enumerate(pids)
        ]
        seen = snapshot([gpu(place, used_gib=13) for place in range(3)], held)
        for place, pid in enumerate(pids):
            seen = grown(seen, pid, leaking(Evidence.BALANCED), place)
        return seen

    stage.show(node_with(100, 200, 300), 5 * MINUTE)
    assert [one.news for one in stage.heard] == ["began"]
    assert "GPUs 0, 1, 2: 3 instances of whisper@.service (alice) leaking " in stage.headlines()[-1]
    stage.show(node_with(100, 200), 5 * MINUTE)
    assert [one.news for one in stage.heard] == ["began"]


def test_a_unit_of_ever_more_processes(tmp_path: Path) -> None:
    """The forecast names them, is no incident of memory without an owner, and status says the same."""
    stage = Stage(tmp_path / "state")
    pool = [process(pid, used_gib=2.0, name="worker", unit="pool.service", process_group=0) for pid in range(100, 109)]
    pace, left = 22 * 2**20, Range(20 * MINUTE, 10 * MINUTE, 40 * MINUTE)
    whole = Growth(
        Verdict.GROWING, slope=Range(pace, pace / 2, pace * 2), exhaustion=left, state=GrowthState.RISING,
        suspected=True, group="9 processes of pool.service", reasons=("9 processes of pool.service: floor rose",),
    )  # fmt: skip
    seen = replace(snapshot([gpu(0, used_gib=19)], pool), growth={MemoryKey("GPU-00000000"): whole})
    stage.show(seen, 5 * MINUTE)

    assert stage.headlines() == ["CRITICAL node7 GPU 0: 9 processes of pool.service growing 77.3 GiB/h, full in 20 min"]
    (problem,) = [one for one in find_problems(seen, NOW) if one.kind == "growth"]
    assert problem.sentence == (
        "GPU 0: 9 processes of pool.service hold ever more together, as they become more, 77.3 GiB/h, full in 20 min"
    )


@pytest.mark.slow
def test_a_cap_holds_back_what_was_critical_before(tmp_path: Path) -> None:
    """Past the cap of an hour a critical beginning and the end are told; that the GPU is full now waits for room."""
    stage = Stage(tmp_path / "state", recipients=[Recipient("slack", max_messages_per_hour=1)])
    stage.show(leak(12, Evidence.BALANCED), 5 * MINUTE)
    stage.show(leak(22, Evidence.BALANCED, full_in=5 * MINUTE), 5 * MINUTE)
    stage.show(leak(23.9, Evidence.BALANCED, full_in=1.0), 10 * MINUTE)
    assert stage.told() == [
        "began warning: ProcessMemoryLeak[balanced]/0",
        "worsened critical: MemoryExhaustionSoon[minutes]/0 ProcessMemoryLeak[balanced]/0",
    ]
    stage.show(node(2, 9), 15 * MINUTE)

    assert [one.news for one in stage.heard] == ["began", "worsened", "ended"]


@pytest.mark.slow
def test_two_containers_of_one_pod_that_leak(tmp_path: Path) -> None:
    """They grow together and are one incident, named as the pod; the end of one of them is none of it."""
    stage = Stage(tmp_path / "state")
    pod: dict[str, Any] = {"pod_uid": "0123abcd-77", "user": "svc-ml"}
    gateway = process(1, used_gib=10.0, name="gw", container_id="a" * 64, unit="cri-a.scope", process_group=1, **pod)
    sidecar = process(2, used_gib=4.0, name="side", container_id="b" * 64, unit="cri-b.scope", process_group=2, **pod)
    both = grown(snapshot([gpu(0, used_gib=15.0)], [gateway, sidecar]), 1, leaking(Evidence.BALANCED))
    stage.show(both, 5 * MINUTE)
    stage.show(grown(both, 2, leaking(Evidence.BALANCED)), 5 * MINUTE)
    alone = snapshot([gpu(0, used_gib=11.0)], [gateway])
    stage.show(grown(alone, 1, leaking(Evidence.BALANCED)), 20 * MINUTE)
    assert [one.news for one in stage.heard] == ["began"]
    stage.show(snapshot([gpu(0, used_gib=1.0)], []), 20 * MINUTE)

    assert [one.news for one in stage.heard] == ["began", "ended"]
    assert stage.headlines()[-1].startswith(
        "RESOLVED node7 GPU 0: pod 0123abcd (2 processes, svc-ml) was leaking memory: both processes ended"
    )


def test_a_reload_of_the_driver(tmp_path: Path) -> None:
    """No GPU answers for three minutes: one incident of the node, and none of each GPU beside it."""
    stage = Stage(tmp_path / "state")
    stage.show(snapshot([gpu(0), gpu(1)]), MINUTE)
    blind = [absent_gpu(each, GpuState.BLIND, "a call hangs") for each in range(2)]
    away = snapshot(blind, [], node={"nvml_state": NvmlState.FAILED, "gpus_expected": 2, "pci_gpus": 2})
    stage.show(away, 3 * MINUTE)
    stage.show(snapshot([gpu(0), gpu(1)]), 5 * MINUTE)

    assert [f"{one.news} {one.severity}" for one in stage.heard] == ["began critical", "ended critical"]
    assert stage.heard[0].alerts == "MonitorBlind/0 MonitorBlind/1"


@pytest.mark.slow
def test_an_acknowledgement_stops_reminders_and_not_a_higher_severity(tmp_path: Path) -> None:
    """Of the incident: a state that is worse at the same severity is no news to whoever is at it."""
    stage = Stage(tmp_path / "state", routes=[Route(("slack",), repeat_interval=5 * MINUTE)])
    stage.show(leak(12, Evidence.BALANCED), 4 * MINUTE)
    stage.acks.add_incident(stage.heard[0].key, comment="", creator="alice")
    stage.show(leak(12, Evidence.BALANCED), 20 * MINUTE)
    assert [one.news for one in stage.heard] == ["began"]
    stage.show(leak(22, Evidence.BALANCED, full_in=20 * MINUTE), 5 * MINUTE)
    stage.show(leak(23.9, Evidence.BALANCED, full_in=1.0), 5 * MINUTE)
    assert [f"{one.news} {one.severity}" for one in stage.heard] == ["began warning", "worsened critical"]


@pytest.mark.slow
def test_a_silence_of_an_incident_silences_all_of_it_and_nothing_else(tmp_path: Path) -> None:
    """By the command that its message offers: what joins it later is silent too, another GPU's loss is not."""
    stage = Stage(tmp_path / "state", routes=[Route(("slack",), repeat_interval=5 * MINUTE)])
    stage.show(leak(12, Evidence.BALANCED), 2 * MINUTE)
    stage.silences.add([parse_matcher(f"incident={stage.heard[0].key}")], 2 * HOUR, comment="", creator="alice")
    stage.show(leak(22, Evidence.BALANCED, full_in=20 * MINUTE), 20 * MINUTE)
    full = leak(23.9, Evidence.BALANCED, full_in=1.0)
    stage.show(full, 20 * MINUTE)
    assert [one.news for one in stage.heard] == ["began"]

    lost = replace(full, gpus=(*full.gpus, absent_gpu(1, GpuState.LOST, "GPU is lost")))
    stage.show(lost, 2 * MINUTE)
    assert [one.alerts for one in stage.heard[1:]] == ["Lost/1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("matcher", "news"),
    [
        ("incident=KEY", ["began", "ended"]),
        ("gpu=0", ["began", "ended"]),
        ("alertname=GpuProcessMemoryLeak", ["began", "worsened", "worsened", "ended"]),
        (f"pid={PID}", ["began", "worsened", "ended"]),
        ('alertname=~"GpuProcessMemoryLeak|GpuMemoryExhaustionSoon"', ["began", "worsened", "ended"]),
    ],
)
def test_a_silence_is_no_all_clear(tmp_path: Path, matcher: str, news: list[str]) -> None:
    """A leak that is silenced fills the GPU: what no silence matches is told, and no end before the GPU has room."""
    stage = Stage(tmp_path / "state")
    stage.show(leak(12, Evidence.BALANCED), 4 * MINUTE)
    silence = parse_matcher(matcher.replace("KEY", stage.heard[0].key))
    stage.silences.add([silence], 2 * HOUR, comment="", creator="alice")
    stage.show(leak(22, Evidence.BALANCED, full_in=20 * MINUTE), 20 * MINUTE)
    stage.show(node(23.9), 20 * MINUTE)
    assert [one.news for one in stage.heard] == news[:-1]
    stage.show(node(2, 9), 20 * MINUTE)

    assert [one.news for one in stage.heard] == news
    assert len(stage.keys()) == 1
    assert stage.headlines()[-1].endswith("memory was full: python3 (pid 4242) ended; 12.2 GiB came back")


@pytest.mark.slow
def test_a_route_is_no_all_clear(tmp_path: Path) -> None:
    """A receiver that is told of the leak and not of the full GPU hears the end when the GPU has room again."""
    routes = [Route(("slack",), (parse_matcher("alertname=GpuProcessMemoryLeak"),))]
    stage = Stage(tmp_path / "state", routes=routes)
    stage.show(leak(12, Evidence.BALANCED), 4 * MINUTE)
    stage.show(node(23.9), 20 * MINUTE)
    assert [one.news for one in stage.heard] == ["began"]
    stage.show(node(2, 9), 20 * MINUTE)
    assert [one.news for one in stage.heard] == ["began", "ended"]


@pytest.mark.slow
def test_a_gpu_that_is_lost_before_it_has_told_its_name(tmp_path: Path) -> None:
    """One incident from the first tick to the end, whatever it is called meanwhile; `()` stands nowhere."""
    stage = Stage(tmp_path / "state")
    unnamed = replace(absent_gpu(1, GpuState.LOST, "GPU is lost"), identity=GpuIdentity(1, ""))
    node_facts = {"gpus_expected": 2, "pci_gpus": 2}
    stage.show(snapshot([gpu(0), unnamed], node=node_facts), 5 * MINUTE)
    named = replace(gpu(1), lost_since_seconds=1.0)
    stage.show(snapshot([gpu(0), named], node=node_facts), 5 * MINUTE)
    stage.show(snapshot([gpu(0), gpu(1)], node=node_facts), 20 * MINUTE)

    assert [f"{one.news} {one.severity}" for one in stage.heard] == ["began critical", "ended critical"]
    assert len(stage.keys()) == 1
    incident = stage.messages[-1].incident
    assert incident is not None
    assert incident.labels == {"node": "node7", "gpu": "1", "uuid": "GPU-00000001"}
    texts = [alert.annotations["summary"] for message in stage.messages for alert in message.alerts]
    assert not [text for text in texts if "()" in text]


def test_a_remedy_without_effect_does_not_hide_that_the_gpu_is_full(tmp_path: Path) -> None:
    """What a remedy did is one message, and that the GPU becomes full all the same is another.

    A leak that will be critical in a moment is one message too: its first is that it fills the memory in minutes.
    """
    stage = Stage(tmp_path / "state")
    stage.show(leak(22, Evidence.BALANCED, full_in=20 * MINUTE), 5 * MINUTE)
    about = RemedyTarget("0", "GPU-00000000", str(PID), "python3", "alice", "")
    note = RemedyNote(about, "run-1", "terminate", "no_effect", False, stage.clock.wall())
    stage.further = RemedyFigures(1, stopped=False, ended=(note,))
    stage.show(leak(22.5, Evidence.BALANCED, full_in=10 * MINUTE), 3 * MINUTE)
    stage.show(leak(23.9, Evidence.BALANCED, full_in=1.0), 5 * MINUTE)

    assert [one.news for one in stage.heard] == ["began", "worsened", "worsened"]
    assert [one.severity for one in stage.heard] == ["critical"] * 3
    assert stage.heard[0].alerts.startswith("MemoryExhaustionSoon[minutes]/0 ")
    assert stage.heard[1].alerts.startswith("MemoryExhaustionSoon[minutes]/0 Remedy/0")
    assert stage.heard[2].alerts.startswith("MemoryFull/0 ")
    assert stage.headlines()[2].endswith("GPU full now")
    assert len(stage.keys()) == 1


@pytest.mark.parametrize(
    ("result", "dry", "shown"), [("dry_run", True, False), ("released", False, False), ("no_effect", False, True)]
)
def test_a_dry_run_alone_is_no_trouble_of_the_node(tmp_path: Path, result: str, dry: bool, shown: bool) -> None:
    """`gpuagent check` warns of a remedy without effect; not of one that helped, nor of what would have been done."""
    stage = Stage(tmp_path / "state")
    about = RemedyTarget("0", "GPU-00000000", str(PID), "python3", "alice", "")
    note = RemedyNote(about, "run-1", "SIGTERM", result, dry, stage.clock.wall())
    stage.further = RemedyFigures(1, stopped=False, ended=(note,))
    stage.show(node(12), MINUTE)
    assert ("GpuRemedy" in {one.name for one in subjects_of(stage.engine)}) is shown
