"""One verdict, one forecast, one severity: every surface says the same at the same tick."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.core.growth import Growth, GrowthState, Verdict
from gpuagent.core.snapshot import Pause
from gpuagent.core.units import format_bytes, parse_duration
from gpuagent.driver.nvml.events import XidWatcher
from gpuagent_alerts.leak.sensor import LeakDetection
from gpuagent_alerts.messages.briefing_inputs import BLIND
from gpuagent_alerts.states.machine import Change
from gpuagent_alerts.store.database import Store
from gpuagent_simulator.abi import Code
from gpuagent_simulator.faults import FaultKind
from gpuagent_simulator.scenario import shipped_scenarios
from tests.alerts.leak.node import HOUR, Node, node, run
from tests.alerts.leak.surfaces import Told, disagreements, told
from tests.alerts.notify.outbox.parts import SteppingClock
from tests.fakes.rig import BOOT_ID

PID = 5_000_000
FORECAST = "GpuMemoryExhaustionSoon"
"""It hands over to GpuMemoryFull."""
ABOUT_MEMORY = {"GpuProcessMemoryLeak", "GpuMemoryLeak", FORECAST, "GpuMemoryFull"}


def scenario(memory: str, more: str = "") -> str:
    """One process on one GPU of 80 GiB, and whoever else."""
    return f"""\
