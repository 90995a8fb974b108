"""Which collectors run when, each guarded: a failing one costs its own series and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from gpuagent.nvml import (
    clocks,
    ecc,
    memory,
    mig,
    nvlink,
    pcie,
    power,
    process_utilization,
    processes,
    profile,
    thermal,
    utilization,
)
from gpuagent.nvml.device import Device
from gpuagent.nvml.failure import NvmlFailure
from gpuagent.reading import CollectorRun, GpuProcess, GpuReading, GpuState, ProcessUtilization, Utilization

T = TypeVar("T")

SLOW: dict[str, tuple[str | None, Callable[[Device], Any]]] = {
    # collector: (part of the reading that it fills, function)
    "bar1": (None, memory.collect_bar1),
    "profile": ("profile", profile.collect),
    "thermal": ("thermal", thermal.collect),
    "power": ("power", power.collect),
    "clocks": ("clocks", clocks.collect),
    "pcie": ("pcie", pcie.collect),
    "ecc": ("ecc", ecc.collect),
    "nvlink": ("nvlinks", nvlink.collect),
}
FAST = ("memory", "mig", "processes", "utilization", "process_utilization")
COLLECTORS = (*FAST, *SLOW)


@dataclass(frozen=True, slots=True)
class Collected:
    """One tick of one GPU, as far as NVML alone can tell."""

    reading: GpuReading
    processes: tuple[GpuProcess, ...] = ()
    utilizations: dict[int, ProcessUtilization] | None = None
    pids: frozenset[int] = frozenset()
    """Of the processes."""
    listed_seconds: float = 0.0
    """Clock (CLOCK_BOOTTIME) just before the process lists were read."""


class Collector:
    """Runs the collectors of one GPU; used by one thread only.

    What was read at the slow rate is carried until the next slow run, and dropped when that fails.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._slow_parts: dict[str, Any] = {}
        self._slow_runs: dict[str, CollectorRun] = {}
        self._runs: dict[str, CollectorRun] = {}
        self._listed: tuple[GpuProcess, ...] = ()
        self._pids: frozenset[int] = frozenset()

    def collect(self, *, slow: bool) -> Collected:
        """Read the GPU once.

        Raises:
            NvmlFailure: the GPU is lost or the session has ended; what was read before that is not kept.
        """
        device = self.device
        started = device.clock.now()
        if slow or not self._slow_runs:
            slow = True
            self._collect_slow()
        memory_reading = self._run("memory", lambda: memory.collect(device))
        instances = self._run("mig", lambda: mig.collect(device, slow=slow)) or mig.MigDevices()
        listed_seconds = device.clock.now()
        found = self._run(
            "processes", lambda: processes.collect(device, slow=slow, mig_handles=instances.handles)
        ) or processes.ProcessList((), known=False, trusted=True)
        busy = self._run("utilization", lambda: utilization.collect(device, slow=slow)) or Utilization()
        if found.processes is not self._listed:
            self._listed, self._pids = found.processes, frozenset(process.pid for process in found.processes)
        by_process = self._run(
            "process_utilization",
            lambda: process_utilization.collect(device, self._pids, busy=bool(busy.gpu_ratio)),
        )
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
        return Collected(reading, found.processes, by_process, self._pids, listed_seconds)

    def close(self) -> None:
        """Give back what the driver allocated for this GPU. Only while the library is initialised."""
        profile.close(self.device)

    def _collect_slow(self) -> None:
        self._slow_parts = {}
        for name, (part, function) in SLOW.items():
            value = self._run(name, partial(function, self.device))
            self._slow_runs[name] = self._runs.pop(name)
            if part is not None and value is not None:
                self._slow_parts[part] = value

    def _run(self, name: str, function: Callable[[], T]) -> T | None:
        """Run one collector and note how it fared. Anything but a lost GPU or session ends here."""
        self.device.begin()
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
        self._runs[name] = CollectorRun(name, not reason, time.perf_counter() - start, reason)
        return value
