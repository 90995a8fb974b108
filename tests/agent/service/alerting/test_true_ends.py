"""Ends that claim no more than is known: who ended, when, and whether anybody watched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.core.growth import Evidence, Growth, MemoryKey, Range, Verdict
from gpuagent.core.snapshot import CollectorRun, ProcessState, Reconciliation, Snapshot
from gpuagent.core.units import GIB
from tests.agent.service.alerting.stage import Stage, grown, leaking
from tests.fakes.readings import gpu, process, snapshot

MINUTE, HOUR = 60.0, 3600.0
PID = 4242
EMPTY = snapshot([gpu(0, used_gib=1.0)], [])


def leak(used_gib: float, full_in: float | None = None) -> Snapshot:
    """One process that leaks."""
    seen = snapshot([gpu(0, used_gib=used_gib + 1)], [process(PID, used_gib=used_gib)])
    return grown(seen, PID, leaking(Evidence.BALANCED, full_in=full_in))


@pytest.mark.slow
def test_no_forecast_is_told_of_a_gpu_whose_leaker_has_ended(tmp_path: Path) -> None:
    """The detector's forecast for the GPU outlives the process for a while: it is no reason for an end."""
    stage = Stage(tmp_path / "state")
    slow = Growth(Verdict.GROWING, slope=Range(1e6, 1e6, 1e6), exhaustion=Range(4 * HOUR, 3 * HOUR, 5 * HOUR))
    both = [process(PID, used_gib=3.0), process(9, used_gib=17.0, name="other")]
    seen = snapshot([gpu(0, used_gib=20.5)], both)
    growing = replace(leaking(Evidence.BALANCED, full_in=20 * MINUTE), verdict=Verdict.GROWING, evidence_told=())
    stage.show(grown(seen, PID, growing), 10 * MINUTE)
    rest = snapshot([gpu(0, used_gib=18.5)], [process(9, used_gib=18.0, name="other")])
    stage.show(replace(rest, growth={MemoryKey("GPU-00000000"): slow}), 20 * MINUTE)

    assert [one.news for one in stage.heard] == ["began", "ended"]
    assert stage.headlines()[-1].startswith(
        "RESOLVED node7 GPU 0: memory was running out: python3 (pid 4242) ended; it held 3.0 GiB"
    )


@pytest.mark.slow
def test_an_end_behind_a_gap_is_told_by_what_was_before_it(tmp_path: Path) -> None:
    """The list of processes cannot be read while the leaker ends: what was freed in the gap is no growth that stopped.

    An alert that is measured in the gap, as that of a full GPU, has the processes of before, and the memory of then.
    """
    stage = Stage(tmp_path / "state")
    stage.show(leak(22.7, full_in=10 * MINUTE), 5 * MINUTE)
    for used_gib in (23.7, 12.0, 1.0):
        gap = gpu(0, used_gib=used_gib, processes_known=False, runs=ran("memory", failed=("processes",)))
        stage.show(snapshot([gap], []), 5 * MINUTE)
    stage.show(EMPTY, 10 * MINUTE)

    ends = {one.name: one.end_reason for message in stage.messages for one in message.alerts if one.end_reason}
    assert ends.pop("GpuMonitorBlind") == "the agent can read them again"
    assert ends == {
        "GpuProcessMemoryLeak": "the process ended; 22.7 GiB came back",
        "GpuMemoryExhaustionSoon": "python3 (pid 4242) ended; 22.7 GiB came back",
        "GpuMemoryFull": "memory back to 12.0 GiB (50 %)",
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("taken_gib", "reason", "of_leak"),
    [
        (0.0, "python3 (pid 4242) ended; 22.9 GiB came back", "the process ended; 22.9 GiB came back"),
        (4.0, "python3 (pid 4242) ended; 22.9 GiB came back", "the process ended; 22.9 GiB came back"),
        (14.0, "memory back to 15.0 GiB (62 %)", "the process ended; it held 22.9 GiB, and 15.0 GiB is in use now"),
    ],
)
def test_a_full_gpu_is_over_by_the_process_that_ended(
    tmp_path: Path, taken_gib: float, reason: str, of_leak: str
) -> None:
    """What is started at once has memory of its own: all of it came back, or a level is told where that took most."""
    stage = Stage(tmp_path / "state")
    stage.show(leak(22.9, full_in=1.0), 5 * MINUTE)
    other = process(9, used_gib=taken_gib, name="other", user="bob", uid=7)
    stage.show(snapshot([gpu(0, used_gib=1.0 + taken_gib)], [other] if taken_gib else []), 20 * MINUTE)
    ends = {one.name: one.end_reason for message in stage.messages for one in message.alerts if one.end_reason}
    assert (ends["GpuMemoryFull"], ends["GpuProcessMemoryLeak"]) == (reason, of_leak)