gpus:
  - model: h100
    memory: {{total: 80GiB, base_used: 400MiB}}
    processes:
      - {{name: serve, user: ml, cgroup: /system.slice/serve.service, pid: {PID}, age: 0s, memory: {memory}}}
{more}
"""


def compare(one: Node) -> Told:
    """Ask every surface, and fail where two differ."""
    assert one.snapshot is not None
    said = told(one.snapshot, one.engine, one.stage.clock.now(), one.told_of())
    differ = disagreements(said, one.snapshot)
    assert not differ, f"after {one.seconds:.0f} s:\n" + "\n".join(differ)
    return said


async def walk(one: Node, seconds: float, step: float = 15.0, every: int = 4) -> Told:
    """Let the story go on until then, and compare now and then, and at its end."""
    ticks = 0
    while one.seconds < seconds - 0.001:
        await one.tick(min(step, seconds - one.seconds))
        ticks += 1
        if ticks % every == 0:
            compare(one)
    return compare(one)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in shipped_scenarios() if name != "hang"])
def test_every_scenario(name: str) -> None:
    """Whatever happens in it, at every tick of its first minutes: when which event shows makes no difference."""

    async def test() -> None:
        async with node(name) as one:
            for _ in range(40 if name != "crowd" else 8):
                await one.tick(5.0)
                compare(one)

    run(test)


@pytest.mark.slow
@pytest.mark.parametrize("step", [-7200.0, 7200.0])
def test_a_wall_clock_that_is_set(step: float) -> None:
    """How long something lasts is no matter of the wall clock: growth, processes and Xids are as old as before."""

    async def test() -> None:
        async with node(scenario("{shape: ramp, start: 20GiB, rate: 8MiB, after: 1m}"), clock=SteppingClock()) as one:
            watcher = one.stage.monitor._xids
            assert isinstance(watcher, XidWatcher)
            watcher.record(0, (await one.tick()).gpus[0].identity.uuid, 48)
            before = _durations(await walk(one, 3000))
            clock = one.stage.clock
            assert isinstance(clock, SteppingClock)
            clock.step(step)
            await one.tick(15.0)
            after = _durations(compare(one))
            assert len(before) == 3
            assert after == [pytest.approx(seconds + 15.0, abs=3.0) for seconds in before]

    run(test)


def _durations(said: Told) -> list[float]:
    """How old the growth, the process and the Xid are said to be."""
    (one,) = said.status["processes"]
    (xid,) = [each["text"] for each in said.status["problems"] if each["kind"] == "xid"]
    ago = xid.partition("Xid 48 ")[2].partition(" ago")[0].replace("min", "m").replace(" ", "")
    return [said.status["time_seconds"] - one["growth_since_seconds"], one["age_seconds"], parse_duration(ago)]


@pytest.mark.slow
def test_a_pause_in_a_leak() -> None:
    """It is a warning, with who asked and until when on every surface, and critical once it lasts longer than that."""

    async def test() -> None:
        async with node(scenario("{shape: ramp, start: 20GiB, rate: 8MiB, after: 1m}")) as one:
            await walk(one, 1800)
            by_alice = "by alice until 2026-11-27 14:37 UTC"
            one.stage.monitor.pause(by_alice, Pause("alice", one.stage.clock.now() + 600))
            for seconds, severity, code in ((300, "warning", 1), (900, "critical", 2)):
                while one.seconds < 1800 + seconds:
                    await one.tick(15.0)
                    said = compare(one)
                (problem,) = [each for each in said.status["problems"] if each["kind"] == "nvml_paused"]
                fires = {alert.labels["severity"] for alert in said.firing if alert.labels["alertname"] == BLIND}
                assert (problem["severity"], said.check[0]) == (severity, code)
                assert severity in fires
                assert fires <= {"warning", severity}
                for text in (said.screen, said.html, said.check[1]):
                    assert f"measuring is paused {by_alice}" in " ".join(text.split())
            one.stage.monitor.resume()
            await one.tick(15.0)
            assert "nvml_paused" not in {each["kind"] for each in compare(one).status["problems"]}

    run(test)


@pytest.mark.slow
def test_a_gpu_that_is_lost_during_a_leak() -> None:
    """What was known of the leak is told with its age in every line, and never as what is so now."""

    async def test() -> None:
        async with node(scenario("{shape: ramp, start: 10GiB, rate: 24MiB, after: 1m}")) as one:
            await walk(one, 1800)
            one.stage.fail(FaultKind.LOST, gpu=0)
            said = await walk(one, 2100, every=2)
            (line,) = [each.headline for each in said.incidents if each.record.labels.get("process")]
            assert line.endswith(" (last known 5 min ago: the GPU is lost)")
            leak = [each["severity"] for each in said.status["problems"] if each["pid"] == PID]
            assert [*leak, line.split()[0]] == ["critical", "CRITICAL"]
            assert "last known 5 min ago: memory is full in" in said.check[1]

    run(test)


def test_a_gpu_that_hangs() -> None:
    """While nothing is known of a GPU, every surface says so."""

    async def test() -> None:
        async with node("hang") as one:
            for _ in range(12):
                one.judge(await one.stage.hasty_tick(5.0, well=()))
                compare(one)

    run(test)


@pytest.mark.slow
def test_the_leak_that_is_shipped() -> None:
    """Beside a cache that is emptied and a job that levels off: from the first evidence until the GPU is full."""

    async def test() -> None:
        async with node("leak") as one:
            await walk(one, 1.5 * HOUR)
            assert Verdict.LEAKING in one.verdicts_of(next(iter(_pids(one, "embed-server"))))

    run(test)


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_to_the_wall_and_back(tmp_path: Path) -> None:
    """Before, during, full, after a restart of the agent, and with room again."""
    memory = "{shape: ramp, start: 20GiB, rate: 8MiB, after: 10m, cap: 50GiB}"
    beside = "      - {name: batch, user: bob, pid: 5000001, memory: {shape: steps, points: [%s]}}"
    others = beside % "[0, 1GiB], [4500, 28.9GiB], [13000, 1GiB]"

    async def test() -> None:
        store = Store(tmp_path / "state.sqlite")
        async with node(scenario(memory, others), store=store) as one:
            await walk(one, 4400)
            before = _growth(one)
            assert (before.verdict, before.state) == (Verdict.LEAKING, GrowthState.RISING)

            said = await walk(one, 6000)
            full = _growth(one)
            assert (full.verdict, full.state, full.forecast_seconds) == (Verdict.LEAKING, GrowthState.FULL, 0.0)
            assert full.since_seconds == before.since_seconds
            assert "stopped: GPU full" in said.screen
            assert "full now" in said.screen
            assert said.check[0] == 2

            await one.leaks.close()
            one.leaks = LeakDetection("balanced", one.stage.clock, store=store, boot_id=BOOT_ID)
            one.leaks.open()
            said = await walk(one, 12_900, every=20)
            after = _growth(one)
            assert replace(after, reasons=()) == replace(full, reasons=())
            ended = [each.alert for each in one.told if each.change is Change.ENDED]
            assert not [alert for alert in ended if alert.name in ABOUT_MEMORY - {FORECAST}]
            assert "GpuMemoryFull" in {each.alert.name for each in one.told if each.change is Change.STARTED}

            said = await walk(one, 18_000, 30.0, every=20)
            over = _growth(one)
            assert over.verdict is Verdict.LEVELLED_OFF
            (gpu,), serve = said.status["gpus"], said.status["processes"][0]
            held, free = format_bytes(serve["memory_used_bytes"]), format_bytes(gpu["memory_free_bytes"])
            assert over.reasons[0].startswith(f"growth stopped at {held} with {free} free: no new high")
            assert "GpuProcessMemoryLeak" in {each.alert.name for each in one.told if each.change is Change.ENDED}
        store.close()

    run(test)


@pytest.mark.slow
def test_since_survives_what_happens_to_the_driver() -> None:
    """A driver that is loaded again, and a list that fails for minutes, begin no leak anew: on no surface."""

    async def test() -> None:
        async with node(scenario("{shape: ramp, start: 20GiB, rate: 8MiB, after: 10m}")) as one:
            await walk(one, 4200, every=40)
            before = _growth(one)
            assert before.verdict is Verdict.LEAKING

            one.stage.fail(FaultKind.DRIVER_RELOAD, down=60.0)
            await one.tick()
            while one.growth(PID) is None:
                await one.tick()
                compare(one)
            reloaded = _growth(one)
            assert (reloaded.verdict, reloaded.since_seconds) == (Verdict.LEAKING, before.since_seconds)

            one.stage.fail(FaultKind.ERROR, calls=("nvmlDeviceGetComputeRunningProcesses_v3",), code=Code.UNKNOWN)
            await walk(one, one.seconds + 120, every=2)
            assert one.growth(PID) is None
            await one.stage.mend()
            said = await walk(one, one.seconds + 120, every=2)
            assert _growth(one).since_seconds == before.since_seconds
            assert said.status["processes"][0]["leak_since_seconds"] == before.since_seconds

    run(test)


@pytest.mark.slow
def test_a_mig_instance_that_fills() -> None:
    """An instance has room of its own: its forecast, its alert and its wall are not those of its GPU."""
    text = f"""\
