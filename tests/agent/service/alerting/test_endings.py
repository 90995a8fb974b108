"""Why an alert ended, from what was measured when it was true last and what is measured now."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent.core.growth import Growth, GrowthState, MemoryKey, Range, Verdict
from gpuagent.core.hardware import Ecc
from gpuagent.core.identity import ProcessId
from gpuagent.core.metrics.series import series
from gpuagent.core.snapshot import GpuState, NvmlState, ProcessState, Snapshot, XidCount
from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.messages.end_facts import EndedAlert, facts_of
from gpuagent_alerts.messages.end_reasons import reason_by_name
from gpuagent_alerts.messages.transitions import EndReasons, EvaluatedTick, format_quantity
from gpuagent_alerts.promql.series import SeriesIndex
from gpuagent_alerts.remedies.outcome import RemedyEnding, no_remedy
from gpuagent_alerts.states.machine import Change, Transition
from tests.agent.service.alerting.bench import BUSY, CALM, FULL, alerting, config, rules, run
from tests.fakes.readings import BOOT_ID, WALL, absent_gpu, gpu, mig_instance, node, process, snapshot

UUID = "GPU-00000000"
GROWN = Growth(Verdict.LEAKING, slope=Range(1e6, 1e6, 1e6), exhaustion=Range(60.0, 30.0, 90.0))
STOPPED = replace(GROWN, exhaustion=None, state=GrowthState.STOPPED)


def seen(*gpus: Any, processes: Any = (), growth: Growth | None = None, pid: int = 0, **changes: Any) -> Snapshot:
    """A snapshot; `growth` is that of the process `pid`, or of the whole GPU."""
    made = snapshot(list(gpus), list(processes))
    return replace(made, growth={} if growth is None else {MemoryKey(UUID, pid): growth}, **changes)


def reason(
    name: str, before: Snapshot | None, now: Snapshot, *, remedy: RemedyEnding | None = None,
    alive: bool | None = False, value: float = 1.0, wall: float = WALL, **labels: str,
) -> str:  # fmt: skip
    """What an alert's end is put down to."""
    endings = EndReasons(tuple)
    endings.ask(lambda pid, uuid: remedy if (pid, uuid) == ("4242", UUID) else None, lambda _: alive)
    alert = Alert({"alertname": name, "gpu": "0", "uuid": UUID, **labels}, {}, Status.FIRING, WALL - 60, value=value)
    if before is not None:
        endings.explain([Transition(Change.CONTINUES, alert)], EvaluatedTick(before, SeriesIndex.of(()), wall - 5))
    ended = replace(alert, status=Status.RESOLVED, ends_at=wall)
    ((_, explained),) = endings.explain([Transition(Change.ENDED, ended)], EvaluatedTick(now, SeriesIndex.of(()), wall))
    return explained.end_reason


LEAK = "GpuProcessMemoryLeak"
WITH = seen(gpu(0, used_gib=23.0), processes=[process(4242, used_gib=20.0)])
WITHOUT = seen(gpu(0, used_gib=3.0))


def test_a_pause_is_the_reason_of_its_own_end() -> None:
    """Who had paused the agent, and not only that it can read the GPUs again."""
    paused = snapshot([], [], node={"nvml_state": NvmlState.PAUSED, "nvml_reason": "by alice until 10:14 UTC"})
    said = EndReasons(tuple)
    blind = Alert({"alertname": "GpuMonitorBlind", "scope": "node"}, {}, Status.FIRING, WALL - 60)
    said.explain([Transition(Change.CONTINUES, blind)], EvaluatedTick(paused, SeriesIndex.of(()), WALL - 5))
    ended = Transition(Change.ENDED, replace(blind, status=Status.RESOLVED, ends_at=WALL))
    ((_, explained),) = said.explain([ended], EvaluatedTick(WITHOUT, SeriesIndex.of(()), WALL))
    assert explained.end_reason == "measuring was paused (by alice until 10:14 UTC), and has resumed"


