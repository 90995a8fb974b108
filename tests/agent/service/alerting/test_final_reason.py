"""The end of an incident says what ended it, and not what ended one of its alerts on the way there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.core.growth import Evidence, Growth, GrowthState, MemoryKey, Verdict
from gpuagent.core.snapshot import Snapshot
from gpuagent_alerts.alert import Status, condition_times
from gpuagent_alerts.notify.routes import Recipient
from tests.agent.service.alerting.stage import Stage, grown, leaking
from tests.alerts.notify.parts import route
from tests.fakes.readings import gpu, process, snapshot

MINUTE = 60.0
PID, OTHER = 4242, 9
SOON = leaking(Evidence.BALANCED, full_in=20 * MINUTE)
STOPPED = replace(SOON, exhaustion=None, state=GrowthState.STOPPED)
FULL = replace(leaking(Evidence.BALANCED, full_in=0.0), state=GrowthState.FULL)
OVER = Growth(Verdict.LEVELLED_OFF)


def seen(used_gib: float, growth: Growth, *, other_gib: float = 0.0) -> Snapshot:
    """One process, and perhaps another one, on a GPU of 23.7 GiB."""
    processes = [process(PID, used_gib=used_gib, name="embed")]
    processes += [process(OTHER, used_gib=other_gib, name="victim")] if other_gib else []
    return grown(snapshot([gpu(0, used_gib=used_gib + other_gib + 0.2)], processes), PID, growth)


@pytest.mark.slow
def test_a_leak_that_levels_off_is_the_reason_of_its_forecast(tmp_path: Path) -> None:
    """The forecast went first, for a reason that is none; the leak's own end is told with both."""
    stage = Stage(tmp_path / "state")
    stage.show(seen(10.0, SOON), 6 * MINUTE)
    stage.show(seen(15.0, STOPPED), 20 * MINUTE)
    stage.show(seen(15.0, OVER), 30 * MINUTE)

    assert stage.heard[-1].news == "ended"
    assert "growth stopped at 15.0 GiB with " in stage.headlines()[-1]
    incident = stage.messages[-1].incident
    assert incident is not None
    assert incident.ends_at is not None
    for alert in stage.messages[-1].alerts:
        assert "growth stopped at 15.0 GiB with " in alert.end_reason
        if alert.name == "GpuMemoryExhaustionSoon":  # with its own time, and not that of the verdict
            assert alert.ends_at is not None
            assert alert.ends_at < incident.ends_at - 5 * MINUTE


@pytest.mark.slow
def test_who_hears_only_warnings_is_told_what_ended_it(tmp_path: Path) -> None:
    """The receiver of the forecast does not hear of the full GPU, and neither is that its end."""
    routes = [
        route("forecasts", match=["alertname=GpuMemoryExhaustionSoon"]),
        route("rest", match=["alertname!=GpuMemoryExhaustionSoon"]),
    ]
    stage = Stage(tmp_path / "state", [Recipient("forecasts"), Recipient("rest")], routes)
    stage.show(seen(15.0, SOON), 6 * MINUTE)
    stage.show(seen(23.4, FULL), 20 * MINUTE)
    stage.show(snapshot([gpu(0, used_gib=1.0)], []), 40 * MINUTE)

    ends = [one for one in stage.messages if one.incident is not None and one.incident.news == "ended"]
    assert {one.receiver for one in ends} == {"forecasts", "rest"}
    for message in ends:
        assert message.incident is not None
        assert " ended" in message.incident.briefing.headline
        assert "became full" not in message.incident.briefing.headline
        assert not any("became full" in alert.end_reason for alert in message.alerts)
    (forecast,) = [one.incident.briefing.headline for one in ends if one.receiver == "forecasts" and one.incident]
    assert forecast.startswith(f"RESOLVED node7 GPU 0: memory was running out: embed (pid {PID}) ended")


@pytest.mark.slow
def test_the_cause_is_named_and_not_who_made_room(tmp_path: Path) -> None:
    """A victim ends and makes room; the leaker that filled the GPU levels off later, and that is the end."""
    stage = Stage(tmp_path / "state")
    stage.show(seen(10.0, SOON, other_gib=8.0), 6 * MINUTE)
    stage.show(seen(15.4, FULL, other_gib=8.0), 10 * MINUTE)
    alone = seen(15.4, STOPPED)
    stage.show(alone, 20 * MINUTE)
    stage.show(seen(15.4, OVER), 40 * MINUTE)

    assert stage.heard[-1].news == "ended"
    line = stage.headlines()[-1]
    assert "embed (alice, pid 4242) was leaking memory: growth stopped at 15.4 GiB" in line
    assert "victim" not in line


