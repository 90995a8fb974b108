"""A severity that a critical alert is about to bring back does not fall, and is one message with that alert."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.core.growth import Evidence, MemoryKey, Range
from gpuagent.core.snapshot import Snapshot
from gpuagent_alerts.messages.snapshot_inputs import subjects_of
from tests.agent.service.alerting.stage import Stage, leak
from tests.agent.service.alerting.test_successors import LEAKING, LEARNING, UNIT, Story, rising

MINUTE = 60.0


def full_in(seconds: float, seen: Snapshot) -> Snapshot:
    """The same, with a forecast for the GPU on which it grows."""
    soon = replace(LEAKING, exhaustion=Range(seconds, seconds / 2, 2 * seconds))
    return replace(seen, growth={**seen.growth, MemoryKey("GPU-00000000"): soon})


def severity_of(stage: Stage) -> str:
    """The severity of the one incident about processes."""
    (found,) = (one for one in stage.notifier.incidents.values() if one.labels.get("process"))
    return found.severity


@pytest.mark.slow
def test_the_severity_of_a_restarted_leak_does_not_dip(tmp_path: Path) -> None:
    """What was critical is so while its successor grows, and from the first tick of the successor's forecast on."""
    story = Story(tmp_path, **UNIT)
    stage = story.stage
    stage.show(full_in(300.0, story.seen(22.0, LEAKING, 100)), 5 * MINUTE)
    story.pause(30.0)
    story.run(7 * MINUTE, rising(40.0), LEARNING, [200])
    assert [f"{one.news} {one.severity}" for one in stage.heard] == ["began critical", "restarted critical"]

    found = []
    for _ in range(12):
        stage.show(full_in(600.0, story.seen(10.0, LEAKING, 200)))
        shown = {one.severity for one in subjects_of(stage.engine, severity_of=stage.notifier.severity_of)}
        found.append((severity_of(stage), "critical" in shown))
    assert found == [("critical", True)] * 12
    # The message of the restart told no time: that it fills the memory in minutes, and that it is full, are news.
    assert [f"{one.news} {one.severity}" for one in stage.heard[2:]] == ["worsened critical"]
    assert stage.headlines()[-1].endswith("full in 10 min; api.service was restarted once and grows again")

    # A third life is told sooner than half an hour after the last message, yet not twice within ten minutes.
    story.pause(30.0)
    story.run(7 * MINUTE, rising(40.0), LEARNING, [300])
    stage.show(full_in(600.0, story.seen(10.0, LEAKING, 300)), 4 * MINUTE)
    assert stage.heard[3:] == []
    stage.show(full_in(600.0, story.seen(10.0, LEAKING, 300)), 9 * MINUTE)
    assert [f"{one.news} {one.severity}" for one in stage.heard[3:]] == ["restarted critical"]
    assert stage.headlines()[-1].endswith("full in 10 min; api.service was restarted twice and grows again")

    # A forecast that is gone before it has held for a minute brings nothing back.
    stage.show(story.seen(10.0, LEAKING, 300), 5 * MINUTE)
    assert severity_of(stage) == "warning"
    stage.show(full_in(600.0, story.seen(10.0, LEAKING, 300)), 30.0)
    assert severity_of(stage) == "warning"


@pytest.mark.parametrize(
    ("seconds", "told"), [(1200.0, ["began critical"]), (2400.0, ["began warning"]), (None, ["began warning"])]
)
def test_what_is_critical_in_a_moment_is_one_message(tmp_path: Path, seconds: float | None, told: list[str]) -> None:
    """A warning waits for the minute in which it becomes critical, and no other warning does."""
    stage = Stage(tmp_path / "state")
    stage.show(leak(12, Evidence.BALANCED, full_in=seconds), 45.0)
    assert bool(stage.heard) == (told == ["began warning"])
    stage.show(leak(12, Evidence.BALANCED, full_in=seconds), 5 * MINUTE)
    assert [f"{one.news} {one.severity}" for one in stage.heard] == told


def test_a_warning_does_not_wait_for_what_does_not_come(tmp_path: Path) -> None:
    """A forecast that flickers holds the first message back for a minute and a quarter at most."""
    stage = Stage(tmp_path / "state")
    for _ in range(3):
        stage.show(leak(12, Evidence.BALANCED, full_in=1200.0), 30.0)
        stage.show(leak(12, Evidence.BALANCED, full_in=2400.0), 15.0)
    assert [f"{one.news} {one.severity}" for one in stage.heard] == ["began warning"]
