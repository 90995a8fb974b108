"""Run a capture: all collectors of the agent and the getters beyond them, for every GPU, in two passes.

A driver call may block for ever. So it all runs in a thread of its own, and whoever waits writes what there is when a
call has not come back for `STUCK_SECONDS`.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from gpuagent.core.clock import Clock, SystemClock
from gpuagent.core.hardware import HostMemory
from gpuagent.doctor.capture.getters import ask_everything
from gpuagent.doctor.capture.host import UserName, host_facts, memory_facts, process_facts, program_facts
from gpuagent.doctor.capture.recorder import Abandoned, RecordedDevice, RecordingLibrary
from gpuagent.doctor.capture.redaction import CaptureRedactor
from gpuagent.doctor.capture.write import render
from gpuagent.driver.nvml.driver import Collector, NvmlDriver
from gpuagent.driver.nvml.library import LIBRARY_NOT_FOUND, Library, NvmlFailure
from gpuagent.node import NoSuchNode
from gpuagent.procfs.files import ProcFiles, RealProc
from gpuagent.procfs.host_memory import read_host_memory
from gpuagent.procfs.users import UserNames
from gpuagent_simulator.captures.node import open_node
from gpuagent_simulator.node import SimulatedNode
from gpuagent_simulator.scenario import ScenarioError

BETWEEN_PASSES_SECONDS = 5.0
STUCK_SECONDS = 30.0
_BETWEEN_SAMPLES_SECONDS = 0.25
"""GPM compares samples that lie more than 0.1 s apart."""
_POLL_SECONDS = 0.1


class _NoLibrary:
    """Stands for a library that cannot be loaded: the facts around it are worth a capture all the same."""

    def nvmlInitWithFlags(self, _flags: object) -> int:  # noqa: N802  NVML's name
        return LIBRARY_NOT_FOUND


class Captured(NamedTuple):
    """A capture that was made."""

    text: str
    """The file."""
    gpus: int
    calls: int
    """Number of different calls that were answered."""
    problems: tuple[str, ...]
    """Reasons why something is not in it."""


@dataclass(frozen=True)
class MachineToCapture:
    """What is captured: this machine, or a simulated one in its place."""

    library: Any
    """C entry points of NVML."""
    files: ProcFiles
    user_name: UserName
    clock: Clock = field(default_factory=SystemClock)
    max_pid: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """Facts of the host that are known better than by looking."""
    host_memory: Callable[[], HostMemory | None] = read_host_memory
    sleep: Callable[[float], None] = time.sleep


def this_machine() -> MachineToCapture:
    """Return the machine that this runs on."""
    library: object
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        library = _NoLibrary()
    clock = SystemClock()
    return MachineToCapture(library, RealProc(), UserNames(clock), clock)


def simulated_machine(scenario: str) -> MachineToCapture:
    """Return a scenario, or another capture, in place of the machine. Raises NoSuchNode."""
    clock = SystemClock()
    try:
        node = open_node(scenario, clock, fallback=RealProc())
    except ScenarioError as error:
        raise NoSuchNode(str(error)) from None
    return machine_of(node, clock)


def machine_of(node: SimulatedNode, clock: Clock, sleep: Callable[[float], None] = time.sleep) -> MachineToCapture:
    """Return a simulated node as the machine that is captured."""
    return MachineToCapture(
        node.library,
        node.proc,
        lambda uid: node.proc.user_name(uid) or str(uid),
        clock,
        max_pid=node.max_pid,
        facts={
            "pci_gpus": node.pci_gpu_count(),
            "pid_namespace": "host" if node.host_pid_namespace else "container",
            **memory_facts(node.host_memory(), node.memory_pressure()),
        },
        host_memory=node.host_memory,
        sleep=sleep,
    )


def capture(
    machine: MachineToCapture,
    redactor: CaptureRedactor,
    *,
    seconds: float | None = None,
    stuck_seconds: float = STUCK_SECONDS,
) -> Captured:
    """Ask everything twice, `seconds` apart: `BETWEEN_PASSES_SECONDS` if not given."""
    seconds = BETWEEN_PASSES_SECONDS if seconds is None else seconds
    # Before the driver is asked, which wakes a GPU that sleeps.
    host = {key: value for key, value in (host_facts(redactor) | machine.facts).items() if value is not None}
    run = _Run(machine, seconds)
    thread = threading.Thread(target=run.run, name="nvml capture", daemon=True)
    thread.start()
    stuck = _wait(thread, run.recorder, stuck_seconds)
    return _result(run, redactor, stuck, {"seconds_between_passes": seconds, "host": host})


def _wait(
    thread: threading.Thread, recorder: RecordingLibrary, stuck_seconds: float
) -> tuple[str, RecordedDevice] | None:
    """Wait for the end; returns the call that has not come back and whom it was asked of, None if all have."""
    seen: object = None
    since = time.monotonic()
    while thread.is_alive():
        thread.join(_POLL_SECONDS)
        if recorder.in_flight is None or recorder.in_flight is not seen:
            seen, since = recorder.in_flight, time.monotonic()
        elif time.monotonic() - since > stuck_seconds:
            recorder.abandoned = True
            return recorder.in_flight
    return None


def _result(
    run: _Run,
    redactor: CaptureRedactor,
    stuck: tuple[str, RecordedDevice] | None,
    known: dict[str, Any],
) -> Captured:
    machine, recorder = run.machine, run.recorder
    pids = recorder.pids()
    facts = run.processes | process_facts(pids - run.processes.keys(), machine.files, run.began, machine.user_name)
    header: dict[str, Any] = {
        "captured": program_facts() | {"redacted": redactor.active},
        **known,
    }
    problems = list(run.problems)
    if stuck is not None:
        problems.append(f"{stuck[0]} has not come back: what follows it is missing")
        gpu = recorder.index_of(stuck[1])
        header["faults"] = [{"kind": "hang", "calls": [stuck[0]]} | ({} if gpu is None else {"gpu": gpu})]
    if problems:
        header["captured"]["problems"] = problems
    if recorder.absent:
        header["captured"]["absent"] = sorted(recorder.absent)
    text = render(
        header,
        recorder.system,
        recorder.gpus,
        {pid: redactor.process(each) for pid, each in facts.items()},
        redactor,
    )
    return Captured(text, len(recorder.gpus), recorder.call_count(), tuple(problems))


class _Run:
    def __init__(self, machine: MachineToCapture, seconds: float) -> None:
        self.machine = machine
        self.recorder = RecordingLibrary(machine.library, machine.clock.wall)
        self.processes: dict[int, dict[str, Any]] = {}
        self.problems: list[str] = []
        self.began = machine.clock.now()
        self._seconds = seconds
        limit = {} if machine.max_pid is None else {"max_pid": machine.max_pid}
        self._library = Library(self.recorder, **limit)
        self._driver = NvmlDriver(self._library, machine.host_memory)

    def run(self) -> None:
        try:
            self._ask()
        except NvmlFailure as failure:
            self.problems.append(str(failure))
        except Abandoned:
            pass

    def _ask(self) -> None:
        self._driver.initialize()
        try:
            versions = self._driver.versions()
            collectors: list[Collector] = []
            for index in range(self._driver.count_gpus()):
                self._guarded(partial(self._open, index, versions.driver, collectors))
            self._pass(collectors)
            machine = self.machine
            self.processes = process_facts(self.recorder.pids(), machine.files, self.began, machine.user_name)
            machine.sleep(max(0.0, self._seconds - (machine.clock.now() - self.began)))
            self.recorder.pass_number = 1
            self._driver.count_gpus()
            self._pass(collectors)
            for collector in collectors:
                self._guarded(collector.close)
        finally:
            self._driver.shutdown()

    def _open(self, index: int, driver_version: str, collectors: list[Collector]) -> None:
        collectors.append(self._driver.open_gpu(index, self.machine.clock, driver_version, lambda _: ""))

    def _pass(self, collectors: list[Collector]) -> None:
        """Ask all GPUs once; the collectors run twice, for those that compare two samples."""
        for collector in collectors:
            self._guarded(partial(collector.collect, slow=True))
        for collector in collectors:
            self._guarded(partial(ask_everything, self._library, collector.handle))
        self.machine.sleep(_BETWEEN_SAMPLES_SECONDS)
        for collector in collectors:
            self._guarded(partial(collector.collect, slow=True))

    def _guarded(self, action: Callable[[], object]) -> None:
        """One GPU that fails costs nothing but itself."""
        try:
            action()
        except NvmlFailure as failure:
            self.problems.append(str(failure))