def ran(*names: str, failed: tuple[str, ...]) -> tuple[CollectorRun, ...]:
    """Collectors of which some have failed."""
    return tuple(CollectorRun(name, name not in failed, 0.0) for name in (*names, *failed))


@pytest.mark.slow
def test_ranks_that_end_one_after_another_are_all_told(tmp_path: Path) -> None:
    """Eight ranks over half an hour, of which one message told one: the end has all eight, and from when to when."""
    stage = Stage(tmp_path / "state")

    def ranks(alive: range, leaks: range) -> Snapshot:
        own = [
            process(100 + each, gpu_index=each, used_gib=12.0, name="rank", slurm_job="77", process_group=100 + each)
            for each in alive
        ]
        seen = snapshot([gpu(each, used_gib=13.0 if each in alive else 1.0) for each in range(8)], own)
        for each in leaks:
            seen = grown(seen, 100 + each, leaking(Evidence.BALANCED), gpu=each)
        return seen

    every = range(8)
    stage.show(ranks(every, range(1)), 2 * MINUTE)
    stage.show(ranks(every, every), 5 * MINUTE)
    for first in range(1, 9):
        stage.show(ranks(range(first, 8), range(first, 8)), 4 * MINUTE)

    assert stage.heard[-1].news == "ended"
    assert stage.heard[-1].alerts.count("-ProcessMemoryLeak") == 8
    assert stage.headlines()[-1] == (
        "RESOLVED node7 GPUs 0, 1, 2, 3, 4, 5, 6, 7: Slurm job 77 (8 ranks, alice) was leaking memory: "
        "all 8 processes ended (22:20 to 22:48 UTC); 96.0 GiB came back"
    )


@pytest.mark.parametrize(
    ("alive", "boot", "words"),
    [
        (False, "", "the process ended while gpuagent was not running"),
        (True, "", "the process left the GPU while gpuagent was not running"),
        (None, "", "the process left the GPU while gpuagent was not running"),
        (False, "another", "the process ended before the node was booted again"),
    ],
)
def test_a_process_that_ended_while_the_agent_was_down(
    tmp_path: Path, alive: bool | None, boot: str, words: str
) -> None:
    """Nobody saw how it ended: that it is gone is told, and no memory that came back."""
    stage = Stage(tmp_path / "state")
    stage.show(leak(12), 5 * MINUTE)
    stage.is_alive = alive
    stage.kill()
    stage.show(replace(EMPTY, node=replace(EMPTY.node, boot_id=boot)) if boot else EMPTY, 10 * MINUTE)

    assert [one.news for one in stage.heard] == ["began", "ended"]
    assert stage.headlines()[-1] == f"RESOLVED node7 GPU 0: python3 (alice, pid 4242) was leaking memory: {words}"


