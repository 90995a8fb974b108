"""A leaker that is started again: one incident over all of its processes, and no end before its successor is steady."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuagent.core.growth import Evidence, Growth, MemoryKey, Range, Verdict
from gpuagent.core.snapshot import Snapshot
from gpuagent.core.units import GIB
from gpuagent_alerts.notify.succession import MemoryMeter
from tests.agent.service.alerting.stage import Stage, grown, leaking
from tests.fakes.readings import gpu, process, snapshot

MINUTE = 60.0
EMPTY = snapshot([gpu(0, used_gib=1.0)], [])
PACE = 40 * GIB / 3600.0
"""Bytes a second by which a process leaks."""
RATE = 250 * 2.0**20
"""Bytes a second: 24 GiB are full in a minute and a half."""
FAST = Growth(
    Verdict.GROWING, slope=Range(RATE, RATE, RATE), fast=True, fast_exhaustion_seconds=60.0, since_seconds=1.0
)
OWNERS: dict[str, dict[str, Any]] = {
    "unit": {"unit": "api.service"},
    "container": {"container_id": "c0ffee"},
    "job": {"slurm_job": "77"},
    "command": {"command": "python3 leak.py"},
}


def running(pid: int, used_gib: float, growth: Growth, stage: Stage, **owner: Any) -> Snapshot:
    """One process of an owner, whose start is told as two minutes before it is on the GPU: clocks are not exact."""
    started = stage.clock.wall() - 2 * MINUTE
    who = process(pid, used_gib=used_gib, process_group=pid, start_time_seconds=started, **owner)
    return replace(snapshot([gpu(0, used_gib=used_gib + 1)], [who]), growth={MemoryKey("GPU-00000000", pid): growth})


def live(stage: Stage, pid: int, **owner: Any) -> None:
    """Let a process live as one does that leaks fast: it loads, grows, and is about to fill the GPU."""
    born = running(pid, 4.0, Growth(Verdict.LEARNING), stage, **owner)
    started = born.processes[0].info
    stage.show(born, 30.0)
    for used_gib in (12.0, 20.0, 22.9):
        grows = running(pid, used_gib, FAST, stage, **owner)
        own = grows.processes[0]._replace(info=started)
        whole = {**grows.growth, MemoryKey("GPU-00000000"): FAST}
        stage.show(replace(grows, processes=(own,), growth=whole), 30.0)


def names(owner: str) -> str:
    """What a message calls the owner."""
    return {"unit": "api.service", "container": "container c0ffee", "job": "Slurm job 77", "command": "python3"}[owner]


@pytest.mark.slow
@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("wait_seconds", [0.0, 5.0, 10.0])
@pytest.mark.parametrize("kill", [False, True])
def test_a_crash_loop_is_one_incident_without_an_end(
    tmp_path: Path, owner: str, wait_seconds: float, kill: bool
) -> None:
    """Ten lives of a leaker: no RESOLVED between them, also where the agent restarts, and no message for each life."""
    stage = Stage(tmp_path / "state")
    for life in range(10):
        live(stage, 100 + life, **OWNERS[owner])
        if kill:
            stage.kill()
        if wait_seconds:
            stage.show(EMPTY, wait_seconds)
    told = [one.news for one in stage.heard]
    assert "ended" not in told
    assert len(stage.keys()) == 1
    assert len(told) <= 3, stage.headlines()
    assert f"; {names(owner)} was restarted once and grows again" in stage.headlines()[1]


@pytest.mark.slow
@pytest.mark.parametrize("owner", OWNERS)
def test_the_end_of_a_crash_loop_tells_that_the_successor_is_steady(tmp_path: Path, owner: str) -> None:
    """It waits until the process that runs is measured as flat and the detector has a verdict on it."""
    stage = Stage(tmp_path / "state")
    for life in range(2):
        live(stage, 100 + life, **OWNERS[owner])
        stage.show(EMPTY, 10.0)
    ended = stage.clock.wall()
    young = running(300, 5.0, Growth(Verdict.LEARNING), stage, **OWNERS[owner])
    stage.show(young, 5 * MINUTE)
    assert "ended" not in [one.news for one in stage.heard]
    stage.show(replace(young, growth={MemoryKey("GPU-00000000", 300): Growth(Verdict.STEADY)}), 20 * MINUTE)

    assert [one.news for one in stage.heard] == ["began", "restarted", "ended"]
    assert re.sub(r" \(\d\d:\d\d UTC\)", "", stage.headlines()[-1]) == (
        "RESOLVED node7 GPU 0: memory was full: python3 (pid 101) ended; 22.9 GiB came back; "
        f"{names(owner)} was restarted twice and runs as pid 300, with 5.0 GiB, and has not grown for 5 min"
    )
    incident = stage.messages[-1].incident
    assert incident is not None
    assert incident.ends_at == pytest.approx(ended, abs=30.0)
    records = [one for one in stage.notifier.incidents.values() if one.key == incident.key]
    assert [one.headline for one in records] == [stage.headlines()[-1]]


@pytest.mark.parametrize(("owner", "seconds"), [("unit", 90.0), ("container", 90.0), ("job", 30.0), ("command", 30.0)])
def test_a_leaker_that_is_not_started_again(tmp_path: Path, owner: str, seconds: float) -> None:
    """Its end is told after the time in which its manager, or a script, could have started it, as of when it ended."""
    stage = Stage(tmp_path / "state")
    live(stage, 100, **OWNERS[owner])
    ended = stage.clock.wall()
    stage.show(EMPTY, seconds)
    assert "ended" not in [one.news for one in stage.heard]
    stage.show(EMPTY, 2 * MINUTE)

    assert stage.heard[-1].news == "ended"
    assert stage.headlines()[-1].endswith("python3 (pid 100) ended; 22.9 GiB came back")
    incident = stage.messages[-1].incident
    assert incident is not None
    assert incident.ends_at == pytest.approx(ended, abs=30.0)


def test_a_second_run_beside_a_leaker_is_no_restart(tmp_path: Path) -> None:
    """Two of one command line at the same time: the end of the first is told, as the second is no successor."""
    stage = Stage(tmp_path / "state")
    begun = stage.clock.wall()
    two = [process(pid, used_gib=8.0, process_group=pid, start_time_seconds=begun) for pid in (100, 200)]
    both = grown(snapshot([gpu(0, used_gib=17.0)], two), 100, leaking(Evidence.BALANCED))
    one = replace(snapshot([gpu(0, used_gib=9.0)], two[1:]), growth={})
    stage.show(grown(both, 200, Growth(Verdict.LEARNING)), 10 * MINUTE)
    stage.show(one, 2 * MINUTE)

    assert [each.news for each in stage.heard] == ["began", "ended"]
    assert "restarted" not in stage.headlines()[-1]


@pytest.mark.parametrize("tick", [1.0, 5.0, 7.0, 15.0, 29.0])
def test_the_pace_of_a_successor_does_not_depend_on_when_it_is_asked(tick: float) -> None:
    """Blocks of half a minute do not end where its window does: a steady pace is told as that at every tick."""
    meter, now, paces = MemoryMeter(0.0), 0.0, []
    while now < 900.0:
        now += tick
        meter.add({"a": int(PACE * now)}, now)
        if now > 300.0:
            paces.append(meter.measure(PACE, now).bytes_per_second)

    assert min(paces) == pytest.approx(PACE, rel=0.01)
    assert max(paces) == pytest.approx(PACE, rel=0.01)
