"""The loop of a recording: real processes over a simulated node, by a clock that moves when the loop waits."""

from __future__ import annotations

import csv
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpuagent.collector.tick import Monitor, MonitorContext
from gpuagent.core.clock import ManualClock
from gpuagent.driver.nvml.driver import NvmlDriver
from gpuagent.driver.nvml.library import Library
from gpuagent.procfs.files import RealProc
from gpuagent.procfs.table import ProcessTable
from gpuagent.recording.recorder import Command, Family, Recorder, Signals, StopSignal, create_trace
from gpuagent.recording.sources import DirectSource, GpuSample, MemorySample
from gpuagent_simulator.faults import Fault, FaultKind
from gpuagent_simulator.node import SimulatedNode
from gpuagent_simulator.scenario import parse_scenario
from tests.agent.procfs.children import running
from tests.fakes.nvml import use
from tests.fakes.proc import FakeWatcher
from tests.fakes.rig import PATIENT

MIB, GIB = 1024**2, 1024**3
JOB = """
gpus:
  - model: h100
    count: 2
    processes:
      - {name: job, bind: job, memory: {shape: ramp, start: 1GiB, rate: 64MiB}}
      - {name: stranger, memory: 2GiB}
"""


class Bench:
    """A simulated node and what reads it."""

    def __init__(self, node: SimulatedNode, clock: ManualClock) -> None:
        self.node = node
        self.clock = clock
        self.files = ExitStack()
        table = ProcessTable(
            node.proc, clock, watch=FakeWatcher(able=False), users=str, boot_id="boot",
            boot_time_seconds=node.proc.boot_time_seconds, host_pid_namespace=True,
        )  # fmt: skip
        place = MonitorContext(boot_id="boot", simulated="test")
        self.source = DirectSource(
            Monitor(NvmlDriver(Library(max_pid=node.max_pid)), table, clock, PATIENT, place), clock
        )
        self.notes: list[str] = []

    def recorder(self, path: Path, family: Family) -> Recorder:
        """Writes to this file until the end of the test."""
        file = self.files.enter_context(create_trace(path))
        return Recorder(self.source, family, file, self.clock, self.notes.append)


@contextmanager
def bench(scenario: str = JOB) -> Iterator[Bench]:
    """The node under pynvml, at a time at which every process of the test has started."""
    clock = ManualClock(time.clock_gettime(time.CLOCK_BOOTTIME) + 3600)
    node = SimulatedNode(parse_scenario(scenario, name="test"), clock, fallback=RealProc())
    with use(node.library):
        stage = Bench(node, clock)
        try:
            yield stage
        finally:
            node.inject(Fault(FaultKind.DRIVER_RELOAD))  # ends the wait for events at once
            stage.source.close()
            stage.files.close()
            node.close()


@dataclass
class Steps:
    """Waiting that takes no time: the clock is moved on, and at a step something happens."""

    clock: ManualClock
    at: dict[int, Callable[[], StopSignal | None]] = field(default_factory=dict)
    taken: int = 0

    def wait(self, seconds: float) -> StopSignal | None:
        self.taken += 1
        self.clock.advance(seconds)
        happening = self.at.get(self.taken)
        return happening() if happening else None


def rows(path: Path) -> list[dict[str, str]]:
    """Of the file, by the names of the columns."""
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def test_a_command_is_recorded_until_it_ends(tmp_path: Path) -> None:
    """Its own memory on each GPU, none of a stranger's; it ends with the command, and with its exit status."""
    path = tmp_path / "run.csv"
    with bench() as stage, Signals() as signals:
        command = Command(["sleep", "600"], signals)
        stage.node.bind("job", command.pid)

        def end() -> None:
            os.kill(command.pid, 9)
            while command.look() is None:
                signals.wait(30.0)

        recorder = stage.recorder(path, Family(RealProc(), {command.pid}))
        assert recorder.run_command(command, Steps(stage.clock, {20: end}), 1.0) == 128 + 9

    written = rows(path)
    assert len(written) == 40
    assert {row["process"] for row in written} == {f"sleep:{command.pid}", f"sleep:{command.pid}/gpu1"}
    assert [int(row["used_bytes"]) for row in written[::2]][:3] == [GIB, GIB + 64 * MIB, GIB + 128 * MIB]
    assert float(written[2]["time_seconds"]) - float(written[0]["time_seconds"]) == pytest.approx(1.0)
    assert written[0]["allocated_bytes"] == ""
    assert [track.peak_bytes for track in recorder.tracks] == [GIB + 19 * 64 * MIB] * 2