@pytest.mark.parametrize("resumed", [False, True])
def test_a_process_that_ended_in_a_pause_is_said_to(resumed: bool) -> None:
    """When it ended nobody saw; one that was measured again after the pause has ended since."""
    labels = {"alertname": LEAK, "gpu": "0", "uuid": UUID, "pid": "4242"}
    alert = Alert(labels, {}, Status.FIRING, WALL - 60)
    paused = snapshot([gpu(0, state=GpuState.BLIND)], [], node={"nvml_state": NvmlState.PAUSED})
    said = EndReasons(tuple)
    said.ask(no_remedy, lambda _: False)
    for shown in (WITH, paused, *([WITH] if resumed else [])):
        said.explain([Transition(Change.CONTINUES, alert)], EvaluatedTick(shown, SeriesIndex.of(()), WALL - 5))
    ended = replace(alert, status=Status.RESOLVED, ends_at=WALL)
    ((_, told),) = said.explain([Transition(Change.ENDED, ended)], EvaluatedTick(WITHOUT, SeriesIndex.of(()), WALL))
    unseen = "" if resumed else " while measuring was paused"
    assert told.end_reason == f"the process ended{unseen}; 20.0 GiB came back"


def test_the_alert_of_a_pause_does_not_say_twice_that_it_was_paused() -> None:
    """Its own text says that, and by whom: the reason says no more than that it has resumed."""
    seen = snapshot([gpu(0)], [])
    paused = replace(seen, node=replace(seen.node, nvml_state=NvmlState.PAUSED, nvml_reason="by alice until 10:14 UTC"))
    labels = {"alertname": "GpuMonitorBlind", "by": "alice", "scope": "node"}
    case = EndedAlert(Alert(labels, {}, Status.FIRING, 1.0), facts_of(labels, paused), seen, 2.0, lambda _: None)
    assert reason_by_name(case).text == "it has resumed"


def test_a_mig_instance_is_not_called_the_gpu() -> None:
    """What became full is the instance."""

    def part(used_gib: float) -> Snapshot:
        inside = process(4242, used_gib=used_gib, instance=1)
        return seen(gpu(0, used_gib=9.9, total_gib=80.0, mig=(mig_instance(1, used_gib),)), processes=[inside])

    said = reason(LEAK, part(9.0), part(9.74), pid="4242", gpu_instance_id="1")
    assert said == "the MIG instance became full"


def test_a_process_that_ended() -> None:
    """Its end is told, with the memory that came back by the GPU's own figures."""
    assert reason(LEAK, WITH, WITHOUT, pid="4242") == "the process ended; 20.0 GiB came back"


@pytest.mark.parametrize("alive", [True, None])
def test_a_process_that_only_left_the_gpu(alive: bool | None) -> None:
    """A process that runs on, or of which nothing is known, is not called ended."""
    assert reason(LEAK, WITH, WITHOUT, pid="4242", alive=alive) == "the process left the GPU; 20.0 GiB came back"


def test_memory_that_a_successor_took_has_come_back() -> None:
    """What was started in its place holds memory of its own; what ran beside it has taken a part of what came back."""
    successor = seen(gpu(0, used_gib=7.0), processes=[process(4300, used_gib=4.0)])
    assert reason(LEAK, WITH, successor, pid="4242") == "the process ended; 20.0 GiB came back"
    beside = seen(gpu(0, used_gib=23.0), processes=[process(4242, used_gib=20.0), process(7, used_gib=1.0)])
    grown = seen(gpu(0, used_gib=7.0), processes=[process(7, used_gib=5.0)])
    assert reason(LEAK, beside, grown, pid="4242") == "the process ended; 16.0 GiB came back"


def test_memory_that_others_took() -> None:
    """What a process held is not called back where the GPU is as full as before."""
    told = reason(LEAK, WITH, seen(gpu(0, used_gib=22.0)), pid="4242")
    assert told == "the process ended; it held 20.0 GiB, and 22.0 GiB is in use now"


