"""An end is told when nothing of its incident is true or about to fire; what tells of a GPU goes with the growth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.core.growth import Evidence, Growth, MemoryKey, Range, Verdict
from gpuagent.core.snapshot import Snapshot
from gpuagent.core.units import GIB
from tests.agent.service.alerting.stage import Stage, grown, leaking
from tests.fakes.readings import gpu, process, snapshot

MINUTE = 60.0
UUID = "GPU-00000000"
FIRST, SECOND = 200, 100
"""Of two that grow alike the higher pid counts as the faster."""


def node(used_gib: float, *pids: int) -> Snapshot:
    """One GPU of 24 GiB."""
    return snapshot([gpu(0, used_gib=used_gib)], [process(pid, process_group=pid) for pid in pids])


@pytest.mark.slow
def test_a_forecast_that_ends_on_a_gpu_about_to_be_called_high(tmp_path: Path) -> None:
    """Growth that stops at 95 % is no all-clear: the next alert is pending, and belongs to the same incident."""
    stage = Stage(tmp_path / "state")
    stage.show(grown(node(18, FIRST), FIRST, leaking(Evidence.BALANCED, full_in=20 * MINUTE)), 5 * MINUTE)
    begun = len(stage.heard)
    stage.show(node(22.8, FIRST), 4 * MINUTE)
    stage.show(node(18, FIRST), 30.0)
    stage.show(node(22.8, FIRST), 40 * MINUTE)
    assert begun
    assert [told for told in stage.told()[begun:] if told.startswith(("ended", "began"))] == []

    stage.show(node(2), 60 * MINUTE)
    assert [one.news for one in stage.heard[begun:]].count("ended") == 1
    assert len(stage.keys()) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("used_gib", "full_in", "news"),
    [(23.7, 0.5, ["began"]), (22.0, 40.0, ["began", "worsened"])],
    ids=["full now", "full in a moment"],
)
def test_a_jump_to_a_full_gpu_is_told_once(tmp_path: Path, used_gib: float, full_in: float, news: list[str]) -> None:
    """`full now` by the forecast and `memory is full` are one state; what is full soon, and then is, are two."""
    stage = Stage(tmp_path / "state")
    fast = Growth(Verdict.GROWING, slope=Range(1e9, 1e9, 1e9), fast=True, fast_exhaustion_seconds=full_in)
    stage.show(node(14.0, FIRST), 5 * MINUTE)
    stage.show(grown(node(used_gib, FIRST), FIRST, fast), 15.0)
    stage.show(grown(node(used_gib, FIRST), FIRST, fast), 10.0)
    assert ("full now" in stage.headlines()[0]) is (full_in < 1)
    stage.show(grown(node(23.7, FIRST), FIRST, replace(fast, fast_exhaustion_seconds=0.0)), 30.0)
    stage.show(node(23.7, FIRST), 10 * MINUTE)
    assert [one.news for one in stage.heard] == news
    assert all(one.severity == "critical" for one in stage.heard)
    stage.kill()
    stage.show(node(23.7, FIRST), 10 * MINUTE)
    assert len(stage.heard) == len(news), "a restart knows what was told"


@pytest.mark.slow
def test_one_that_comes_and_goes(tmp_path: Path) -> None:
    """The calm that an end waits for begins anew when something of the incident goes pending."""
    stage = Stage(tmp_path / "state")
    high, low = node(22.8, FIRST), node(15, FIRST)
    for _ in range(4):
        stage.show(high, 10 * MINUTE)
        stage.show(low, 10 * MINUTE)
    ends = [place for place, one in enumerate(stage.heard) if one.news == "ended"]
    for used, minutes in ((22.8, 4), (15, 8), (22.8, 4), (15, 8), (22.8, 4)):
        stage.show(node(used, FIRST), minutes * MINUTE)
    assert [place for place, one in enumerate(stage.heard) if one.news == "ended"] == ends
    stage.show(low, 45 * MINUTE)
    assert stage.heard[-1].news == "ended"
    assert len(stage.keys()) == 1


def two(used_gib: float, *growing: int, full_in: float | None = None) -> Snapshot:
    """Two processes, of which some leak; the GPU's forecast is that of all of them."""
    seen = node(used_gib, FIRST, SECOND) if FIRST in growing else node(used_gib, SECOND)
    for pid in growing:
        seen = grown(seen, pid, leaking(Evidence.BALANCED, full_in=full_in))
    return seen


