"""Stories of processes that die, jobs that end, GPUs that are renumbered, and memory that nobody owns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.core.growth import Evidence, Growth, GrowthState, MemoryKey, Range, Verdict
from gpuagent.core.snapshot import GpuState, NvmlState, ProcessState, Reconciliation, Snapshot
from gpuagent.core.units import GIB
from tests.agent.service.alerting.stage import PID, Stage, grown, leak, leaking, node
from tests.alerts.notify.parts import Route
from tests.fakes.readings import absent_gpu, gpu, process, snapshot

MINUTE, HOUR = 60.0, 3600.0


def dying_job(seen: Snapshot) -> Snapshot:
    """The same processes, ended, with all that they held."""
    held = {gpu.identity.uuid: gpu.memory.used_bytes or 0 for gpu in seen.gpus if gpu.memory is not None}
    dead = [one._replace(state=ProcessState.DEAD, former=one.info, info=None) for one in seen.processes]
    gpus = [replace(one, reconciliation=Reconciliation(0, held[one.identity.uuid], 0)) for one in seen.gpus]
    return replace(seen, gpus=tuple(gpus), processes=tuple(dead), growth={})


def test_a_leaker_that_has_died_leaks_no_more(tmp_path: Path) -> None:
    """Also while its GPU was not read since, and the verdict is the last one: no second alert names it `[dead]`."""
    stage = Stage(tmp_path / "state")
    seen = leak(12, Evidence.BALANCED)
    stage.show(seen, 5 * MINUTE)
    stage.show(replace(dying_job(seen), growth=seen.growth), 5 * MINUTE)
    alerts = [one for message in stage.messages for one in message.alerts]
    assert {one.labels["process"] for one in alerts if one.name == "GpuProcessMemoryLeak"} == {"python3"}


@pytest.mark.slow
def test_a_leaker_that_is_a_zombie_is_told_as_dead(tmp_path: Path) -> None:
    """Its leak has ended though its memory stays: whose it was is told, and nothing blames it for leaking."""
    stage = Stage(tmp_path / "state")
    seen = leak(20, Evidence.BALANCED)
    stage.show(seen, 5 * MINUTE)
    dead = dying_job(seen)
    was = [one.former for one in dead.processes if one.former is not None]
    zombies = [
        one._replace(former=replace(info, state="Z", resident_bytes=0))
        for one, info in zip(dead.processes, was, strict=True)
    ]
    stage.show(replace(dead, processes=tuple(zombies)), 30 * MINUTE)

    ended = [one for message in stage.messages for one in message.alerts if one.end_reason]
    assert "the process ended (a zombie): its 12.2 GiB have not come back" in {one.end_reason for one in ended}
    assert stage.headlines()[-1].endswith(f"GPU 0: python3 (alice, pid {PID}) has ended and still holds 12.2 GiB")


@pytest.mark.slow
@pytest.mark.parametrize("state", ["Z", "S"])
def test_who_grew_and_died_is_told_with_the_memory_that_stays(tmp_path: Path, state: str) -> None:
    """Only a forecast was told before: that its process has ended is a message of its own, zombie or not."""
    stage = Stage(tmp_path / "state")
    growth = Growth(
        Verdict.GROWING, slope=Range(1e8, 1e8, 1e8), exhaustion=Range(600.0, 300.0, 900.0),
        state=GrowthState.RISING, suspected=True,
    )  # fmt: skip
    seen = grown(node(22.5), PID, growth)
    stage.show(seen, 10 * MINUTE)
    dead = dying_job(seen)
    resident = 0 if state == "Z" else 4096
    ended = [
        one._replace(former=replace(one.former, state=state, resident_bytes=resident))
        for one in dead.processes
        if one.former is not None
    ]
    stage.show(replace(dead, processes=tuple(ended)), 10 * MINUTE)
    assert f"GPU 0: python3 (alice, pid {PID}) has ended and still holds 12.2 GiB" in stage.headlines()[-1]
    assert len(stage.headlines()) == 2


@pytest.mark.slow
def test_a_leak_that_gave_back_most_of_it_and_grows_again(tmp_path: Path) -> None:
    """Its end says how much came back, in figures of that moment: they do not follow what it does next."""
    stage = Stage(tmp_path / "state")
    stage.show(leak(20, Evidence.BALANCED), 5 * MINUTE)
    told = "it gave back 12.0 GiB, and held 8.0 GiB then"
    for step in range(20):
        over = Growth(Verdict.LEVELLED_OFF, reasons=(told, "it had risen by 16.0 GiB in 34 min"))
        stage.show(grown(node(8 + 0.3 * step), PID, over), MINUTE)

    assert stage.headlines()[-1].endswith(f"was leaking memory: {told}")
    assert {one.end_reason for message in stage.messages for one in message.alerts if one.end_reason} == {told}


SLOW = Growth(
    Verdict.GROWING, slope=Range(1e7, 1e7, 1e7), exhaustion=Range(14000.0, 7000.0, 21000.0),
    state=GrowthState.RISING, suspected=True,
)  # fmt: skip
FAST = replace(SLOW, slope=Range(1e8, 1e8, 1e8), exhaustion=Range(600.0, 300.0, 900.0))


@pytest.mark.slow
def test_growth_that_stops_or_slows_down_names_who_grew(tmp_path: Path) -> None:
    """The end of a forecast says who grew, and that it goes on where it does: at what pace, and when it is full."""
    stage = Stage(tmp_path / "state")
    stage.show(grown(node(20), PID, FAST), 5 * MINUTE)
    assert any("GpuMemoryExhaustionSoon" in {one.name for one in message.alerts} for message in stage.messages)
    stage.show(grown(node(20.2), PID, SLOW), 15 * MINUTE)
    assert stage.headlines()[-1].endswith(
        "it slowed down to 33.5 GiB/h at most, and python3 (pid 4242) goes on growing, "
        "full in 3 h 53 min at the earliest"
    )


@pytest.mark.slow
def test_a_forecast_that_slows_down_names_who_grows_now(tmp_path: Path) -> None:
    """Who grew fastest has loaded its model and is flat: the one that goes on growing is named."""
    stage = Stage(tmp_path / "state")
    whole, erin, frank = MemoryKey("GPU-00000000"), MemoryKey("GPU-00000000", PID), MemoryKey("GPU-00000000", 7)
    stage.show(replace(node(20, PID, 7), growth={whole: FAST, erin: SLOW, frank: FAST}), 5 * MINUTE)
    flat = Growth(Verdict.STEADY)
    stage.show(replace(node(20.2, PID, 7), growth={whole: SLOW, erin: SLOW, frank: flat}), 15 * MINUTE)
    assert "and python3 (pid 4242) goes on growing, full in 3 h 53 min at the earliest" in stage.headlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("leaks", [False, True])
def test_a_job_that_dies_and_holds_its_memory_is_one_incident(tmp_path: Path, leaks: bool) -> None:
    """Eight ranks on eight GPUs, whether they leaked before or not: one key, and the job is named."""
    stage = Stage(tmp_path / "state")
    ranks = [
        process(100 + each, gpu_index=each, used_gib=19.5, name="rank", slurm_job="77", process_group=100 + each)
        for each in range(8)
    ]
    alive = snapshot([gpu(each, used_gib=19.5) for each in range(8)], ranks)
    grows = alive
    for each in range(8 if leaks else 0):
        grows = grown(grows, 100 + each, leaking(Evidence.BALANCED), gpu=each)
    stage.show(grows, 5 * MINUTE)
    stage.show(dying_job(alive), 10 * MINUTE)
    stage.show(snapshot([gpu(each, used_gib=0.5) for each in range(8)], []), 20 * MINUTE)

    assert [one.news for one in stage.heard] == ["began", *(["reminder"] if leaks else []), "ended"]
    assert stage.headlines()[-2] == (
        "WARNING node7 GPUs 0, 1, 2, 3, 4, 5, 6, 7: Slurm job 77 (8 ranks, alice) have ended and still hold 156.0 GiB"
    )
    assert stage.headlines()[-1] == (
        "RESOLVED node7 GPUs 0, 1, 2, 3, 4, 5, 6, 7: Slurm job 77 (8 ranks, alice) had ended and held 156.0 GiB: "
        "the driver no longer lists them; 156.0 GiB came back"
    )


@pytest.mark.slow
def test_the_end_of_a_job_counts_all_its_ranks(tmp_path: Path) -> None:
    """Also one that ended long before the others, whose end a message has told."""
    stage = Stage(tmp_path / "state", routes=[Route(("slack",), repeat_interval=20 * MINUTE)])

    def ranks(*pids: int) -> Snapshot:
        seen = snapshot(
            [gpu(0, used_gib=1.0 + 5 * len(pids))],
            [process(pid, used_gib=5.0, name="rank", slurm_job="77", process_group=0) for pid in pids],
        )
        for pid in pids:
            seen = grown(seen, pid, leaking(Evidence.BALANCED))
        return seen

    stage.show(ranks(100, 101, 102, 103), 5 * MINUTE)
    stage.show(ranks(100, 101), 30 * MINUTE)
    assert any(one.alerts.count("-ProcessMemoryLeak") == 2 for one in stage.heard)
    stage.show(snapshot([gpu(0, used_gib=1.0)], []), 20 * MINUTE)

    assert stage.heard[-1].alerts.count("-ProcessMemoryLeak") == 4
    assert stage.headlines()[-1] == (
        "RESOLVED node7 GPU 0: Slurm job 77 (4 ranks, alice) was leaking memory: all 4 processes ended "
        "(22:18 to 22:48 UTC); 20.0 GiB came back"
    )


@pytest.mark.slow
def test_a_gpu_that_has_another_index_after_a_reload_of_the_driver(tmp_path: Path) -> None:
    """GPU 1 comes back as GPU 0: by its UUID it is the same, stays full, and nobody hears of an end."""
    stage = Stage(tmp_path / "state", routes=[Route(("slack",), repeat_interval=30 * MINUTE)])
    full, other = gpu(1, used_gib=23.9), gpu(0, used_gib=1.0)
    moved = [
        replace(full, identity=replace(full.identity, index=0)),
        replace(other, identity=replace(other.identity, index=1)),
    ]
    stage.show(snapshot([other, full], []), 10 * MINUTE)
    blind = [absent_gpu(each, GpuState.BLIND, "a call hangs") for each in range(2)]
    stage.show(snapshot(blind, [], node={"nvml_state": NvmlState.FAILED}), 15.0)
    starting = [replace(one, state=GpuState.STARTING, memory=None, runs=()) for one in moved]
    stage.show(snapshot(starting, []), 30.0)
    stage.show(snapshot(moved, []), 40 * MINUTE)

    assert [one.news for one in stage.heard] == ["began", "reminder"]
    assert len(stage.keys()) == 1
    assert stage.heard[-1].alerts == "MemoryFull/0 MemoryHigh/0 -MemoryFull/1"
    assert stage.headlines()[-1].startswith("CRITICAL node7 GPU 0: memory is full (100 %)")
    stage.show(snapshot([gpu(0, used_gib=1.0), gpu(1, used_gib=1.0)], []), 20 * MINUTE)
    assert stage.heard[-1].news == "ended"


@pytest.mark.slow
def test_an_incident_that_goes_on_without_its_process_says_so(tmp_path: Path) -> None:
    """A leaker ends, others keep the GPU full: its line would go on naming what is gone, on a thread's head too."""
    stage = Stage(tmp_path / "state")
    both = [process(PID, used_gib=12.0), process(9, used_gib=11.7, name="other")]
    full = snapshot([gpu(0, used_gib=23.9)], both)
    stage.show(grown(full, PID, leaking(Evidence.BALANCED)), 5 * MINUTE)
    stage.show(snapshot([gpu(0, used_gib=23.9)], [process(9, used_gib=23.5, name="other")]), 20 * MINUTE)

    assert [one.news for one in stage.heard] == ["began", "reminder"]
    assert stage.headlines()[-1] == (
        "CRITICAL node7 GPU 0: memory is full (100 %), 23.5 GiB of it held by other (alice, pid 9)"
    )
    assert "~ProcessMemoryLeak[balanced]/0" in stage.heard[-1].alerts
    gone = [one for one in stage.messages[-1].alerts if not one.holds]
    told_at = stage.messages[-1].written_at
    assert told_at is not None
    assert all(30.0 <= told_at - (one.true_until or 0.0) <= MINUTE for one in gone)