def test_a_process_whose_memory_stays() -> None:
    """The driver may go on counting memory for a process that has ended."""
    dead = seen(gpu(0, used_gib=23.0), processes=[process(4242, used_gib=20.0, state=ProcessState.DEAD)])
    assert reason(LEAK, WITH, dead, pid="4242") == "the process ended: the driver went on counting 20.0 GiB for it"


def test_a_pid_that_another_process_has() -> None:
    """A stranger with the same number does not stand for the process of the alert."""
    other = seen(gpu(0, used_gib=4.0), processes=[process(4242, used_gib=1.0, id=ProcessId(BOOT_ID, 4242, 77))])
    assert reason(LEAK, WITH, other, pid="4242") == "the process ended; 20.0 GiB came back"


def test_nobody_is_blamed_while_the_gpu_cannot_be_read() -> None:
    """A process that is not listed because nothing is read has not ended."""
    blind = seen(absent_gpu(0, GpuState.BLIND, "a call hangs"))
    assert reason(LEAK, WITH, blind, pid="4242") == "no longer true"


def test_what_a_remedy_did() -> None:
    """The remedy that ended this process is named, and one about another process is not."""
    ended = RemedyEnding("SIGTERM", 20 * 2**30, 2.0)
    words = "gpuagent terminated it (SIGTERM); 20.0 GiB came back after 2 s"

    assert reason(LEAK, WITH, WITHOUT, pid="4242", remedy=ended) == words
    other = seen(gpu(0, used_gib=23.0), processes=[process(7, used_gib=20.0)])
    assert reason(LEAK, other, WITHOUT, pid="7", remedy=ended) == "the process ended; 20.0 GiB came back"
    named = "python3 (pid 4242) was terminated by gpuagent (SIGTERM); 20.0 GiB came back"
    assert reason("GpuMemoryHigh", WITH, WITHOUT, remedy=ended) == named
    assert reason(LEAK, WITH, WITHOUT, pid="4242", remedy=replace(ended, asked_by="bob (uid 7)")) == (
        "gpuagent terminated it (SIGTERM) as bob (uid 7) asked; 20.0 GiB came back after 2 s"
    )


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("SIGKILL", "gpuagent killed it (SIGKILL)"),
        ("restart_unit", "gpuagent restarted whisper.service"),
        ("release_cache", "gpuagent had it release its cache"),
        ("signal SIGUSR1", "gpuagent acted on it (signal SIGUSR1)"),
    ],
)
def test_each_step_in_words(step: str, words: str) -> None:
    """A step is told as what it did."""
    assert str(RemedyEnding(step, unit="whisper.service")) == words


def test_a_cache_that_was_released() -> None:
    """The one step after which the process is still there."""
    now = seen(gpu(0, used_gib=8.0), processes=[process(4242, used_gib=5.0)])
    told = reason(LEAK, WITH, now, pid="4242", remedy=RemedyEnding("release_cache", 15 * 2**30, 1.0))
    assert told == "gpuagent had it release its cache; 15.0 GiB came back after 1 s"


@pytest.mark.parametrize(
    ("used", "growth", "words"),
    [
        (12.0, Growth(Verdict.STEADY), "memory back to 12.0 GiB"),
        (20.0, Growth(Verdict.LEVELLED_OFF), "growth stopped at 20.0 GiB with 3.8 GiB free"),
        (
            20.0,
            Growth(Verdict.GROWING, exhaustion=Range(18000.0, 1.0, 2.0)),
            "it slowed down, and it goes on, full in 5 h at the earliest",
        ),
        (
            20.0,
            replace(GROWN, exhaustion=None, state=GrowthState.STOPPED),
            "growth stopped at 20.0 GiB with 3.8 GiB free",
        ),
        (20.0, Growth(Verdict.GROWING), "no longer true"),
        (20.0, Growth(Verdict.CACHED), "its tensors stopped growing: what it held beyond them was cache"),
        (23.9, Growth(Verdict.STEADY), "the GPU became full"),
        (20.0, None, "no longer true"),
    ],
)
def test_growth_that_ended(used: float, growth: Growth | None, words: str) -> None:
    """Stopped is said only of what stopped with room to grow, and nothing is said that the detector does not."""
    before = seen(gpu(0, used_gib=20.0), growth=GROWN)
    assert reason("GpuMemoryExhaustionSoon", before, seen(gpu(0, used_gib=used), growth=growth)) == words