def ranks(left: tuple[int, ...], used_gib: float, growth: Growth) -> Snapshot:
    """Ranks of one job, each on a GPU of its own."""
    here = [process(PID + each, gpu_index=each, used_gib=used_gib, name="rank", slurm_job="77", process_group=0)
            for each in left]  # fmt: skip
    seen = snapshot([gpu(each, used_gib=used_gib + 0.2 if each in left else 0.3) for each in range(2)], here)
    for each in left:
        seen = grown(seen, PID + each, growth, gpu=each)
    return seen


@pytest.mark.slow
def test_a_forecast_tells_what_ended_the_trouble_on_its_own_gpu(tmp_path: Path) -> None:
    """The rank on the other GPU ends 20 min later: text and time of each are those of its own rank."""
    stage = Stage(tmp_path / "state")
    stage.show(ranks((0, 1), 15.0, SOON), 6 * MINUTE)
    stage.show(ranks((0, 1), 23.3, FULL), 20 * MINUTE)
    stage.show(ranks((1,), 23.3, FULL), 20 * MINUTE)
    began = stage.clock.wall()
    stage.show(ranks((), 0.0, FULL), 20 * MINUTE)

    assert stage.heard[-1].news == "ended"
    forecasts = [one for one in stage.messages[-1].alerts if one.name == "GpuMemoryExhaustionSoon"]
    assert {one.labels["gpu"] for one in forecasts} == {"0", "1"}
    for one in forecasts:
        own = int(one.labels["gpu"])
        assert one.end_reason.startswith(f"rank (pid {PID + own}) ended")
        until = condition_times(one)[1]
        assert until is not None
        assert until == pytest.approx(began - (20 * MINUTE if own == 0 else 0.0), rel=0, abs=MINUTE)
        assert one.ends_at is not None
        assert one.ends_at >= until


@pytest.mark.slow
def test_the_headline_tells_the_last_of_what_ended(tmp_path: Path) -> None:
    """A GPU that was full and became much emptier is 92 % full for an hour: that goes last, and has the time."""
    stage = Stage(tmp_path / "state")
    stage.show(snapshot([gpu(0, used_gib=23.6)], [process(PID, used_gib=23.5)]), 10 * MINUTE)
    stage.show(snapshot([gpu(0, used_gib=22.0)], [process(PID, used_gib=21.9)]), 60 * MINUTE)
    ended = stage.clock.wall()
    stage.show(snapshot([gpu(0, used_gib=10.0)], [process(PID, used_gib=9.9)]), 20 * MINUTE)

    assert stage.heard[-1].news == "ended"
    assert stage.headlines()[-1] == ("RESOLVED node7 GPU 0: memory use was above 90 %: memory back to 10.0 GiB (42 %)")
    last = stage.messages[-1].incident
    assert last is not None
    assert last.ends_at == pytest.approx(ended, rel=0, abs=MINUTE)


@pytest.mark.slow
def test_receivers_are_told_of_the_end_as_it_is_shown(tmp_path: Path) -> None:
    """The leak joined without a message, and is kept for three minutes: the incident has not ended for anybody."""
    stage = Stage(tmp_path / "state")
    soon = replace(SOON, verdict=Verdict.GROWING, evidence=None, evidence_told=())
    stage.show(seen(15.0, soon), 6 * MINUTE)
    stage.show(seen(15.2, SOON), 6 * MINUTE)
    stage.show(seen(15.2, STOPPED), 20 * MINUTE)
    for _ in range(40):
        stage.show(seen(15.2, OVER), 15.0)
        is_over = all(one.ends_at is not None for one in stage.notifier.incidents.values() if one.severity != "none")
        assert (stage.heard[-1].news == "ended") == is_over
    assert stage.heard[-1].news == "ended"


def test_a_forecast_that_comes_true_did_not_slow_down(tmp_path: Path) -> None:
    """In the tick before the GPU counts as full the forecast is 0 s: it became full, and nothing slowed down."""
    stage = Stage(tmp_path / "state")
    stage.show(seen(15.0, SOON), 6 * MINUTE)
    near = seen(23.0, replace(SOON, exhaustion=FULL.exhaustion))
    stage.show(replace(near, growth={**near.growth, MemoryKey("GPU-00000000"): Growth(Verdict.STEADY)}), 30.0)
    shown = [
        stage.endings.with_reason(each.as_alert(Status.FIRING)).end_reason
        for running in stage.engine.rules() if running.states is not None
        for each in running.states.instances if each.is_kept
    ]  # fmt: skip
    assert shown
    assert not any("slowed down" in reason for reason in shown)