@pytest.mark.slow
def test_a_unit_that_is_restarted_and_grows_again_is_no_all_clear(tmp_path: Path) -> None:
    """It goes on under the new pid: one incident, which ends when the last one does."""
    stage = Stage(tmp_path / "state")

    def of_unit(pid: int, *evidence: Evidence, used_gib: float = 12.0) -> Snapshot:
        who = process(pid, used_gib=used_gib, unit="api.service", process_group=0, start_time_seconds=2e9 + pid)
        seen = snapshot([gpu(0, used_gib=used_gib + 1)], [who])
        growth = leaking(*evidence) if evidence else replace(leaking(Evidence.BALANCED), verdict=Verdict.GROWING)
        growth = growth if evidence else replace(growth, evidence=None, evidence_told=())
        return grown(seen, pid, growth)

    stage.show(of_unit(100, Evidence.BALANCED), 5 * MINUTE)
    stage.show(of_unit(200, used_gib=3.0), 10 * MINUTE)
    assert [one.news for one in stage.heard] == ["began"]
    stage.show(of_unit(200, Evidence.BALANCED), 5 * MINUTE)
    assert [one.news for one in stage.heard] == ["began", "restarted"]
    assert "python3 (alice, pid 200) leaking" in stage.headlines()[-1]
    steady = process(300, used_gib=5.0, unit="api.service", process_group=0, start_time_seconds=2e9 + 300)
    stage.show(snapshot([gpu(0, used_gib=6.0)], [steady]), 30 * MINUTE)
    assert [one.news for one in stage.heard] == ["began", "restarted", "ended"]
    assert len(stage.keys()) == 1
    assert "; api.service was restarted twice and runs as pid 300, with 5.0 GiB" in stage.headlines()[-1]
    assert stage.headlines()[-1].endswith(", and has not grown for 15 min")