gpus:
  - model: h100
    mig:
      - {{gpu_instance: 3, compute_instance: 0, profile: 2g.20gb, memory: 19968MiB, multiprocessors: 32, slices: 2}}
      - {{gpu_instance: 1, compute_instance: 0, profile: 3g.40gb, memory: 40192MiB, multiprocessors: 16, slices: 3}}
    processes:
      - name: serve
        pid: {PID}
        age: 0s
        user: ml
        gpu_instance: 3
        memory: {{shape: ramp, start: 5GiB, rate: 2MiB, after: 10m, cap: 19.3GiB}}
"""

    async def test() -> None:
        async with node(text) as one:
            await walk(one, 5400)
            said = compare(one)
            (gpu,) = said.status["gpus"]
            instances = {each["gpu_instance_id"]: each for each in gpu["mig"]}
            (process,) = said.status["processes"]
            assert process["verdict"] == instances[3]["verdict"] == "leaking"
            assert instances[3]["exhaustion_seconds"] == process["exhaustion_seconds"]
            assert (instances[1]["verdict"], instances[1]["exhaustion_seconds"]) == ("steady", None)
            assert gpu["exhaustion_seconds"] is None
            left = instances[3]["memory_free_bytes"] / (2 * 2**20)
            assert process["exhaustion_seconds"] == pytest.approx(left, rel=0.1)
            await walk(one, 9000)
            soon = one.alerts("GpuMemoryExhaustionSoon")
            assert soon
            assert {each.alert.labels["gpu_instance_id"] for each in soon} == {"3"}
            said = compare(one)
            assert said.status["processes"][0]["growth_state"] == "stopped: GPU full"
            assert not one.alerts("GpuProcessMemoryLeak", Change.ENDED)

    run(test)


@pytest.mark.slow
def test_one_leak_after_the_other() -> None:
    """What has stopped adds no pace and has no forecast: the GPU is filled by the one that goes on, and by it alone."""
    first = "{shape: ramp, start: 30GiB, rate: 40MiB, after: 12m, cap: 58GiB}"
    second = "{shape: ramp, start: 5GiB, rate: 4.5MiB, after: 1m}"
    beside = f"      - {{name: cache, user: ml, pid: 5000001, age: 0s, memory: {second}}}"

    async def test() -> None:
        async with node(scenario(first, beside)) as one:
            await walk(one, 1900)
            assert (_growth(one).verdict, _growth(one).state) == (Verdict.LEAKING, GrowthState.STOPPED)
            said = await walk(one, 2700)
            (gpu,) = said.status["gpus"]
            stopped, rising = (part for part in said.status["processes"])
            assert gpu["growth_bytes_per_second"] == rising["growth_bytes_per_second"]
            assert (stopped["severity"], stopped["exhaustion_seconds"]) == ("warning", None)
            assert (rising["severity"], rising["gpu_exhaustion_seconds"]) == ("critical", gpu["exhaustion_seconds"])
            lines = {
                each.record.labels["process"]: each.headline for each in said.incidents if "process" in each[0].labels
            }
            assert lines["serve"].startswith("WARNING node7 GPU 0: serve")
            assert lines["serve"].endswith("/h and has stopped")
            assert lines["cache"].startswith("CRITICAL node7 GPU 0: cache")
            await walk(one, 3600)

    run(test)


@pytest.mark.slow
def test_two_leaks_side_by_side() -> None:
    """Both fill the GPU, each in an incident of its own, and each is as severe as the forecast of both together."""
    beside = "      - {name: train, user: bob, pid: 5000001, age: 0s, memory: %s}"
    slower = "{shape: ramp, start: 6GiB, rate: 14MiB, after: 12m}"

    async def test() -> None:
        faster = "{shape: ramp, start: 6GiB, rate: 22MiB, after: 12m}"
        async with node(scenario(slower, beside % faster)) as one:
            said = await walk(one, 2400)
            about = [each.record for each in said.incidents if each.record.labels.get("process")]
            assert [record.severity for record in about] == ["critical", "critical"]
            await walk(one, 3300)

    run(test)


@pytest.mark.slow
def test_two_units_in_two_mig_instances() -> None:
    """Whatever parent they share, each is an incident of its own; the instance is full, and never the GPU."""
    unit = (
        "      - {name: python3, user: ml, pid: %d, age: 0s, cgroup: /system.slice/e%d.service, gpu_instance: %d,"
        " compute_instance: 0, memory: {shape: ramp, start: %s, rate: %s, after: 12m}}\n"
    )
    text = f"""\
