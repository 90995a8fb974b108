"""Alerts about growth after a restart of the agent: they stay until it has measured, and end for what really ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.core.growth import Evidence, Growth, GrowthState, MemoryKey, Range, Verdict
from gpuagent.core.snapshot import CollectorRun, GpuState, NvmlState, Snapshot
from gpuagent.core.units import GIB
from gpuagent_alerts.alert import News
from gpuagent_alerts.notify.incident_record import incident_of
from gpuagent_alerts.states.instance import State
from tests.agent.service.alerting.stage import TICK_SECONDS, Stage, grown, leaking
from tests.fakes.readings import absent_gpu, gpu, identity, mig_instance, process, snapshot

MINUTE = 60.0
PID = 4242
EMPTY = snapshot([gpu(0, used_gib=1.0)], [])
LEAKING = leaking(Evidence.BALANCED, full_in=20 * MINUTE)


def seen(used_gib: float, growth: Growth) -> Snapshot:
    """One process, beside nothing."""
    return grown(snapshot([gpu(0, used_gib=used_gib + 1)], [process(PID, used_gib=used_gib)]), PID, growth)


def restarted(path: Path) -> Stage:
    """A node on which a leak was told and the agent was killed."""
    stage = Stage(path / "state")
    stage.show(seen(8.0, LEAKING), 6 * MINUTE)
    assert stage.heard
    stage.kill()
    return stage


def run(stage: Stage, minutes: float, gib_per_hour: float, verdict: Verdict, start: float = 8.5) -> None:
    """Let the process go on, of which the history was lost."""
    passed = 0.0
    while passed < minutes * MINUTE:
        passed += TICK_SECONDS
        stage.show(seen(start + gib_per_hour * passed / 3600, Growth(verdict)))


@pytest.mark.slow
@pytest.mark.parametrize("verdict", [Verdict.LEARNING, Verdict.STEADY])
def test_what_may_still_leak_is_not_over(tmp_path: Path, verdict: Verdict) -> None:
    """Its history is lost, and the detector knows nothing or says steady: the alerts stay as they were known last."""
    stage = restarted(tmp_path)
    before = len(stage.heard)
    run(stage, 14.0, 20.0, verdict)
    firing = [
        each for running in stage.engine.rules() if running.states is not None
        for each in running.states.instances if each.state is State.FIRING and each.labels.get("severity") != "none"
    ]  # fmt: skip
    assert {each.labels["alertname"] for each in firing} == {"GpuProcessMemoryLeak", "GpuMemoryExhaustionSoon"}
    assert all(each.frozen and not each.is_kept for each in firing)
    stage.show(seen(13.2, LEAKING), 5 * MINUTE)

    assert len(stage.heard) == before
    assert {one.key for one in stage.heard} == stage.keys()
    assert len(stage.keys()) == 1


def test_fresh_figures_after_a_restart_are_not_told_as_old(tmp_path: Path) -> None:
    """Its alerts wait to be measured anew: the line says so, and when they were measured, until there is a pace."""
    stage = restarted(tmp_path)
    run(stage, 2.0, 20.0, Verdict.LEARNING)
    (line,) = _lines(stage)
    assert line.endswith("(last known 2 min 15 s ago: gpuagent was started again and is measuring its growth anew)"), (
        line
    )
    slope = 20 * GIB / 3600
    stage.show(seen(9.2, Growth(Verdict.GROWING, slope=Range(slope, slope, slope), state=GrowthState.RISING)), MINUTE)
    (line,) = _lines(stage)
    assert "20.0 GiB/h" in line
    assert "last known" not in line


def _lines(stage: Stage) -> list[str]:
    """Return the line of each incident that goes on, as of now."""
    firing = stage.firing()
    own = [(one, [each for each in firing if each.fingerprint in one.members])
           for one in stage.notifier.incidents.values() if one.ends_at is None]  # fmt: skip
    return [stage.briefings.headline(incident_of(one, News.BEGAN), alerts) for one, alerts in own
            if any(each.name == "GpuProcessMemoryLeak" for each in alerts)]  # fmt: skip


@pytest.mark.slow
def test_a_killed_agent_without_histories_tells_one_story(tmp_path: Path) -> None:
    """The leak goes on to the wall: one key, a message for the full GPU, one for the end, and none for the restart."""
    stage = restarted(tmp_path)
    run(stage, 6.0, 60.0, Verdict.LEARNING)
    stage.show(seen(15.0, leaking(Evidence.BALANCED, full_in=4 * MINUTE)), 4 * MINUTE)
    stage.show(seen(22.9, leaking(Evidence.BALANCED, full_in=0.0)), 10 * MINUTE)
    stage.show(EMPTY, 20 * MINUTE)

    assert [one.news for one in stage.heard] == ["began", "worsened", "ended"]
    assert "full now" in stage.headlines()[1]
    assert "the process ended" in stage.headlines()[2]
    assert len(stage.keys()) == 1


@pytest.mark.slow
def test_what_has_stopped_is_over_once_that_was_measured(tmp_path: Path) -> None:
    """Some minutes of flat memory and a verdict end it, and the reason is what was measured."""
    stage = restarted(tmp_path)
    run(stage, 2.0, 0.0, Verdict.STEADY)
    assert stage.heard[-1].news != "ended"
    run(stage, 30.0, 0.0, Verdict.STEADY)

    assert stage.heard[-1].news == "ended"
    assert ": growth stopped at 8.5 GiB with 14.2 GiB free" in stage.headlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("alive", "how"), [(False, "ended"), (None, "left the GPU")])
def test_a_leaker_that_went_meanwhile_is_the_reason_of_each_end(tmp_path: Path, alive: bool | None, how: str) -> None:
    """One reason in the headline and in every alert, also in one that names the GPU alone, however late it is told."""
    stage = restarted(tmp_path)
    stage.is_alive = alive
    stage.show(EMPTY, 2 * MINUTE)
    stage.is_alive = None
    stage.show(EMPTY, 30 * MINUTE)

    assert stage.heard[-1].news == "ended"
    assert f"{how} while gpuagent was not running" in stage.headlines()[-1]
    reasons = {alert.name: alert.end_reason for alert in stage.messages[-1].alerts}
    assert reasons == {
        "GpuProcessMemoryLeak": f"the process {how} while gpuagent was not running",
        "GpuMemoryExhaustionSoon": f"python3 (pid {PID}) {how} while gpuagent was not running",
    }


@pytest.mark.slow
def test_a_restart_with_its_histories_holds_nothing_back(tmp_path: Path) -> None:
    """What still leaks by a kept history fires on, measured, and what levelled off ends as ever."""
    stage = restarted(tmp_path)
    stage.show(seen(8.5, LEAKING), MINUTE)
    assert not any(
        each.frozen for running in stage.engine.rules() if running.states is not None
        for each in running.states.instances
    )  # fmt: skip
    stage.kill()
    over = seen(8.5, Growth(Verdict.LEVELLED_OFF))
    stage.show(over, 15 * MINUTE)

    assert stage.heard[-1].news == "ended"


REPLACED = gpu(0, used_gib=1.0, identity=identity(0, uuid="GPU-another"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "after",
    [
        snapshot([REPLACED], []),
        snapshot([REPLACED], [process(PID, used_gib=2.0)._replace(gpu_uuid="GPU-another")]),
        snapshot([REPLACED, absent_gpu(1, GpuState.LOST, identity=identity(1, uuid=""))], []),
    ],
    ids=["replaced", "its pid is on the other GPU", "beside a GPU that never tells its name"],
)
def test_growth_on_a_gpu_that_is_no_more_is_over(tmp_path: Path, after: Snapshot) -> None:
    """The board was replaced while the agent was off: each of its alerts ends, and says why."""
    stage = restarted(tmp_path)
    stage.show(after, 30 * MINUTE)

    assert [one.news for one in stage.heard if "Leak" in one.alerts] == ["began", "ended"]
    assert any("was leaking memory: the driver no longer lists the GPU" in one for one in stage.headlines())
    assert not any(one.labels.get("uuid") == "GPU-00000000" for one in stage.firing())


@pytest.mark.slow
@pytest.mark.parametrize(
    "after",
    [
        snapshot([], [], node={"nvml_state": NvmlState.FAILED}),
        snapshot([absent_gpu(0, GpuState.GONE)], []),
        snapshot([absent_gpu(0, GpuState.LOST)], []),
        snapshot([absent_gpu(0, GpuState.LOST, identity=identity(0, uuid=""))], []),
    ],
    ids=["no driver", "vanished", "lost", "lost before it told its name"],
)
def test_growth_on_a_gpu_that_is_missing_is_not_over(tmp_path: Path, after: Snapshot) -> None:
    """What cannot be read is missing: it ends nothing."""
    stage = restarted(tmp_path)
    stage.show(after, 60 * MINUTE)

    assert not any(one.news == "ended" and "Leak" in one.alerts for one in stage.heard)


@pytest.mark.parametrize("is_read", [True, False])
def test_growth_in_a_mig_instance_that_is_no_more_is_over(tmp_path: Path, *, is_read: bool) -> None:
    """MIG mode was turned off while the agent was off; where the instances cannot be read, that is not known."""
    instance = mig_instance(1, used_gib=8.0)
    before = snapshot([gpu(0, used_gib=9.0, mig=(instance,))], [process(PID, used_gib=8.0, instance=1)])
    stage = Stage(tmp_path / "state")
    growth = {MemoryKey("GPU-00000000", pid, 1): LEAKING for pid in (0, PID)}
    stage.show(replace(before, growth=growth), 6 * MINUTE)
    assert stage.heard
    stage.kill()
    stage.show(snapshot([gpu(0, used_gib=1.0, runs=(CollectorRun("mig", is_read, 0.001),))], []), 12 * MINUTE)

    kept = {one.name for one in stage.firing() if "Memory" in one.name and not one.is_kept}
    assert kept == (set() if is_read else {"GpuMemoryExhaustionSoon", "GpuProcessMemoryLeak"})
    assert (stage.heard[-1].news == "ended") is is_read


def forecast(full_in: float, gib_per_hour: float) -> Growth:
    """Growth that is no leak yet, by a history that has outlived the restart."""
    pace = gib_per_hour * GIB / 3600
    return Growth(
        Verdict.GROWING, slope=Range(pace, pace, pace), since_seconds=1.0, suspected=True, state=GrowthState.RISING,
        exhaustion=Range(full_in, full_in / 2, 1.5 * full_in),
    )  # fmt: skip


def test_a_forecast_after_a_restart_is_measured_and_ends(tmp_path: Path) -> None:
    """No process is called leaking: what it grows by is known all the same, and the alert says and ends by that."""
    stage = Stage(tmp_path / "state")
    stage.show(seen(8.0, forecast(20 * MINUTE, 40.0)), 6 * MINUTE)
    stage.kill()
    stage.show(seen(8.5, forecast(18 * MINUTE, 40.0)), MINUTE)
    (alert,) = (one for one in stage.firing() if one.name == "GpuMemoryExhaustionSoon")
    assert not alert.unmeasured_seconds
    assert "18 min" in alert.annotations["summary"]
    stage.show(seen(8.6, forecast(600 * MINUTE, 0.8)), 15 * MINUTE)

    assert [one.news for one in stage.heard] == ["began", "ended"]


def test_growth_that_is_no_leak_by_what_holds_now_is_over_after_a_restart(tmp_path: Path) -> None:
    """The agent was started with another sensitivity: by the history that was kept it ends as without a restart."""
    stage = restarted(tmp_path)
    stage.show(seen(8.5, replace(forecast(600 * MINUTE, 0.5), exhaustion=None)), 15 * MINUTE)

    assert stage.heard[-1].news == "ended"
    assert "no leak by the sensitivity that now holds" in stage.headlines()[-1]