@pytest.mark.parametrize(
    ("failed", "words"), [(False, "the driver reports no failed row remapping any more"), (None, "no longer true")]
)
def test_a_row_remapping_that_no_longer_fails(failed: bool | None, words: str) -> None:
    """In words, and not as a number; where the driver does not tell, nothing is said."""
    before = seen(gpu(0, ecc=Ecc(enabled=True, remap_failed=True)))
    assert reason("GpuRowRemapFailed", before, seen(gpu(0, ecc=Ecc(enabled=True, remap_failed=failed)))) == words


def test_a_forecast_that_ended_with_its_process() -> None:
    """The process that grew is named, where its memory came back with it; else it is the memory that is told."""
    growing = Growth(Verdict.GROWING, slope=Range(1e7, 1e6, 1e8))
    before = seen(gpu(0, used_gib=23.0), processes=[process(4242, used_gib=20.0)], growth=growing, pid=4242)

    ended = reason("GpuMemoryExhaustionSoon", before, seen(gpu(0, used_gib=3.0)))
    assert ended == "python3 (pid 4242) ended; 20.0 GiB came back"
    taken = reason("GpuMemoryExhaustionSoon", before, seen(gpu(0, used_gib=15.0)))
    assert taken == "python3 (pid 4242) ended; it held 20.0 GiB, and 15.0 GiB is in use now"
    stays = seen(gpu(0, used_gib=3.0), processes=[process(4242, used_gib=1.0)])
    assert reason("GpuMemoryExhaustionSoon", before, stays) == "memory back to 3.0 GiB"


def test_a_level_that_did_not_fall() -> None:
    """A rule that ends for another reason, such as a server that preallocates, is not put down to memory."""
    assert reason("GpuMemoryHigh", WITH, WITH) == "no longer true"


@pytest.mark.parametrize(
    ("name", "xid_age", "initializations", "words"),
    [
        ("GpuXidWarning", 901.0, 1, "no new Xid 79 for 15 min; the GPU was not repaired"),
        ("GpuXidWarning", 901.0, 2, "no new Xid 79 for 15 min"),
        ("GpuXidWarning", None, 2, "nothing more of it after NVML was initialized again"),
        ("GpuXidWarning", None, 1, "no longer true"),
        ("GpuXidCritical", 901.0, 2, "the GPU answers after NVML was initialized again"),
        ("GpuXidCritical", 901.0, 1, "the driver no longer shows it as open; a reset or a reload was not seen"),
    ],
)
def test_an_xid_that_is_over(name: str, xid_age: float | None, initializations: int, words: str) -> None:
    """Time repairs nothing, and says so; what takes a repair ends by that alone."""
    xids = () if xid_age is None else (XidCount(0, UUID, 79, 1, WALL - xid_age),)
    before = seen(gpu(0), node=node(nvml_initializations=1))
    now = seen(gpu(0), node=node(nvml_initializations=initializations), xids=xids)
    assert reason(name, before, now, xid="79") == words


def test_a_gpu_that_is_back() -> None:
    """What happened between is told where it is known: a reboot, or a new initialization."""
    lost = seen(absent_gpu(0, GpuState.LOST, "GPU_IS_LOST"), node=node(nvml_initializations=1))

    assert reason("GpuLost", lost, seen(gpu(0), node=node(nvml_initializations=1))) == "the GPU answers again"
    again = seen(gpu(0), node=node(nvml_initializations=2))
    assert reason("GpuLost", lost, again) == "the GPU answers again after NVML was initialized again"
    booted = seen(gpu(0), node=node(boot_id="another", nvml_initializations=1))
    assert reason("GpuLost", lost, booted) == "the GPU answers again after a reboot"
    assert reason("GpuLost", lost, seen()) == "the driver no longer lists the GPU"
    # An agent that was started again has not seen the reboot, and remembers the repair.
    repaired = seen(gpu(0, repair="it answers again after a reboot"), node=node(nvml_initializations=1))
    assert reason("GpuLost", lost, repaired) == "the GPU answers again after a reboot"