gpus:
  - model: h100
    mig:
      - {{gpu_instance: 3, compute_instance: 0, profile: 2g.20gb, memory: 19968MiB, multiprocessors: 32, slices: 2}}
      - {{gpu_instance: 1, compute_instance: 0, profile: 3g.40gb, memory: 40192MiB, multiprocessors: 16, slices: 3}}
    processes:
{unit % (PID, 1, 3, "4GiB", "12MiB")}{unit % (PID + 1, 2, 1, "10GiB", "14MiB")}"""

    async def test() -> None:
        async with node(text) as one:
            said = await walk(one, 2400)
            assert one.alerts("GpuInstanceMemoryFull")
            lines = {each.record.labels["unit"]: each.headline for each in said.incidents if "unit" in each[0].labels}
            assert lines.keys() == {"e1.service", "e2.service"}
            assert "MIG instance 3 full now" in lines["e1.service"]
            assert "full in" in lines["e2.service"]
            assert not [line for line in lines.values() if "GPU full" in line or "processes" in line]

    run(test)


@pytest.mark.slow
def test_a_collapse() -> None:
    """Growth that would fill the GPU within minutes has one forecast, and is no leak and no `steady`."""
    memory = "{shape: sum, of: [20GiB, {shape: ramp, rate: 600MiB, after: 10m, cap: 59GiB}]}"

    async def test() -> None:
        async with node(scenario(memory)) as one:
            await walk(one, 590)
            seen = set()
            for _ in range(110):
                await one.tick(1.0)
                said = compare(one)
                process = said.status["processes"][0]
                if process["fast_exhaustion_seconds"] is not None:
                    seen.add((process["verdict"], process["growth_state"]))
            assert seen == {("growing", "rising")}

    run(test)


def _growth(one: Node) -> Growth:
    growth = one.growth(PID)
    assert growth is not None
    return growth


def _pids(one: Node, name: str) -> set[int]:
    assert one.snapshot is not None
    return {each.pid for each in one.snapshot.processes if each.info is not None and each.info.name == name}