@pytest.mark.slow
def test_two_leaks_of_which_the_older_ends(tmp_path: Path) -> None:
    """Both are told that the GPU is full in minutes, once; as one ends, the forecast goes with the one that leaks."""
    stage = Stage(tmp_path / "state")
    stage.show(two(10, FIRST), 10 * MINUTE)
    stage.show(two(14, FIRST, SECOND), 10 * MINUTE)
    stage.show(two(18, FIRST, SECOND, full_in=20 * MINUTE), 10 * MINUTE)
    first, second = stage.heard[0].key, stage.heard[1].key
    assert first != second
    assert "MemoryExhaustionSoon" in next(one.alerts for one in stage.heard if one.severity == "critical")
    assert [(one.news, one.severity) for one in stage.heard if one.key == second][-1] == ("worsened", "critical")
    before = len(stage.heard)

    stage.show(two(17, SECOND, full_in=25 * MINUTE), 20 * MINUTE)
    after = stage.heard[before:]
    assert not [one for one in after if one.key == second]
    assert stage.notifier.incidents[second].severity == "critical"
    ended = [one for one in stage.messages[before:] if one.incident is not None and one.incident.key == first]
    assert [str(one.incident.news) for one in ended if one.incident is not None] == ["ended"]
    reasons = [alert.end_reason for alert in ended[0].alerts if alert.name == "GpuMemoryExhaustionSoon"]
    assert reasons == [f"it goes on in another incident: python3 (pid {SECOND}), {second}"]


@pytest.mark.slow
def test_two_leaks_side_by_side_keep_their_alerts(tmp_path: Path) -> None:
    """While its process grows, an incident keeps what it has, whoever grows faster just now."""
    stage = Stage(tmp_path / "state")
    stage.show(two(14, FIRST, SECOND), 10 * MINUTE)
    seen = two(18, FIRST, SECOND, full_in=20 * MINUTE)
    stage.show(seen, 10 * MINUTE)
    before = len(stage.heard)
    for place in range(6):
        pace = 20 * GIB / 3600
        fast = replace(leaking(Evidence.BALANCED), slope=Range(pace, pace, pace), since_seconds=1.0)
        key = MemoryKey(UUID, FIRST if place % 2 else SECOND)
        stage.show(replace(seen, growth={**seen.growth, key: fast}), 5 * MINUTE)
    assert stage.heard[before:] == []


@pytest.mark.slow
def test_an_end_that_waits_does_not_tell_of_the_next_job(tmp_path: Path) -> None:
    """A GPU has one alert, whoever fills it: an end tells of the process of its own incident, also after a restart."""
    stage = Stage(tmp_path / "state")

    def load(pid: int, to_gib: float) -> None:
        seen = snapshot(
            [gpu(0, used_gib=to_gib + 1)],
            [process(pid, process_group=pid, used_gib=to_gib, command=f"run {pid}", name=f"job{pid}")],
        )
        fast = Growth(Verdict.GROWING, slope=Range(1e9, 1e9, 1e9), fast=True, fast_exhaustion_seconds=40.0)
        for seconds in (15.0, 10.0):
            stage.show(grown(seen, pid, fast), seconds)
        stage.show(grown(seen, pid, Growth(Verdict.STEADY)), 4 * MINUTE)

    for pid in (FIRST, SECOND):
        load(pid, 17.0)
        load(pid, 19.0)
        stage.show(node(1.0), 5 * MINUTE)
        stage.kill()
    stage.show(node(1.0), 30 * MINUTE)

    own: dict[str, list[str]] = {one.key: [] for one in stage.heard}
    for heard, line in zip(stage.heard, stage.headlines(), strict=True):
        own[heard.key].append(line)
    for lines, pid, other in zip(own.values(), (FIRST, SECOND), (SECOND, FIRST), strict=True):
        assert "RESOLVED" in lines[-1]
        assert f"pid {pid}" in lines[-1]
        assert not any(f"pid {other}" in line for line in lines)
        assert lines[-1].endswith("; it has left the GPU since"), lines


FAST = Growth(Verdict.GROWING, slope=Range(1e9, 1e9, 1e9), fast=True, fast_exhaustion_seconds=40.0)


def loaded(to_gib: float, growth: Growth) -> Snapshot:
    """One process with so much memory."""
    return grown(snapshot([gpu(0, used_gib=to_gib + 1)], [process(FIRST, used_gib=to_gib)]), FIRST, growth)


def test_a_load_in_two_steps_is_told_once(tmp_path: Path) -> None:
    """The second step comes within ten minutes of the first: no end is told between them."""
    stage = Stage(tmp_path / "state")
    for to_gib in (17.0, 19.0):
        for seconds in (15.0, 10.0):
            stage.show(loaded(to_gib, FAST), seconds)
        stage.show(loaded(to_gib, Growth(Verdict.STEADY)), 5 * MINUTE)
    assert [one.news for one in stage.heard] == ["began"]
    stage.show(loaded(19.0, Growth(Verdict.STEADY)), 15 * MINUTE)
    assert [one.news for one in stage.heard] == ["began", "ended"]
    assert "growth stopped" in stage.headlines()[-1]
    assert len(stage.keys()) == 1


def test_a_load_that_ends_with_its_process_is_told_at_once(tmp_path: Path) -> None:
    """Nothing of it comes back: there is no further step to wait for."""
    stage = Stage(tmp_path / "state")
    for seconds in (15.0, 10.0):
        stage.show(loaded(17.0, FAST), seconds)
    stage.show(node(1.0), 2 * MINUTE)
    assert [one.news for one in stage.heard] == ["began", "ended"]
    assert "ended" in stage.headlines()[-1]