@pytest.mark.parametrize("name", ["GpuLost", "GpuXidCritical"])
def test_a_gpu_that_was_replaced(name: str) -> None:
    """The end names the GPU that answers at its PCI address, and not only that the driver lists it no more."""
    lost = seen(absent_gpu(0, GpuState.LOST, "GPU_IS_LOST"))
    new = replace(gpu(0).identity, uuid="GPU-new", name="NVIDIA H100")
    told = reason(name, lost, seen(gpu(0, identity=new, replaces=UUID)), xid="79")
    assert told == "it was replaced by NVIDIA H100 (GPU-new) at its PCI address"


def test_a_monitor_that_sees_again() -> None:
    """Of one GPU, and of the node."""
    blind = seen(absent_gpu(0, GpuState.BLIND, "a call hangs"))

    assert reason("GpuMonitorBlind", blind, seen(gpu(0))) == "the agent can read it again"
    ready = seen(gpu(0), node=node(nvml_state=NvmlState.READY))
    assert reason("GpuMonitorBlind", blind, ready, uuid="", gpu="") == "the agent can read the GPUs again"


def test_a_rule_of_ones_own_tells_the_value_now(tmp_path: Path) -> None:
    """For a rule of which nothing is known: what it compares with its threshold, in its unit."""

    async def test() -> None:
        async with alerting(config(tmp_path, None), rules(FULL), ManualClock(), tmp_path / "s") as bench:
            await bench.show(BUSY)
            (firing,) = bench.alerting.firing()
            index = SeriesIndex.of(series(CALM, CALM.clock_seconds))
            ended = Transition(Change.ENDED, replace(firing, status=Status.RESOLVED, ends_at=WALL))
            ((_, told),) = bench.alerting.endings.explain([ended], EvaluatedTick(CALM, index, WALL))
            assert told.end_reason == "no longer true: 8 % now"

    run(test)


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [
        ("gpuagent_x_bytes", 2.0**31, "2.0 GiB"), ("x_ratio", 0.5, "50 %"), ("x_seconds", 495.0, "8 min 15 s"),
        ("x_celsius", 61.25, "61.25"), ("x_bytes", -1.0, "-1"), ("", 3.0, "3"),
    ],
)  # fmt: skip
def test_a_value_in_its_unit(metric: str, value: float, text: str) -> None:
    """The unit is what the metric's name ends with."""
    assert format_quantity(metric, value) == text


def test_a_rule_that_was_removed(tmp_path: Path) -> None:
    """A reload without the rule ends its alerts, and says that it was the rule."""

    async def test() -> None:
        async with alerting(config(tmp_path, None), rules(FULL), ManualClock(), tmp_path / "s") as bench:
            await bench.show(BUSY)
            assert bench.alerting.firing()
            ((_, ended),) = bench.alerting.engine.reload((), WALL)
            assert ended.end_reason == "the rule was removed"

    run(test)


def test_the_times_of_an_end_are_the_conditions(tmp_path: Path) -> None:
    """Neither `for` nor `keep_firing_for` is part of "from ... to ..."."""

    async def test() -> None:
        kept = rules(f"{FULL}, for: 10s, keep_firing_for: 20s")
        async with alerting(config(tmp_path, None), kept, clock := ManualClock(), tmp_path / "s") as bench:
            await bench.show(BUSY)
            began = clock.wall()
            await bench.show(BUSY, times=3)
            await bench.show(CALM)
            ceased = clock.wall()
            await bench.show(CALM, times=2)
            (kept_alert,) = bench.alerting.firing()
            assert (kept_alert.true_from, kept_alert.true_until) == (began, ceased)

    run(test)