def test_signals_reach_the_command_and_the_recording_goes_on_until_it_ends(tmp_path: Path) -> None:
    """A server that shuts down in an orderly way is recorded while it does."""
    with bench() as stage, Signals() as signals:
        command = Command(["sleep", "600"], signals)

        def wait_for_the_end() -> None:
            while command.look() is None:
                signals.wait(30.0)

        asked = StopSignal(signal.SIGTERM, from_terminal=False)
        steps = Steps(stage.clock, {2: lambda: asked, 3: wait_for_the_end})
        recorder = stage.recorder(tmp_path / "run.csv", Family(RealProc(), {command.pid}))
        assert recorder.run_command(command, steps, 1.0) == 143


def test_a_process_is_recorded_until_it_ends(tmp_path: Path) -> None:
    """With --pid nothing is started and nothing is ended; the process's end is the recording's."""
    path = tmp_path / "run.csv"
    with bench() as stage, running("cat") as process:
        stage.node.bind("job", process.pid)

        def end() -> None:
            process.kill()
            process.wait()

        recorder = stage.recorder(path, Family(RealProc(), {process.pid}))
        recorder.run_process(process.pid, Steps(stage.clock, {10: end}), 0.5)

    assert len(rows(path)) == 20


def test_ctrl_c_ends_the_recording_and_not_the_process(tmp_path: Path) -> None:
    """Who looks at a service does not stop it."""
    with bench() as stage, running("cat") as process:
        stage.node.bind("job", process.pid)
        steps = Steps(stage.clock, {3: lambda: StopSignal(signal.SIGINT, from_terminal=True)})
        recorder = stage.recorder(tmp_path / "run.csv", Family(RealProc(), {process.pid}))
        recorder.run_process(process.pid, steps, 1.0)

        assert process.poll() is None
        assert [track.readings for track in recorder.tracks] == [3, 3]


def test_a_blind_gpu_leaves_empty_cells(tmp_path: Path) -> None:
    """LEAK-03: a reading that failed is a row without figures, not a zero; the other GPU goes on."""
    path = tmp_path / "run.csv"
    with bench() as stage, running("cat") as process:
        stage.node.bind("job", process.pid)
        recorder = stage.recorder(path, Family(RealProc(), {process.pid}))
        recorder.look()
        stage.clock.advance(1.0)
        stage.node.inject(Fault(FaultKind.LOST, gpu=1))
        recorder.look()

    written = rows(path)
    assert [row["used_bytes"] == "" for row in written] == [False, False, False, True]
    assert any("GPU 1" in note for note in stage.notes)
    assert [track.missing for track in recorder.tracks] == [0, 1]


class Script:
    """Readings made by hand, the last one for ever."""

    def __init__(self, *readings: GpuSample) -> None:
        self.readings = list(readings)

    def read(self) -> GpuSample:
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]

    def close(self) -> None:
        pass


def test_an_agent_that_goes_away_is_told_once(tmp_path: Path) -> None:
    """Readings are missing meanwhile; when it is back the same history goes on."""
    held = MemorySample(2**31 - 1, 0, "made-up", None, GIB, 9 * GIB, 10 * GIB)
    well, away = GpuSample((held,)), GpuSample(unread=None, problem="no answer in time")
    notes: list[str] = []
    path, clock = tmp_path / "run.csv", ManualClock()
    with create_trace(path) as file:
        source = Script(well, away, away, well)
        recorder = Recorder(source, Family(RealProc(), {held.pid}), file, clock, notes.append)
        for _ in range(4):
            recorder.look()
            clock.advance(1.0)

    assert [row["used_bytes"] for row in rows(path)] == [str(GIB), "", "", str(GIB)]
    assert notes == ["no answer in time", "the GPUs are read again"]
    assert len(recorder.tracks) == 1


def test_a_simulated_process_has_ended_when_it_is_listed_no_more(tmp_path: Path) -> None:
    """/proc knows nothing of it; a list that could not be read says nothing."""
    held = MemorySample(4_194_400, 0, "made-up", None, GIB, 9 * GIB, 10 * GIB)
    source = Script(GpuSample((held,)), GpuSample(unread=None, problem="x"), GpuSample((held,)), GpuSample())
    clock = ManualClock()
    with create_trace(tmp_path / "run.csv") as file:
        recorder = Recorder(source, Family(RealProc(), {held.pid}), file, clock, lambda _text: None)
        steps = Steps(clock)
        recorder.run_process(held.pid, steps, 1.0)

    assert steps.taken == 5
    assert (recorder.tracks[0].readings, recorder.tracks[0].missing) == (2, 1)
