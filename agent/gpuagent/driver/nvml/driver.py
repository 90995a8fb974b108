"""Serve the collector through NVML: the backend of NVIDIA's GPUs, which runs each collector of a GPU guarded.

A collector that fails costs its own series and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from gpuagent.core.clock import Clock
from gpuagent.core.hardware import HostMemory, Memory, MemoryKind, Utilization
from gpuagent.core.snapshot import CollectorRun, GpuProcess, GpuReading, GpuState, ProcessUtilization
from gpuagent.core.wording import WITHHELD
from gpuagent.driver.backend import NOT_BELIEVED, Collected, Versions
from gpuagent.driver.nvml import (
    ecc,
    identity,
    links,
    memory,
    mig,
    power,
    processes,
    profile,
    utilization,
)
from gpuagent.driver.nvml.device import NvmlDevice
from gpuagent.driver.nvml.events import XidWatcher
from gpuagent.driver.nvml.identity import open_device
from gpuagent.driver.nvml.library import COUNT_GPUS, IMPOSSIBLE, Handle, Library, NvmlFailure
from gpuagent.driver.nvml.memory import check_figures

T = TypeVar("T")

SLOW: dict[str, tuple[str | None, Callable[[NvmlDevice], Any]]] = {
    # collector: (part of the reading that it fills, function); several may fill `figures`
    "bar1": ("figures", memory.collect_bar1),
    "profile": ("profile", profile.collect),
    "thermal": ("thermal", power.collect_thermal),
    "power": ("power", power.collect_power),
    "clocks": ("clocks", power.collect_clocks),
    "pcie": ("pcie", links.collect_pcie),
    "ecc": ("ecc", ecc.collect),
    "nvlink": ("nvlink", links.collect_nvlink),
    "c2c": ("c2c", links.collect_c2c),
}
FAST = ("memory", "mig", "processes", "utilization", "process_utilization")
COLLECTORS = (*FAST, *SLOW)


class Collector:
    """Run the collectors of one GPU; used by one thread only.

    What was read at the slow rate is carried until the next slow run, and dropped when that fails.
    """

    def __init__(self, device: NvmlDevice) -> None:
        self.device = device
        self._slow_parts: dict[str, Any] = {}
        self._slow_runs: dict[str, CollectorRun] = {}
        self._runs: dict[str, CollectorRun] = {}
        self._listed: tuple[GpuProcess, ...] = ()
        self._pids: frozenset[int] = frozenset()
        self._told_processes = False
        """The driver has listed the processes of the whole GPU."""
        self._impossible = ""
        self._doubtful = ""
        """Contradiction in this collection that shared memory could explain."""
        self._checked: tuple[tuple[GpuProcess, ...], Memory | None] | None = None
        """The last figures that were found possible."""

    @property
    def handle(self) -> Handle:
        """Handle of the GPU in the present session."""
        return self.device.handle

    def collect(self, *, slow: bool, longest_gap_seconds: float | None = None) -> Collected:
        """Read the GPU once. `longest_gap_seconds` is taken over where it is given.

        Raises:
            NvmlFailure: the GPU is lost or the session has ended; what was read before that is not kept.
        """
        device = self.device
        if longest_gap_seconds is not None:
            device.longest_gap_seconds = longest_gap_seconds
        started = device.clock.now()
        self._impossible = self._doubtful = ""
        if slow or not self._slow_runs:
            slow = True
            identity.refresh_pci_address(device)
            self._collect_slow()
        memory_reading = self._run("memory", lambda: memory.collect(device))
        instances = self._run("mig", lambda: mig.collect(device, slow=slow)) or mig.MigDevices()
        listed_seconds = device.clock.now()
        found, memory_reading = self._run("processes", lambda: self._list(memory_reading, instances, slow=slow)) or (
            processes.ProcessList((), known=False, trusted=True),
            memory_reading,
        )
        answered_seconds = device.clock.now()
        busy = self._run("utilization", lambda: utilization.collect(device, slow=slow)) or Utilization()
        if found.processes is not self._listed:
            self._listed, self._pids = found.processes, frozenset(process.pid for process in found.processes)
        by_process, worked_at = self._run("process_utilization", lambda: self._work(busy)) or (None, {})
        failed = not self._runs["memory"].ok
        reading = GpuReading(
            identity=device.identity,
            state=GpuState.FAILED if failed else GpuState.OK,
            reason=self._runs["memory"].reason,
            time_seconds=started,
            memory=None if failed else memory_reading,
            utilization=busy,
            mig=instances.instances,
            processes_known=found.known,
            processes_trusted=found.trusted,
            runs=(*self._runs.values(), *self._slow_runs.values()),
            unsupported=device.unsupported() if slow else (),
            **self._slow_parts,
        )
        if self._impossible:
            return Collected(reading).withheld(f"the driver's figures were impossible ({self._impossible})")
        doubt = f"the driver's figures were in doubt ({self._doubtful})" if self._doubtful else ""
        return Collected(
            reading, found.processes, by_process, self._pids, listed_seconds, worked_at, doubt, found.kinds_known,
            answered_seconds,
        )  # fmt: skip

    def _list(
        self, memory_reading: Memory | None, instances: mig.MigDevices, *, slow: bool
    ) -> tuple[processes.ProcessList, Memory | None]:
        """Read the process list and hold it against the memory, which comes back as the list confirms it."""
        device = self.device
        found = processes.collect(device, slow=slow, mig_handles=instances.handles)
        if found.known:
            self._told_processes = not device.identity.mig_enabled
        elif self._told_processes and not device.identity.mig_enabled and not device.failures:
            # A GPU loses no feature while it runs: a refusal now says of no process that it has gone.
            device.failures.append(
                NvmlFailure("process lists", -1, "the driver listed the processes before, and refuses to now")
            )
        checked = self._checked
        # Mostly nothing has changed, which is seen at a glance; MIG instances use more or less memory by themselves.
        same = checked is not None and checked[0] is found.processes and checked[1] == memory_reading
        if not same or instances.instances:
            verdict, memory_reading = check_figures(memory_reading, found.processes, instances.instances, self._memory)
            self._checked = None if verdict.contradiction else (found.processes, memory_reading)
            self._impossible = self._impossible or verdict.impossible
            self._doubtful = verdict.doubtful
        if found.implausible:
            self._doubtful = f"one form of the process list {WITHHELD}"
        return found, memory_reading

    def _work(self, busy: Utilization) -> tuple[dict[int, ProcessUtilization] | None, Mapping[int, float]]:
        """Read what each process does, and when it was last sampled at work."""
        device, at_rest = self.device, utilization.at_rest(self.device, busy)
        utilizations = utilization.collect_processes(device, self._pids, busy=bool(busy.gpu_ratio), at_rest=at_rest)
        return utilizations, utilization.worked_at(device)

    def _memory(self) -> Memory | None:
        """Read device memory once more; None where it could not be read."""
        failures = len(self.device.failures)
        again = memory.collect(self.device)
        return again if len(self.device.failures) == failures else None

    def close(self) -> None:
        """Give back what the driver allocated for this GPU. Only while the library is initialized."""
        profile.close(self.device)

    def _collect_slow(self) -> None:
        self._slow_parts = {}
        for name, (part, function) in SLOW.items():
            value = self._run(name, partial(function, self.device))
            self._slow_runs[name] = self._runs.pop(name)
            if part == "figures" and value is not None:
                value = self._slow_parts.get("figures", {}) | value
            if part is not None and value is not None:
                self._slow_parts[part] = value

    def _run(self, name: str, function: Callable[[], T]) -> T | None:
        """Run one collector and note how it fared. Anything but a lost GPU or session ends here."""
        self.device.clear_failures()
        start = time.perf_counter()
        value: T | None = None
        reason = ""
        try:
            value = function()
        except NvmlFailure as failure:
            if failure.lost or failure.ends_session:
                raise
            reason = str(failure)
        except Exception as error:  # noqa: BLE001  a defect of one collector must not cost the GPU
            reason = f"{type(error).__name__}: {error}"
        if not reason and self.device.failures:
            reason = str(self.device.failures[0])
        if any(failure.code == IMPOSSIBLE for failure in self.device.failures):
            self._impossible = self._impossible or f"{name}: {NOT_BELIEVED}"
        self._runs[name] = CollectorRun(name, not reason, time.perf_counter() - start, reason)
        return value


class NvmlDriver:
    """NVML as a `gpuagent.driver.backend.Driver`."""

    collectors = COLLECTORS

    def __init__(
        self,
        library: Library | None = None,
        host_memory: Callable[[], HostMemory | None] = lambda: None,
        memory_kind: MemoryKind | None = None,
        own_cgroup: str = "",
    ) -> None:
        """Use `library`; None is the driver's own. `host_memory` is asked for GPUs that share it.

        `memory_kind` is where the memory of the GPUs is; None is to be found out. `own_cgroup` is the folder of the
        agent's cgroup, on which the driver may have set a limit.
        """
        self.library = library or Library()
        self._host_memory = host_memory
        self._memory_kind = memory_kind
        self._own_cgroup = own_cgroup

    @property
    def initializations(self) -> int:
        """How often NVML was initialized."""
        return self.library.initializations

    def initialize(self) -> None:
        """Load NVML if need be and initialize it. Raises NvmlFailure."""
        self.library.initialize()

    def shutdown(self) -> None:
        """Take back one initialization: NVML counts them, and lets go with the last (nvml.h, nvmlShutdown)."""
        self.library.shutdown()

    def versions(self) -> Versions:
        """Return what driver and library say of themselves. Raises NvmlFailure if the session has ended."""
        return Versions(
            driver=_read(lambda: self.library.text("nvmlSystemGetDriverVersion", size=80)),
            nvml=_read(lambda: self.library.text("nvmlSystemGetNVMLVersion", size=80)),
            cuda=_read(lambda: _cuda(int(self.library.call("nvmlSystemGetCudaDriverVersion")))),
        )

    def count_gpus(self) -> int:
        """Return how many GPUs are enumerated. Raises NvmlFailure."""
        return int(self.library.call(COUNT_GPUS))

    def open_gpu(self, index: int, clock: Clock, driver_version: str, address_of: Callable[[str], str]) -> Collector:
        """Attach to a GPU, which may wake it: see `open_device`. Raises NvmlFailure."""
        device = open_device(self.library, index, clock, address_of, self._host_memory, self._memory_kind)
        device.driver_version = driver_version
        device.own_cgroup = self._own_cgroup
        return Collector(device)

    def watch_events(self, clock: Clock) -> XidWatcher:
        """Return what waits for Xids in a thread of its own."""
        return XidWatcher(self.library, clock)


def _cuda(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _read(read: Callable[[], str]) -> str:
    try:
        return read()
    except NvmlFailure as failure:
        if failure.ends_session:
            raise
        return ""
