"""Run a capture: all collectors of the agent and the getters beyond them, for every GPU, in two passes.

A driver call may block for ever. So it all runs in a thread of its own, and whoever waits writes what there is when a
call has not come back for `STUCK_SECONDS`.

The getters beyond the collectors are what the agent does not ask, or asks only where another call fails: a capture
should outlive that. Each only reads, takes the device and at most a number, and is cheap. nvmlDeviceGetPcieThroughput
is none of them: it blocks for 20 ms by design. Nor is what names a machine or a customer: the platform's serial
numbers, the fabric's identity, certificates.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from gpuagent.core.clock import Clock, SystemClock
from gpuagent.core.hardware import HostMemory
from gpuagent.doctor.capture.host import UserName, host_facts, memory_facts, process_facts, program_facts
from gpuagent.doctor.capture.recorder import Abandoned, RecordedDevice, RecordingLibrary
from gpuagent.doctor.capture.redaction import CaptureRedactor
from gpuagent.doctor.capture.write import render
from gpuagent.driver.nvml.driver import Collector, NvmlDriver
from gpuagent.driver.nvml.library import LIBRARY_NOT_FOUND, Handle, Library, NvmlFailure
from gpuagent.node import NoSuchNode
from gpuagent.procfs.files import ProcFiles, RealProc
from gpuagent.procfs.host_memory import read_host_memory
from gpuagent.procfs.users import UserNames
from gpuagent_simulator.abi import PROCESS_DETAIL, ProcessDetailList
from gpuagent_simulator.captures.lists import PROCESS_LISTS
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


_DEVICE = (
    *("AddressingMode", "NumaNodeId", "C2cModeInfoV", "VirtualizationMode", "HostVgpuMode", "BusType", "Architecture"),
    *("Brand", "BoardId", "BoardPartNumber", "MultiGpuBoard", "InforomImageVersion", "VbiosVersion", "IrqNum"),
    *("Index", "MinorNumber", "ModuleId", "NumGpuCores", "MemoryBusWidth", "PciInfo", "Name", "UUID", "Serial"),
    *("CudaComputeCapability", "GspFirmwareVersion", "GspFirmwareMode", "ConfComputeMemSizeInfo", "RepairStatus"),
    *("PersistenceMode", "ComputeMode", "DisplayMode", "DisplayActive", "AccountingMode", "AccountingBufferSize"),
    *("DefaultEccMode", "EccMode", "GpuOperationMode", "MigMode", "MaxMigDeviceCount", "SupportedEventTypes"),
    *("MemoryInfo", "BAR1MemoryInfo", "UtilizationRates", "EncoderUtilization", "DecoderUtilization"),
    *("JpgUtilization", "OfaUtilization", "EncoderStats", "FBCStats", "PerformanceState", "PowerState"),
    *("PowerUsage", "PowerSource", "PowerManagementMode", "PowerManagementLimit", "PowerManagementDefaultLimit"),
    *("PowerManagementLimitConstraints", "EnforcedPowerLimit", "TotalEnergyConsumption", "AdaptiveClockInfoStatus"),
    *("CurrentClocksEventReasons", "CurrentClocksThrottleReasons", "SupportedClocksEventReasons"),
    *("AutoBoostedClocksEnabled",),
    *("NumFans", "FanSpeed", "MarginTemperature", "CurrPcieLinkGeneration", "CurrPcieLinkWidth"),
    *("MaxPcieLinkGeneration", "MaxPcieLinkWidth", "GpuMaxPcieLinkGeneration", "PcieSpeed", "PcieLinkMaxSpeed"),
    *("PcieReplayCounter", "RemappedRows", "RowRemapperHistogram", "RetiredPagesPendingStatus", "DynamicPstatesInfo"),
)
"""After `nvmlDeviceGet`."""
_WITH_NUMBER = (
    *(("Temperature", 0), ("TemperatureV", 0), ("NvLinkVersion", 0), ("NvLinkState", 0)),
    *(("TemperatureThreshold", each) for each in range(8)),
    *((name, each) for name in ("ClockInfo", "MaxClockInfo") for each in range(4)),
)
_ERRORS = tuple((kind, counter) for kind in (0, 1) for counter in (0, 1))
_INSTANCE = (
    *("Name", "UUID", "GpuInstanceId", "ComputeInstanceId", "Attributes", "MemoryInfo", "BAR1MemoryInfo", "Index"),
)
_FIELDS = (
    *(1, 2, 3, 4, 5, 6, 29, 30, 31, 74, 76, 82, 83, 91, 94, *range(142, 146), *range(164, 173), *range(185, 191)),
    *(193, 197, 198, 230, 231, 232, 233, *range(269, 272)),
)
_CAPACITY = 1024
_ALL_KINDS = 3
"""Mode of nvmlDeviceGetRunningProcessDetailList: compute, graphics and MPS in one list."""
_MOST_INSTANCES = 64


def ask_everything(library: Library, handle: Handle) -> None:
    """Ask a GPU, and its MIG devices. What fails is an answer, too."""
    for name in _DEVICE:
        _try(library, f"nvmlDeviceGet{name}", handle)
    for name, argument in _WITH_NUMBER:
        _try(library, f"nvmlDeviceGet{name}", handle, argument)
    for kind, counter in _ERRORS:
        _try(library, "nvmlDeviceGetTotalEccErrors", handle, kind, counter)
    _try(library, "nvmlDeviceGetMemoryInfo", handle, library.constant("nvmlMemory_v2"))
    _try(library, "nvmlDeviceIsMigDeviceHandle", handle)
    _try(library, "nvmlGpmQueryDeviceSupport", handle)
    _try(library, "nvmlDeviceGetFieldValues", handle, list(_FIELDS))
    _ask_lists(library, handle)
    for instance in _instances(library, handle):
        for name in _INSTANCE:
            _try(library, f"nvmlDeviceGet{name}", instance)
        _try(library, "nvmlDeviceGetMemoryInfo", instance, library.constant("nvmlMemory_v2"))
        _try(library, "nvmlDeviceIsMigDeviceHandle", instance)
        _ask_lists(library, instance)


def _try(library: Library, name: str, *args: Any) -> Any:
    """Call a wrapper of pynvml's; None where that fails, in the driver or in the wrapper itself."""
    with suppress(NvmlFailure, TypeError, AttributeError, ValueError):
        return library.call(name, *args)
    return None


def _instances(library: Library, handle: Handle) -> Iterator[Handle]:
    for slot in range(min(_try(library, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0, _MOST_INSTANCES)):
        found = _try(library, "nvmlDeviceGetMigDeviceHandleByIndex", handle, slot)
        if found is not None:
            yield found


def _ask_lists(library: Library, handle: Handle) -> None:
    """Ask every form of the process list, with room for the longest entries that any driver is known to write."""
    buffer = (ctypes.c_char * (_CAPACITY * PROCESS_DETAIL.size))()
    for symbol in sorted(PROCESS_LISTS):
        if symbol.endswith(("_v2", "_v3")):
            count = ctypes.c_uint(_CAPACITY)
            library.raw(symbol, handle, ctypes.byref(count), buffer)
    request = ProcessDetailList(
        version=ctypes.sizeof(ProcessDetailList) | 1 << 24,
        mode=_ALL_KINDS,
        count=_CAPACITY,
        array=ctypes.addressof(buffer),
    )
    library.raw("nvmlDeviceGetRunningProcessDetailList", handle, ctypes.byref(request))
