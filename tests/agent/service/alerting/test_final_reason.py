"""The end of an incident says what ended it, and not what ended one of its alerts on the way there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpuagent.core.growth import Evidence, Growth, GrowthState, MemoryKey, Verdict
from gpuagent.core.snapshot import Snapshot
from gpuagent_alerts.alert import Status
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


def test_a_leak_that_levels_off_is_the_reason_of_its_forecast(tmp_path: Path) -> None:
    """The forecast went first, for a reason that is none; the leak's own end is told with both."""
    stage = Stage(tmp_path / "state")
    stage.show(seen(10.0, SOON), 6 * MINUTE)
    stage.show(seen(15.0, STOPPED), 20 * MINUTE)
    stage.show(seen(15.0, OVER), 30 * MINUTE)

    assert stage.heard[-1].news == "ended"
    assert "growth stopped at 15.0 GiB with " in stage.headlines()[-1]
    for alert in stage.messages[-1].alerts:
        assert "growth stopped at 15.0 GiB with " in alert.end_reason


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
