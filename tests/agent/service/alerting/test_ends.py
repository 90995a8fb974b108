"""When an incident ends and what is said of it, message by message: what is true now, and what is only kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.core.growth import Evidence, Growth, Verdict
from gpuagent.core.snapshot import GpuState, Snapshot, XidCount
from gpuagent_alerts.notify.routes import Recipient
from gpuagent_alerts.notify.state import GroupKey, NotificationState, save_notification_states
from tests.agent.service.alerting.stage import Stage, grown, leak, leaking
from tests.alerts.notify.parts import Route
from tests.fakes.readings import absent_gpu, gpu, process, snapshot

MINUTE, HOUR = 60.0, 3600.0
PID = 4242
EACH_MINUTE = [Route(("slack",), repeat_interval=MINUTE)]
FLEET = Recipient("slack", one_by_one=True, everything=True, repeat_seconds=MINUTE, resolved_for_seconds=5 * MINUTE)


def node(used_gib: float, *, lives: bool = True) -> Snapshot:
    """One GPU of 24 GiB, with the process that holds nearly all of what is used."""
    return snapshot([gpu(0, used_gib=used_gib)], [process(PID, used_gib=used_gib - 1, name="serve")] if lives else [])


def full() -> Snapshot:
    """A leak that has come to the wall."""
    return grown(node(23.9), PID, leaking(Evidence.BALANCED, full_in=1.0))


@pytest.mark.slow
def test_a_process_that_ends_ends_its_incident_at_once(tmp_path: Path) -> None:
    """Not one reminder after it, and the end names who ended and what came back."""
    stage = Stage(tmp_path / "state", routes=EACH_MINUTE)
    stage.show(full(), 5 * MINUTE)
    before = len(stage.heard)
    stage.show(node(1, lives=False))
    stage.show(node(1, lives=False), HOUR)

    assert [one.news for one in stage.heard[before:]] == ["ended"]
    assert stage.headlines()[-1] == (
        "RESOLVED node7 GPU 0: serve (alice, pid 4242) was leaking memory: the process ended; 22.9 GiB came back"
    )


@pytest.mark.slow
def test_a_job_that_ends_ends_its_incident_at_once(tmp_path: Path) -> None:
    """Six ranks on six full GPUs: nothing but one end, however often reminders are due."""
    stage = Stage(tmp_path / "state", routes=EACH_MINUTE)
    gpus = [gpu(each, used_gib=23.9) for each in range(6)]
    ranks = [process(100 + each, gpu_index=each, used_gib=22.0, slurm_job="77") for each in range(6)]
    seen = snapshot(gpus, ranks)
    for each in range(6):
        seen = grown(seen, 100 + each, leaking(Evidence.BALANCED, full_in=1.0), gpu=each)
    stage.show(seen, 10 * MINUTE)
    before = len(stage.heard)
    stage.show(snapshot([gpu(each, used_gib=0.0) for each in range(6)], []), HOUR)

    assert [one.news for one in stage.heard[before:]] == ["ended"]
    assert stage.messages[-1].incident is not None
    assert "came back" in stage.messages[-1].incident.briefing.end_reason


def test_a_steady_holder_that_ends_is_named(tmp_path: Path) -> None:
    """Nobody leaked: the GPU was full, and is not, as a process ended that held most of it."""
    stage = Stage(tmp_path / "state")
    stage.show(node(23.9), 5 * MINUTE)
    stage.show(node(1, lives=False))

    assert stage.headlines()[-1] == "RESOLVED node7 GPU 0: memory was full: serve (pid 4242) ended; 22.9 GiB came back"


@pytest.mark.slow
def test_a_level_that_fell_is_waited_for_as_its_own_rule_says(tmp_path: Path) -> None:
    """Three minutes for a full GPU, whatever keeps longer; nothing is reminded of, as nothing is true."""
    stage = Stage(tmp_path / "state", routes=EACH_MINUTE)
    stage.show(grown(node(23.9), PID, leaking(Evidence.BALANCED, full_in=1.0)), 5 * MINUTE)
    before, fell = len(stage.heard), stage.clock.wall()
    stage.show(node(8), 3 * MINUTE)
    assert stage.heard[before:] == []
    stage.show(node(8), HOUR)

    (ended,) = stage.messages[before:]
    assert ended.incident is not None
    assert [one.news for one in stage.heard[before:]] == ["ended"]
    assert ended.incident.ends_at == pytest.approx(fell, abs=15.0), "when it ceased to be true, not when it was told"
    assert ended.incident.briefing.end_reason == "memory back to 7.0 GiB"


def test_what_is_only_kept_is_listed_in_the_past_tense(tmp_path: Path) -> None:
    """A reminder of what is still true has it as ending, and its own severity and headline are of what is true."""
    stage = Stage(tmp_path / "state", routes=EACH_MINUTE)
    stage.show(node(23.9), 6 * MINUTE)
    stage.show(node(22.5), 2 * MINUTE)

    reminder = stage.messages[-1]
    assert stage.heard[-1].alerts == "MemoryHigh/0 ~MemoryFull/0"
    assert reminder.incident is not None
    assert (str(reminder.incident.news), reminder.incident.severity) == ("reminder", "warning")
    assert stage.headlines()[-1] == "WARNING node7 GPU 0: 94 % of memory in use"


def test_since_is_that_of_the_condition(tmp_path: Path) -> None:
    """From the first second at which it was true; of an incident that begins again, since it did."""
    stage = Stage(tmp_path / "state")
    begun = stage.clock.wall()
    stage.show(node(22.5), 6 * MINUTE)
    first = stage.messages[-1].incident
    assert first is not None
    assert first.starts_at == pytest.approx(begun, abs=15.0)
    assert next(iter(stage.notifier.incidents.values())).starts_at == first.starts_at

    stage.show(node(2), 5 * MINUTE)
    again = stage.clock.wall()
    stage.show(node(22.5), 6 * MINUTE)
    second = stage.messages[-1].incident
    assert second is not None
    assert (str(second.news), second.key) == ("began", first.key)
    assert second.starts_at == pytest.approx(again, abs=15.0)


def test_a_gpu_that_answers_after_a_new_initialization(tmp_path: Path) -> None:
    """That is no level which may rise again: its end is told at once."""
    stage = Stage(tmp_path / "state")
    before = snapshot([gpu(0), gpu(1)], node={"nvml_initializations": 1})
    lost = absent_gpu(0, GpuState.LOST, "GPU is lost")
    stage.show(before, MINUTE)
    stage.show(snapshot([lost, gpu(1)], node={"nvml_initializations": 1}), 5 * MINUTE)
    stage.show(snapshot([gpu(0), gpu(1)], node={"nvml_initializations": 2}))

    assert stage.told() == ["began critical: Lost/0", "ended critical: -Lost/0"]
    assert stage.headlines()[-1].endswith("the GPU answers again after NVML was initialized again")


def test_a_gpu_that_is_lost_again_within_its_keep_time(tmp_path: Path) -> None:
    """Without a new initialization it may go as it came: one incident, and no end in between."""
    stage = Stage(tmp_path / "state")
    lost = snapshot([absent_gpu(0, GpuState.LOST, "GPU is lost"), gpu(1)])
    for _ in range(4):
        stage.show(lost, 2 * MINUTE)
        stage.show(snapshot([gpu(0), gpu(1)]), 2 * MINUTE)

    assert stage.told() == ["began critical: Lost/0"]


def test_a_reminder_waits_until_it_is_true_again(tmp_path: Path) -> None:
    """None goes out while nothing is true; one that became due meanwhile goes out when it is."""
    stage = Stage(tmp_path / "state", routes=[Route(("slack",), repeat_interval=5 * MINUTE)])
    stage.show(node(23.9), 5 * MINUTE)
    stage.show(node(8), 2 * MINUTE)
    assert [one.news for one in stage.heard] == ["began"]
    stage.show(node(23.9), MINUTE)
    assert [one.news for one in stage.heard] == ["began", "reminder"]


@pytest.mark.slow
@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
def test_what_a_full_gpu_muted_is_not_released_by_its_end(tmp_path: Path, grouped: bool, kill: bool) -> None:
    """To an Alertmanager, and on a route that groups, what was muted and is only kept ends with what muted it."""
    if grouped:
        stage = Stage(tmp_path / "state", routes=[Route(("slack",), group_by=("gpu",))])
    else:
        stage = Stage(tmp_path / "state", recipients=[FLEET])
    stage.show(full(), 8 * MINUTE)
    # The forecast and the leak hold for two minutes longer than the full GPU, and are kept for longer, too.
    stage.show(grown(node(20), PID, leaking(Evidence.BALANCED, full_in=10 * MINUTE)), 2 * MINUTE)
    if kill:
        stage.kill()
    ticks: list[list[str]] = []
    for _ in range(60):
        heard = len(stage.heard)
        stage.show(node(8))
        ticks.append(" ".join(one.alerts for one in stage.heard[heard:]).split())

    end = next(place for place, told in enumerate(ticks) if "-MemoryFull/0" in told)
    released = [one for told in ticks[end:] for one in told if "Exhaustion" in one or "High" in one]
    assert [one for one in released if not one.startswith("-")] == []


@pytest.mark.slow
def test_an_xid_and_a_full_gpu_are_muted_by_a_loss_and_not_released_by_its_end(tmp_path: Path) -> None:
    """What was true before the loss, and is not after it, is told to nobody when the GPU is back."""
    stage = Stage(tmp_path / "state", recipients=[FLEET])
    stage.show(node(23.9), 8 * MINUTE)
    before = len(stage.heard)
    at = stage.clock.wall()
    xids = (XidCount(0, "GPU-00000000", 79, 1, at),)
    lost = replace(absent_gpu(0, GpuState.LOST, "GPU is lost"), unrepaired_xids=xids)
    stage.show(snapshot([lost], xids=xids, node={"nvml_initializations": 1}), 10 * MINUTE)
    stage.show(snapshot([gpu(0, used_gib=1.0)], [], xids=xids, node={"nvml_initializations": 2}), 20 * MINUTE)

    lines = [one.alerts for one in stage.heard[before:]]
    back = next(place for place, line in enumerate(lines) if line == "-Lost/0")
    assert not [line for line in lines[back:] if "Memory" in line and not line.startswith("-")]


def test_a_gap_in_readings_does_not_shorten_how_long_an_alert_is_kept(tmp_path: Path) -> None:
    """What was told, and is not true right after the gap, is kept for as long as its rule says."""
    stage = Stage(tmp_path / "state")
    leaks = leak(12, Evidence.BALANCED)
    stage.show(leaks, 5 * MINUTE)
    stage.show(replace(leaks, gpus=(absent_gpu(0, GpuState.BLIND, "a call is stuck"),), growth={}), 6 * MINUTE)
    stage.show(grown(node(12), PID, Growth(Verdict.STEADY)), MINUTE)
    assert "ProcessMemoryLeak" not in " ".join(one.alerts for one in stage.heard if one.news == "ended")
    stage.show(leaks, 5 * MINUTE)
    assert [one.news for one in stage.heard if "ProcessMemoryLeak" in one.alerts] == ["began"]


@pytest.mark.slow
def test_an_upgrade_from_before_there_were_incidents(tmp_path: Path) -> None:
    """What was told one by one is not told again: its end is told where its beginning was, once."""
    stage = Stage(tmp_path / "state")
    stage.show(node(22.5), 6 * MINUTE)
    stage.show(node(23.9), MINUTE)
    ((key, told),) = stage.notifier._told.items()
    with stage.store.transaction():
        stage.store.execute("DELETE FROM incidents")
        stage.store.execute("DELETE FROM told")
        for fingerprint, one in told.alerts.items():
            group = f'{{node="node7"}}:{one.alert.name}:{fingerprint}'
            save_one(stage, key.receiver, group, told, fingerprint)
    stage.kill()
    before = len(stage.heard)
    stage.show(node(23.9), HOUR)
    stage.show(node(1, lives=False), HOUR)

    assert sorted(one.alerts for one in stage.heard[before:]) == ["-MemoryFull/0", "-MemoryHigh/0"]


def save_one(stage: Stage, receiver: str, group: str, told: NotificationState, fingerprint: str) -> None:
    """Write what an older version wrote of one alert."""
    old = replace(told, alerts={fingerprint: told.alerts[fingerprint]}, incident=None)
    save_notification_states(stage.store, {GroupKey(receiver, group): old})