def unowned(gib: float, *evidence: Evidence, own_gib: float = 1.0, full_in: float | None = None) -> Snapshot:
    """One GPU with so much memory of no process, which leaks if there is evidence, beside a process."""
    whole = gpu(0, used_gib=gib + own_gib, reconciliation=Reconciliation(0, 0, int(gib * GIB)))
    seen = snapshot([whole], [process(PID, used_gib=own_gib)])
    growth = {MemoryKey("GPU-00000000"): leaking(*evidence, full_in=full_in)} if evidence else {}
    return replace(seen, growth=growth)


@pytest.mark.slow
@pytest.mark.parametrize(
    "course",
    [
        [unowned(3), unowned(21.5), unowned(21.8, Evidence.BALANCED, full_in=1000.0), unowned(22.8)],
        [unowned(3, Evidence.BALANCED), unowned(21.5, Evidence.BALANCED, full_in=1000.0), unowned(22.8)],
        [unowned(22.8), unowned(3), unowned(22.8)],
    ],
)
def test_memory_of_no_process_that_fills_the_gpu_is_one_incident(tmp_path: Path, course: list[Snapshot]) -> None:
    """In whatever order its alerts come; while the GPU is full nothing of it is told as ended."""
    stage = Stage(tmp_path / "state")
    for seen in course:
        stage.show(seen, 12 * MINUTE)
    assert len(stage.keys()) == 1
    assert "ended" not in {one.news for one in stage.heard}
    assert stage.heard[-1].severity == "critical"
    stage.show(unowned(0.5), 30 * MINUTE)
    assert [one.news for one in stage.heard].count("ended") == 1


