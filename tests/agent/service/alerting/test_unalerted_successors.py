"""What is told of successors, and of ends that are waited for, while no alert says so."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.core.growth import Growth, MemoryKey, Range, Verdict
from gpuagent.core.snapshot import GpuState, NvmlState, ProcessState, Reconciliation
from gpuagent.core.units import GIB
from gpuagent.service.alert_commands import incident_rows
from gpuagent_alerts.alert import News
from gpuagent_alerts.notify.incident_record import incident_of
from tests.agent.service.alerting.stage import TICK_SECONDS
from tests.agent.service.alerting.test_successors import (
    HOUR,
    LEAKING,
    LEARNING,
    MINUTE,
    STEADY,
    UNIT,
    A,
    B,
    Story,
    rising,
)
from tests.fakes.readings import absent_gpu, gpu, process


@pytest.mark.slow
@pytest.mark.parametrize("is_mended", [False, True])
def test_the_end_names_who_grew_last_although_no_alert_did(tmp_path: Path, is_mended: bool) -> None:
    """A container created anew twice, each time too short for a verdict: who grew last, and when, and what runs now."""
    story = Story(tmp_path, container_id=A)
    story.leak(100)
    for pid, container in ((200, B), (300, "c" * 64)):
        story.pause(15.0)
        story.owner = {"container_id": container}
        story.run(8 * MINUTE, rising(40.0), STEADY, [pid])
        assert story.news() == ["began", "restarted"], "the second one comes within half an hour"
    left_at = story.stage.clock.wall()
    if is_mended:
        story.pause(15.0)
        story.owner = {"container_id": "d" * 64}
        story.run(10 * MINUTE, lambda _: 5.0, STEADY, [400])
    else:
        story.pause(10 * MINUTE)

    assert story.news() == ["began", "restarted", "ended"]
    now = (
        "3 times and runs as pid 400, with 5.0 GiB, and has not grown for 3 min" if is_mended
        else "twice and does not run now"
    )  # fmt: skip
    assert re.fullmatch(
        r"RESOLVED node7 GPU 0: python3 \(alice, pid 300\) was leaking memory: it left the GPU( \(\d\d:\d\d UTC\))?; "
        rf"it held 8\.\d GiB; python3 was restarted {now}",
        story.stage.headlines()[-1],
    )
    ended = story.stage.messages[-1].incident
    assert ended is not None
    assert ended.ends_at == pytest.approx(left_at, rel=0, abs=MINUTE)


@pytest.mark.slow
def test_a_process_that_ended_unseen_did_not_leave_just_now(tmp_path: Path) -> None:
    """The driver was away for 20 min: nobody knows when in that time it ended."""
    story = Story(tmp_path, **UNIT)
    story.leak(100)
    unread = replace(story.seen(0.0, LEARNING), gpus=tuple(absent_gpu(each, GpuState.BLIND) for each in range(4)))
    unread = replace(unread, node=replace(unread.node, nvml_state=NvmlState.FAILED))
    story.stage.show(unread, 20 * MINUTE)
    story.pause(30.0)

    (waiting,) = story.waiting()
    assert waiting.headline.endswith(
        "left the GPU in the last 20 min 15 s, while its processes could not be read: "
        "waiting to see whether it is started again"
    )


@pytest.mark.parametrize("goes_on", [True, False])
def test_an_incident_is_not_ending_while_more_of_it_is_about_to_fire(tmp_path: Path, goes_on: bool) -> None:
    """The forecast has come true, and that the GPU is full fires in a moment: it is critical meanwhile, and said so."""
    story = Story(tmp_path, **UNIT)
    soon = replace(LEAKING, verdict=Verdict.GROWING, evidence=None, evidence_told=())
    soon = replace(soon, exhaustion=Range(600.0, 300.0, 900.0))
    stage = story.stage
    near = story.seen(19.0, soon, 100)
    whole = MemoryKey("GPU-00000000")
    stage.show(replace(near, growth={**near.growth, whole: soon}), 5 * MINUTE)
    stage.show(story.seen(22.65, soon if goes_on else STEADY, 100), TICK_SECONDS)
    said = r"python3 \(alice, pid 100\) growing \d.*" if goes_on else "memory was running out.*"

    (shown,) = story.shown()
    assert (shown.is_ending, shown.is_pending) == (False, False)
    assert (shown.subject.severity, shown.subject.is_ending) == ("critical", False)
    record = stage.notifier.incidents[shown.key]
    (row,) = incident_rows([record], {}, (), lambda _: shown.headline, held={shown.key: shown.is_pending})
    assert (row["severity"], row["ending"]) == ("critical", False)
    assert re.fullmatch(f"CRITICAL node7 GPU 0: {said}", shown.headline)
    assert "this fires" not in shown.headline
    assert "if that lasts" not in shown.headline
    stage.show(story.seen(10.0, STEADY, 100), TICK_SECONDS)
    (shown,) = story.shown()
    assert shown.is_ending


@pytest.mark.parametrize("is_forecast", [True, False])
def test_until_when_an_end_has_to_last_is_told_alike(tmp_path: Path, is_forecast: bool) -> None:
    """A leak is kept for 3 min, a critical forecast for 2: the incident ends with the gravest, as its line says."""
    story = Story(tmp_path, **UNIT)
    stage = story.stage
    soon = replace(LEAKING, exhaustion=Range(600.0, 300.0, 900.0))
    seen = story.seen(19.0, soon, 100)
    growth = {**seen.growth, MemoryKey("GPU-00000000"): soon} if is_forecast else seen.growth
    stage.show(replace(seen, growth=growth), 5 * MINUTE)
    other = process(9, used_gib=19.0, name="other", user="bob", uid=7, command="other")
    rest = replace(seen, gpus=(gpu(0, used_gib=20.0), *seen.gpus[1:]), processes=(other,), growth={})
    stage.show(rest, 2 * MINUTE - TICK_SECONDS)
    (shown,) = (one for one in story.shown() if one.is_ending)
    record = stage.notifier.incidents[shown.key]
    line = stage.briefings.headline(
        incident_of(record, News.BEGAN), [one for one in stage.kept() if one.fingerprint in record.members]
    )
    assert line.endswith(f": {shown.subject.summary}")
    (until,) = re.findall(r"over at ([\d:]+) UTC if that lasts", line)
    while "ended" not in story.news():
        stage.show(rest, TICK_SECONDS)
    hours, minutes, seconds = map(int, until.split(":"))
    late = stage.clock.wall() % (24 * HOUR) - (hours * HOUR + minutes * MINUTE + seconds)
    assert 0 <= late <= 2 * TICK_SECONDS


@pytest.mark.slow
def test_what_grew_again_and_died_with_its_memory_is_told(tmp_path: Path) -> None:
    """The last message says that it runs and grows: that it has ended, and its memory stays, is another one."""
    story = Story(tmp_path, **UNIT)
    story.leak(100)
    story.run(8 * MINUTE, rising(40.0), STEADY, [200])
    assert story.news() == ["began", "restarted"]
    last = story.seen(8.0, STEADY, 200)
    held = replace(last.gpus[0], reconciliation=Reconciliation(0, 8 * GIB, 0))
    dead = [one._replace(state=ProcessState.DEAD, former=one.info, info=None) for one in last.processes]
    story.stage.show(replace(last, gpus=(held, *last.gpus[1:]), processes=tuple(dead), growth={}), 5 * MINUTE)

    assert story.news() == ["began", "restarted", "reminder"]
    assert "python3 (alice, pid 200) has ended and still holds 8.0 GiB" in story.stage.headlines()[-1]
    story.pause(20 * MINUTE)
    assert story.news()[-1] == "ended"
    assert "pid 200) had ended and held 8.0 GiB" in story.stage.headlines()[-1]


@pytest.mark.slow
def test_the_end_is_told_of_what_began_again_without_a_message(tmp_path: Path) -> None:
    """A forecast was told as over with the restart, is true again and no worse, and ends: the end is told."""
    story = Story(tmp_path, **UNIT)
    soon = replace(LEAKING, verdict=Verdict.GROWING, evidence=None, evidence_told=())
    soon = replace(soon, exhaustion=Range(1200.0, 900.0, 1500.0))
    whole = MemoryKey("GPU-00000000")

    def forecast(pid: int, seconds: float) -> None:
        near = story.seen(12.0, soon, pid)
        story.stage.show(replace(near, growth={**near.growth, whole: soon}), seconds)

    forecast(100, 5 * MINUTE)
    story.pause(15.0)
    story.run(8 * MINUTE, rising(40.0), STEADY, [200])
    assert story.news() == ["began", "restarted"]
    forecast(200, 10 * MINUTE)
    story.pause(20 * MINUTE)

    assert story.news()[-1] == "ended"
    assert story.stage.messages[-1].alerts, "each message has an alert"


@pytest.mark.slow
@pytest.mark.parametrize("evidence", [True, False], ids=["a leak", "a forecast alone"])
@pytest.mark.parametrize("then", ["grows", "stands still", "another loads"])
def test_growth_that_stopped_and_goes_on_is_no_end(tmp_path: Path, evidence: bool, then: str) -> None:
    """The detector needs minutes to call it a leak again: until then no end is told while it is seen to grow."""
    story = Story(tmp_path, **UNIT)
    stage = story.stage
    soon = replace(LEAKING, exhaustion=Range(600.0, 300.0, 900.0))
    soon = soon if evidence else replace(soon, verdict=Verdict.GROWING, evidence=None, evidence_told=())
    near = story.seen(12.0, soon, 100)
    stage.show(replace(near, growth={**near.growth, MemoryKey("GPU-00000000"): soon}), 5 * MINUTE)
    over = Growth(Verdict.LEVELLED_OFF, reasons=("growth stopped at 12.0 GiB with 11.0 GiB free: no new high for 1 h",))
    memory = rising(88.0, 12.0) if then == "grows" else lambda _: 12.0
    for tick in range(20):
        seen = story.seen(memory((tick + 1) * TICK_SECONDS), over, 100)
        seen = replace(seen, growth={**seen.growth, MemoryKey("GPU-00000000"): over})
        if then == "another loads":
            other = process(9, used_gib=0.5 * tick, name="other", user="bob", uid=7)
            whole = gpu(0, used_gib=13.0 + 0.5 * tick)
            seen = replace(seen, processes=(*seen.processes, other), gpus=(whole, *seen.gpus[1:]))
        stage.show(seen, TICK_SECONDS)

    assert ("ended" in story.news()) is (then != "grows")
    if then == "grows":
        (shown,) = story.shown()
        assert not shown.is_ending
        assert shown.subject.severity == "warning"
        assert shown.headline.endswith("python3 (alice, pid 100) grows again, after it had stopped")
        stage.show(story.seen(19.5, over, 100), 10 * MINUTE)
        assert story.news()[-1] == "ended", "it has stopped again"


@pytest.mark.slow
@pytest.mark.parametrize(("calm_minutes", "is_told"), [(29.0, True), (10.0, False)])
def test_what_is_critical_again_after_it_was_less_is_told(tmp_path: Path, calm_minutes: float, is_told: bool) -> None:
    """It was less for half an hour, the last minutes of which nothing of it was true: that is news again."""
    story = Story(tmp_path, **UNIT)
    stage, whole = story.stage, MemoryKey("GPU-00000000")
    soon = replace(LEAKING, exhaustion=Range(600.0, 300.0, 900.0))
    over = Growth(Verdict.LEVELLED_OFF, reasons=("growth stopped at 12.0 GiB with 11.0 GiB free: no new high for 1 h",))

    def show(used_gib: float, growth: Growth, seconds: float) -> None:
        seen = story.seen(used_gib, growth, 100)
        stage.show(replace(seen, growth={**seen.growth, whole: growth}), seconds)

    show(12.0, soon, 5 * MINUTE)
    before = story.news()
    show(12.0, LEAKING, calm_minutes * MINUTE)
    for tick in range(20):
        show(12.0 + 0.3 * tick, over, TICK_SECONDS)
    assert story.news() == before
    show(18.0, soon, 5 * MINUTE)
    assert story.news()[len(before) :] == (["worsened"] if is_told else [])


@pytest.mark.slow
@pytest.mark.parametrize("minutes_as_warning", [0.0, 5.0, 22.0])
def test_critical_again_half_an_hour_after_a_restart_is_told(tmp_path: Path, minutes_as_warning: float) -> None:
    """The last message told of a warning: that it is critical again is news, whether an alert was true meanwhile."""
    story = Story(tmp_path, **UNIT)
    soon = replace(LEAKING, exhaustion=Range(600.0, 300.0, 900.0))

    def critical(minutes: float, pid: int) -> None:
        seen = story.seen(19.0, soon, pid)
        story.stage.show(replace(seen, growth={**seen.growth, MemoryKey("GPU-00000000"): soon}), minutes * MINUTE)

    critical(5.0, 100)
    before = len(story.stage.heard)
    assert story.stage.heard[-1].severity == "critical"
    story.pause(15.0)
    story.run((34.0 - minutes_as_warning) * MINUTE, rising(12.0), STEADY, [200])
    story.run(minutes_as_warning * MINUTE, rising(12.0, 9.0), LEAKING, [200])
    told = len(story.stage.heard)
    critical(5.0, 200)

    assert story.news()[before:told] == ["restarted"], "that it grows again is told once"
    assert story.news()[told:] == ["worsened"]
    assert story.stage.heard[-1].severity == "critical"
