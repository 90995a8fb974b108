"""What a remedy ended: one end, told after the remedy's own, that names what was done and by whom."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast
from unittest.mock import patch

import pytest

from gpuagent.core.growth import Evidence, Growth, MemoryKey, Verdict
from gpuagent.core.metrics.remedies import RemedyFigures, RemedyNote, RemedyTarget
from gpuagent.core.snapshot import Snapshot
from gpuagent.core.units import GIB
from gpuagent.service.alert_commands import headline_of_record
from gpuagent.service.alerting import Alerting
from gpuagent_alerts.messages.briefing import find_waiting
from gpuagent_alerts.messages.snapshot_inputs import subjects_of
from gpuagent_alerts.remedies.outcome import RemedyEnding
from tests.agent.service.alerting.stage import Stage, grown, leaking
from tests.fakes.readings import gpu, process, snapshot

MINUTE = 60.0
PID, UUID = 4242, "GPU-00000000"
ABOUT = RemedyTarget("0", UUID, str(PID), "python3", "alice", "")
LEAK = grown(
    snapshot([gpu(0, used_gib=13.25)], [process(PID, used_gib=12.25)]), PID, leaking(Evidence.BALANCED)
)  # fmt: skip
FULL = grown(
    snapshot([gpu(0, used_gib=23.9)], [process(PID, used_gib=22.9)]), PID, leaking(Evidence.BALANCED, full_in=1.0)
)  # fmt: skip
EMPTY = snapshot([gpu(0, used_gib=1.0)], [])
IDLE = RemedyFigures(1, stopped=False)


def of_unit(pid: int, used_gib: float, growth: Growth, stage: Stage) -> Snapshot:
    """The process of a unit, which started a minute ago."""
    who = process(pid, used_gib=used_gib, unit="api.service", start_time_seconds=stage.clock.wall() - MINUTE)
    return replace(snapshot([gpu(0, used_gib=used_gib + 1)], [who]), growth={MemoryKey(UUID, pid): growth})


def act(stage: Stage, ending: RemedyEnding, *, wait_seconds: float = 20.0) -> None:
    """Let a remedy end the process, and tell seconds later what came of it."""
    stage.further = replace(IDLE, running=1, under_way=frozenset({(UUID, str(PID))}))
    stage.show(EMPTY, wait_seconds)
    note = RemedyNote(ABOUT, "run-1", ending.step, "released", False, stage.clock.wall())
    stage.remedy_endings[str(PID), UUID] = ending
    stage.further = replace(IDLE, ended=(note,), under_way=frozenset({(UUID, str(PID))}))
    for _ in range(4):
        stage.show(EMPTY, 5.0)
    stage.further = replace(IDLE, ended=(note,))
    stage.show(EMPTY, 14 * MINUTE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (RemedyEnding("SIGTERM", int(12.25 * GIB), 3.0),
         "gpuagent terminated it (SIGTERM); 12.2 GiB came back after 3 s"),
        (RemedyEnding("SIGKILL", int(12.25 * GIB), 3.0, asked_by="bob (uid 7)"),
         "gpuagent killed it (SIGKILL) as bob (uid 7) asked; 12.2 GiB came back after 3 s"),
        (RemedyEnding("SIGTERM"), "gpuagent terminated it (SIGTERM); 12.2 GiB came back"),
    ],
)  # fmt: skip
def test_the_end_waits_for_the_remedy_and_names_it(tmp_path: Path, ending: RemedyEnding, words: str) -> None:
    """By a rule or by hand: one message, and none after it for the result; `check` has nothing to warn of."""
    stage = Stage(tmp_path / "state")
    stage.show(LEAK, 5 * MINUTE)
    act(stage, ending)

    assert [one.news for one in stage.heard] == ["began", "ended"]
    assert stage.headlines()[-1] == f"RESOLVED node7 GPU 0: python3 (alice, pid 4242) was leaking memory: {words}"
    assert [one for one in subjects_of(stage.engine) if one.name != "Watchdog"] == []
    stage.further = IDLE
    stage.show(EMPTY, 30 * MINUTE)
    assert len(stage.heard) == 2


def test_while_a_remedy_acts_no_restart_is_waited_for(tmp_path: Path) -> None:
    """The process is gone, and its memory not yet seen to be back: that is no problem for `check`, and ends at once."""
    stage = Stage(tmp_path / "state")
    stage.show(of_unit(PID, 22.9, leaking(Evidence.BALANCED), stage), 5 * MINUTE)
    stage.further = replace(IDLE, running=1, under_way=frozenset({(UUID, str(PID))}))
    stage.show(EMPTY, 20.0)
    labels = {one.fingerprint: one.labels for one in stage.firing()}
    present = {one.fingerprint for one in stage.firing() if one.holds}
    (shown,) = find_waiting(stage.notifier, stage.briefings, present, stage.clock.wall(), labels)

    assert (shown.for_restart, shown.subject.severity) == (False, "info")
    assert shown.headline.endswith("python3 (alice, pid 4242) left the GPU 5 s ago: waiting for what a remedy comes to")
    stage.further = IDLE
    stage.show(EMPTY, 15.0)
    (shown,) = find_waiting(stage.notifier, stage.briefings, present, stage.clock.wall(), labels)
    assert shown.for_restart, "the remedy has not helped: a restart is waited for as ever"


def test_the_line_of_a_killed_process_is_no_trouble(tmp_path: Path) -> None:
    """Until its end is told, the incident says what became of the process, and not CRITICAL that a remedy helped."""
    stage = Stage(tmp_path / "state")
    stage.show(FULL, 5 * MINUTE)
    stage.remedy_endings[str(PID), UUID] = RemedyEnding("SIGTERM", int(22.9 * GIB), 3.0, asked_by="bob (uid 7)")
    note = RemedyNote(ABOUT, "run-1", "SIGTERM", "released", False, stage.clock.wall())
    stage.further = replace(IDLE, ended=(note,), under_way=frozenset({(UUID, str(PID))}))
    stage.show(EMPTY, 10.0)
    agent = cast("Alerting", stage)
    (record,) = (one for one in stage.notifier.incidents.values() if one.labels.get("process"))
    shown = find_waiting(stage.notifier, stage.briefings, set(), stage.clock.wall())
    with patch.object(Stage, "waiting", lambda _: shown, create=True):
        line = headline_of_record(agent, record)

    assert [one.name for one in stage.firing() if one.fingerprint in record.members] == ["GpuRemedy"]
    assert line.endswith("python3 (alice, pid 4242) left the GPU 1 s ago: a remedy gave its memory back")
    stage.further = replace(IDLE, ended=(note,))
    stage.show(EMPTY, 15.0)
    (record,) = (one for one in stage.notifier.incidents.values() if one.labels.get("process"))
    assert record.ends_at is not None
    assert "gpuagent terminated it (SIGTERM) as bob (uid 7) asked" in headline_of_record(agent, record)


@pytest.mark.slow
@pytest.mark.parametrize("comes_after", [None, 10.0, 45.0])
def test_a_remedy_that_helped_a_unit_is_told_at_once(tmp_path: Path, comes_after: float | None) -> None:
    """Nobody waits to see whether the unit is started again, nor for a verdict on what runs then: the line says so."""
    stage = Stage(tmp_path / "state")
    stage.show(of_unit(PID, 12.25, leaking(Evidence.BALANCED), stage), 5 * MINUTE)
    ending = RemedyEnding("SIGTERM", int(12.25 * GIB), 3.0)
    stage.further = replace(IDLE, running=1, under_way=frozenset({(UUID, str(PID))}))
    stage.show(EMPTY, comes_after or 20.0)
    young = EMPTY if comes_after is None else of_unit(300, 3.0, Growth(Verdict.LEARNING), stage)
    stage.remedy_endings[str(PID), UUID] = ending
    note = RemedyNote(ABOUT, "run-1", "SIGTERM", "released", False, stage.clock.wall())
    stage.further = replace(IDLE, ended=(note,))
    stage.show(young, MINUTE)

    assert [one.news for one in stage.heard] == ["began", "ended"]
    runs = (
        "; api.service was restarted once and runs as pid 300, with 3.0 GiB, and it is not known yet whether that grows"
    )
    assert stage.headlines()[-1].endswith(
        "was leaking memory: gpuagent terminated it (SIGTERM); 12.2 GiB came back after 3 s"
        + (runs if comes_after else "")
    )
    stage.further = IDLE
    stage.show(young, 30 * MINUTE)
    assert len(stage.heard) == 2


def test_a_successor_that_leaks_after_a_remedy_is_no_end(tmp_path: Path) -> None:
    """What is started in its place and is seen to grow keeps the incident open."""
    stage = Stage(tmp_path / "state")
    stage.show(of_unit(PID, 12.25, leaking(Evidence.BALANCED), stage), 5 * MINUTE)
    stage.remedy_endings[str(PID), UUID] = RemedyEnding("SIGTERM", int(12.25 * GIB), 3.0)
    note = RemedyNote(ABOUT, "run-1", "SIGTERM", "released", False, stage.clock.wall())
    stage.further = replace(IDLE, ended=(note,))
    stage.show(of_unit(300, 3.0, leaking(Evidence.BALANCED), stage), 10 * MINUTE)

    assert "ended" not in [one.news for one in stage.heard]


@pytest.mark.slow
@pytest.mark.parametrize("lingers", [False, True], ids=["at once", "its memory first"])
def test_every_alert_of_the_end_names_the_remedy(tmp_path: Path, lingers: bool) -> None:
    """Those about the GPU's memory too: a receiver that lists them reads one story.

    Where the memory is back a moment before the driver lists the process no more, nothing is kept for that.
    """
    stage = Stage(tmp_path / "state")
    stage.show(FULL, 10 * MINUTE)
    acted_at = stage.clock.wall()
    if lingers:
        stage.show(snapshot([gpu(0, used_gib=1.0)], [process(PID, used_gib=0.0)]), 5.0)
    act(stage, RemedyEnding("SIGTERM", int(22.9 * GIB), 3.0))

    assert (stage.messages[-1].written_at or 0.0) - acted_at <= MINUTE
    (ended,) = [one for one in stage.messages if one.incident is not None and one.incident.news == "ended"]
    assert {one.end_reason for one in ended.alerts if one.name != "GpuRemedy"} == {
        "gpuagent terminated it (SIGTERM); 22.9 GiB came back after 3 s",
        "python3 (pid 4242) was terminated by gpuagent (SIGTERM); 22.9 GiB came back",
    }


@pytest.mark.slow
def test_the_next_leak_on_that_gpu_is_another_incident(tmp_path: Path) -> None:
    """What was done about the first is not told again with it, nor counted among its processes."""
    stage = Stage(tmp_path / "state")
    stage.show(FULL, 10 * MINUTE)
    act(stage, RemedyEnding("SIGTERM", int(22.9 * GIB), 3.0))
    told = len(stage.heard)
    of_another = [process(7, used_gib=22.9, user="svc-ml", name="embed", command="embed --port 80")]
    stage.show(
        grown(snapshot([gpu(0, used_gib=23.9)], of_another), 7, leaking(Evidence.BALANCED, full_in=1.0)), 10 * MINUTE
    )

    assert {one.key for one in stage.heard[:told]}.isdisjoint(one.key for one in stage.heard[told:])
    assert stage.heard[told].news == "began"
    assert all("pid 4242" not in line and "2 processes" not in line for line in stage.headlines()[told:])


@pytest.mark.slow
@pytest.mark.parametrize("was_ended", [False, True], ids=["dry run", "by hand"])
def test_a_neighbor_that_was_acted_on_is_no_part_of_the_leak(tmp_path: Path, was_ended: bool) -> None:
    """The act is told with the incident; who grows, how many and how fast, and the end are the leaker's alone."""
    stage = Stage(tmp_path / "state")
    neighbor = process(5151, used_gib=1.0, user="root", uid=0, name="sleep", command="sleep 900")
    beside = [] if was_ended else [neighbor]
    stage.show(replace(LEAK, processes=(*LEAK.processes, neighbor)), 4 * MINUTE)
    about = RemedyTarget("0", UUID, "5151", "sleep", "root", "")
    result = "released" if was_ended else "dry_run"
    note = RemedyNote(about, "run-1", "terminate", result, not was_ended, stage.clock.wall())
    stage.further = replace(IDLE, ended=(note,))
    stage.show(replace(FULL, processes=(*FULL.processes, *beside)), 10 * MINUTE)
    assert "Remedy/0" in stage.heard[-1].alerts
    stage.show(replace(EMPTY, processes=tuple(beside)), 10 * MINUTE)

    assert stage.heard[-1].news == "ended"
    assert all("0: python3 (alice, pid 4242) " in line for line in stage.headlines()), stage.headlines()