@pytest.mark.slow
def test_memory_without_an_owner_is_one_incident(tmp_path: Path) -> None:
    """That there is some, that it grows, and that it fills the GPU: one cause, which ends once."""
    stage = Stage(tmp_path / "state")
    rest = Reconciliation(0, 0, 8 * GIB)
    some = snapshot([gpu(0, used_gib=8.0, reconciliation=rest)], [])
    grows = replace(some, growth={MemoryKey("GPU-00000000"): leaking(Evidence.BALANCED)})
    stage.show(some, 15 * MINUTE)
    stage.show(grows, 10 * MINUTE)
    stage.show(some, 10 * MINUTE)
    stage.show(snapshot([gpu(0, used_gib=0.5)], []), 30 * MINUTE)

    assert len(stage.keys()) == 1
    assert [one.news for one in stage.heard] == ["began", "worsened", "ended"]


def test_memory_of_no_process_that_comes_back_is_the_reason_of_the_end(tmp_path: Path) -> None:
    """Its alerts hold on for a moment after the fall: the end tells what came back, and not where growth stopped.

    While it grows, the line names it and its pace beside the forecast.
    """
    stage = Stage(tmp_path / "state")
    rising = Growth(
        Verdict.LEAKING, Evidence.STRICT, Range(5e6, 4e6, 6e6), exhaustion=Range(1000.0, 500.0, 1500.0),
        state=GrowthState.RISING, evidence_told=(Evidence.STRICT,),
    )  # fmt: skip
    over = Growth(Verdict.LEVELLED_OFF, reasons=("it gave back 16.0 GiB, and held 1.0 GiB then",))
    for gib, growth, minutes in ((17.0, rising, 4), (1.0, rising, 0.5), (1.0, over, 8)):
        seen = replace(unowned(gib), growth={MemoryKey("GPU-00000000"): growth})
        stage.show(seen, minutes * MINUTE)
    assert stage.headlines()[0].endswith("memory of no process growing 16.8 GiB/h, full in 17 min"), stage.headlines()
    ended = {one.name: one.end_reason for one in stage.messages[-1].alerts if one.end_reason}
    assert ended["GpuMemoryLeak"] == "16.0 GiB of memory assigned to no process came back"
    assert ended["GpuMemoryExhaustionSoon"] == "16.0 GiB of memory assigned to no process came back"
    assert "growth stopped" not in stage.headlines()[-1]


def test_memory_of_no_process_that_comes_back_by_the_measurement_alone(tmp_path: Path) -> None:
    """Then nothing has levelled off by the detector, and where memory fell to is the reason."""
    stage = Stage(tmp_path / "state")
    rising = Growth(
        Verdict.LEAKING, Evidence.STRICT, Range(5e6, 4e6, 6e6), exhaustion=Range(1000.0, 500.0, 1500.0),
        state=GrowthState.RISING, evidence_told=(Evidence.STRICT,),
    )  # fmt: skip
    for gib, growth, minutes in ((17.0, rising, 4), (1.0, rising, 0.5), (1.0, Growth(Verdict.STEADY), 8)):
        stage.show(replace(unowned(gib), growth={MemoryKey("GPU-00000000"): growth}), minutes * MINUTE)
    ended = {one.name: one.end_reason for one in stage.messages[-1].alerts if one.end_reason}
    assert ended["GpuMemoryLeak"] == "memory back to 2.0 GiB"
