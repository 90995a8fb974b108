"""Every piece of news reaches its receiver: none is taken for one that was told before, or given up as a reminder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.core.growth import Evidence, Growth, MemoryKey, Range, Verdict
from gpuagent.core.snapshot import Snapshot
from gpuagent.core.units import GIB
from gpuagent_alerts.notify.routes import Recipient, Routes
from tests.agent.service.alerting.stage import PID, Stage, grown
from tests.agent.service.alerting.test_successors import STEADY, Story
from tests.fakes.readings import gpu, process, snapshot

MINUTE = 60.0


def leak_at(gib_per_hour: float, full_in: float | None = None) -> Growth:
    """A leak of this pace."""
    pace = gib_per_hour * GIB / 3600
    return Growth(
        Verdict.LEAKING, Evidence.BALANCED, Range(pace, pace, pace), since_seconds=1.0,
        evidence_told=(Evidence.BALANCED,),
        exhaustion=None if full_in is None else Range(full_in, full_in / 2, 1.5 * full_in),
    )  # fmt: skip


def two_leaks(used_gib: float, other_gib: float, other: Growth | None) -> Snapshot:
    """A slow leak on a GPU, and beside it another process of which this is said."""
    slow = leak_at(1.0)
    said = {MemoryKey("GPU-00000000", PID): slow, MemoryKey("GPU-00000000"): other or slow}
    if other is not None:
        said[MemoryKey("GPU-00000000", 5000)] = other
    processes = [
        process(PID, used_gib=used_gib, unit="a.service"),
        process(5000, used_gib=other_gib, unit="b.service", name="other"),
    ]
    return replace(snapshot([gpu(0, used_gib=used_gib + other_gib + 1)], processes), growth=said)


@pytest.mark.parametrize("up", [True, False], ids=["was sent", "still waits"])
def test_an_incident_that_worsens_by_alerts_of_another_is_told_anew(tmp_path: Path, *, up: bool) -> None:
    """Its own alerts are those of the message before: it has an id of its own, and does not go for the same message."""
    stage = Stage(tmp_path / "state", up=up)
    stage.show(two_leaks(5.0, 5.0, None), 6 * MINUTE)
    stage.show(two_leaks(5.1, 6.0, leak_at(30.0, 15 * MINUTE)), 3 * MINUTE)
    stage.up = True
    stage.deliver()

    first = stage.heard[0].key
    mine = [(one.id, one.incident) for one in stage.messages if one.incident and one.incident.key == first]
    assert [(str(one.news), one.severity) for _, one in mine if one] == [("began", "warning"), ("worsened", "critical")]
    assert len({name for name, _ in mine}) == len(mine)


def test_an_incident_that_worsens_again_has_another_id(tmp_path: Path) -> None:
    """It got better without a message in between: a receiver that drops what it knows by its id hears of each."""
    stage = Stage(tmp_path / "state")
    for used in (5.0, 5.2, 5.4):
        stage.show(two_leaks(used, 6.0, leak_at(30.0, 15 * MINUTE)), 10 * MINUTE)
        stage.show(two_leaks(used, 6.0, None), 100 * MINUTE)

    assert len({one.id for one in stage.messages}) == len(stage.messages)


def test_what_grows_again_after_a_restart_is_not_dropped_under_a_cap(tmp_path: Path) -> None:
    """No alert says so yet: it is held back like any news, and no end of a process comes that nobody was told of."""
    story = Story(tmp_path, container_id="c0ffee")
    stage = story.stage
    stage.recipients = (Recipient("slack", max_messages_per_hour=1),)
    stage.notifier.routes = Routes((), stage.recipients)
    story.leak(100)
    story.pause(15.0)
    story.run(12 * MINUTE, lambda seconds: 8.0 + 8.0 * seconds / 3600, STEADY, [200])

    (held,) = stage.notifier.held_back()
    assert held.messages == 1
    stage.recipients = (Recipient("slack"),)
    stage.notifier.routes = Routes((), stage.recipients)
    story.run(MINUTE, lambda seconds: 9.6 + 8.0 * seconds / 3600, STEADY, [200])
    assert [one.news for one in stage.heard] == ["began", "restarted"]


@pytest.mark.slow
def test_what_begins_again_before_its_end_was_told_is_the_same_incident(tmp_path: Path) -> None:
    """It flaps, so its end is held back for half an hour: one key, and no end while it goes on under another."""
    stage = Stage(tmp_path / "state")

    def show(used_gib: float, growth: Growth, minutes: float) -> None:
        seen = snapshot([gpu(0, used_gib=used_gib + 1)], [process(PID, used_gib=used_gib)])
        stage.show(grown(seen, PID, growth), minutes * MINUTE)

    pace = 40 * GIB / 3600
    grows = Growth(
        Verdict.GROWING, slope=Range(pace, pace, pace), since_seconds=1.0, suspected=True,
        exhaustion=Range(20 * MINUTE, 10 * MINUTE, 30 * MINUTE),
    )  # fmt: skip
    for lap in range(4):
        show(8.0 + lap, grows, 4.0)
        show(8.0 + lap, Growth(Verdict.STEADY), 28.0 if lap == 3 else 6.0)
    show(12.5, grows, 10.0)

    assert len(stage.keys()) == 1
    assert stage.heard[-1].news != "ended"