@pytest.mark.slow
@pytest.mark.parametrize("stops", [1, 2])
def test_what_was_seen_of_an_end_is_told_after_a_restart(tmp_path: Path, stops: int) -> None:
    """The agent saw the process end and waits to see whether that lasts: a restart meanwhile makes it no riddle."""
    stage = Stage(tmp_path / "state")
    stage.show(leak(22.9, full_in=60.0), 5 * MINUTE)
    taken = snapshot([gpu(0, used_gib=12.0)], [process(9, used_gib=11.0, name="other", user="bob", uid=7)])
    stage.show(taken, 30.0)
    assert stage.heard[-1].news != "ended"
    for _ in range(stops):
        stage.kill()
        steady = {MemoryKey("GPU-00000000"): Growth(Verdict.STEADY)}
        stage.show(replace(taken, growth=steady), 30.0)
    kept = {one.name: one.end_reason for one in stage.kept()}
    assert kept["GpuProcessMemoryLeak"] == "the process ended; it held 22.9 GiB, and 12.0 GiB is in use now"
    assert kept["GpuMemoryExhaustionSoon"].startswith("python3 (pid 4242) ended; it held 22.9 GiB")
    stage.show(taken, 20 * MINUTE)

    assert stage.headlines()[-1] == (
        "RESOLVED node7 GPU 0: python3 (alice, pid 4242) was leaking memory: the process ended; it held 22.9 GiB, and "
        "12.0 GiB is in use now"
    )


@pytest.mark.parametrize("stops", [False, True])
def test_the_end_is_of_every_gpu_on_which_it_grew(tmp_path: Path, stops: bool) -> None:
    """The message named two GPUs, and one of them has no alert of its own: the end names both."""
    stage = Stage(tmp_path / "state")
    own = [process(PID, used_gib=12.0), process(PID, gpu_index=1, used_gib=3.0)]
    slow = replace(leaking(Evidence.BALANCED), verdict=Verdict.GROWING, evidence_told=())
    seen = grown(snapshot([gpu(0, used_gib=13.0), gpu(1, used_gib=4.0)], own), PID, leaking(Evidence.BALANCED))
    seen = replace(seen, growth={**seen.growth, MemoryKey("GPU-00000001", PID): slow})
    stage.show(seen, 5 * MINUTE)
    if stops:
        stage.kill()
    stage.show(snapshot([gpu(0, used_gib=1.0), gpu(1, used_gib=1.0)], []), 10 * MINUTE)

    assert stage.heard[-1].news == "ended"
    assert ["GPUs 0, 1: python3 (alice, pid 4242) " in line for line in stage.headlines()] == [True, True]


def test_no_level_is_told_of_growth_whose_process_is_gone(tmp_path: Path) -> None:
    """It ended while the agent was down, and another one holds memory there: that is not where growth stopped."""
    stage = Stage(tmp_path / "state")
    stage.show(leak(22.0, full_in=60.0), 5 * MINUTE)
    stage.kill()
    taken = snapshot([gpu(0, used_gib=12.0)], [process(9, used_gib=11.0, name="other", user="bob", uid=7)])
    stage.show(replace(taken, growth={MemoryKey("GPU-00000000"): Growth(Verdict.STEADY)}), 30.0)

    reasons = {one.end_reason for one in stage.kept() if one.name == "GpuMemoryExhaustionSoon"}
    assert reasons == {"python3 (pid 4242) ended while gpuagent was not running"}


def test_a_full_gpu_says_that_its_holder_is_dead(tmp_path: Path) -> None:
    """Nobody can end what has ended: whoever reads the line must not look for the process."""
    stage = Stage(tmp_path / "state")
    who = process(PID, used_gib=22.9)
    dead = who._replace(state=ProcessState.DEAD, former=who.info, info=None)
    held = gpu(0, used_gib=23.9, reconciliation=Reconciliation(0, int(22.9 * GIB), 0))
    stage.show(snapshot([held], [dead]), 2 * MINUTE)

    (full,) = [line for line in stage.headlines() if "memory is full" in line]
    assert full.endswith("22.9 GiB of it held by python3 (alice, pid 4242), which has ended")


@pytest.mark.slow
def test_an_end_that_is_told_late_has_its_time(tmp_path: Path) -> None:
    """A leak that begins again and again is told as over after half an hour of calm: the process ended then."""
    stage = Stage(tmp_path / "state")
    for pid in (1, 2, 3):
        who = process(pid, used_gib=12.0, unit="api.service", process_group=0)
        stage.show(grown(snapshot([gpu(0, used_gib=13.0)], [who]), pid, leaking(Evidence.BALANCED)), 5 * MINUTE)
        stage.show(EMPTY, 12 * MINUTE)
    stage.show(EMPTY, HOUR)

    assert stage.heard[-1].news == "ended"
    assert "ended (22:" in stage.headlines()[-1]
