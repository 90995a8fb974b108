"""Simulate a whole node: what `--simulate` and the tests start.

Faults can come and go while it runs: a file of them is read again whenever it changes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

from gpuagent.core.clock import Clock
from gpuagent.core.hardware import HostMemory, MemoryPressure
from gpuagent_simulator.curves import ScenarioClock
from gpuagent_simulator.device import Gpu
from gpuagent_simulator.faults import Fault, FaultInjector
from gpuagent_simulator.library import SimulatedLibrary
from gpuagent_simulator.process import Bindings, FallbackProc, Process, SimulatedProc, expand
from gpuagent_simulator.scenario import ScenarioError, check_calls, load_faults
from gpuagent_simulator.session import SimulatedSession
from gpuagent_simulator.spec import MAX_PID, GpuSpec, Scenario

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.05
_Stamp = tuple[int, int, int] | None


class FaultsFile:
    """Follow the file in a thread until closed. A missing or empty file holds no fault.

    With mistakes in it, what held before goes on, and the log says why. Times count from when a fault is first read.
    """

    def __init__(self, path: Path, injector: FaultInjector, gpu_count: int) -> None:
        self._path = path
        self._injector = injector
        self._gpu_count = gpu_count
        self._given: dict[Fault, Fault] = {}
        self._seen: _Stamp = None
        self._closed = threading.Event()
        self.poll()
        self._thread = threading.Thread(target=self._follow, name="faults file", daemon=True)
        self._thread.start()

    def poll(self) -> None:
        """Load the faults from the file, if it has changed."""
        stamp = _stamp(self._path)
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            faults = load_faults(self._path, self._gpu_count) if stamp is not None else ()
        except ScenarioError as error:
            log.warning("the faults of before go on: %s", error)
            return
        # A line that was there before goes on: its time counts from when it was first read.
        begun = {fault: self._given.get(fault) or self._injector.from_now(fault) for fault in faults}
        self._injector.replace(self._given.values(), begun.values())
        self._given = begun

    def close(self) -> None:
        """Stop following the file."""
        self._closed.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._closed.wait(_POLL_SECONDS):
            self.poll()


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


class SimulatedNode:
    """GPUs, processes and faults of a scenario, run by an injected clock.

    Time 0 of the scenario is when the node is made, unless `start` says at which `clock.now()` it was:
    so a process that replaces itself goes on where it was. `library` goes under pynvml; `proc` is
    /proc with the made-up processes and `others`, `fallback` what it asks about real ones.
    """

    max_pid = MAX_PID
    """Made-up pids lie above the kernel's highest: a reader must believe in them all the same."""
    host_pid_namespace = True
    """The agent shares the pid namespace that the driver's pids are of."""

    def __init__(
        self,
        scenario: Scenario,
        clock: Clock,
        start: float | None = None,
        *,
        fallback: FallbackProc | None = None,
        others: Sequence[Process] = (),
    ) -> None:
        self.scenario = scenario
        self.name = scenario.name
        self.scenario_clock = ScenarioClock(clock, start)
        self._faults = FaultInjector(scenario.faults, self.scenario_clock)
        by_gpu = expand(scenario.gpus)
        every_process = [process for processes in by_gpu for process in processes]
        self._bindings = Bindings(every_process, self.scenario_clock)
        self._gpus = [
            Gpu(
                index,
                spec,
                by_gpu[index],
                scenario_clock=self.scenario_clock,
                faults=self._faults,
                bindings=self._bindings,
            )
            for index, spec in enumerate(_each_gpu(scenario))
        ]
        self.session = SimulatedSession(scenario, self._gpus, scenario_clock=self.scenario_clock, faults=self._faults)
        self.library = SimulatedLibrary(self.session)
        self.proc = SimulatedProc([*every_process, *others], self.scenario_clock, fallback)
        self._faults_file = (
            FaultsFile(Path(scenario.faults_file), self._faults, len(self._gpus)) if scenario.faults_file else None
        )

    # ---- the host --------------------------------------------------------------------------------

    def host_memory(self) -> HostMemory:
        """Return the memory of the machine: what the processes hold on GPUs that share it is taken from it."""
        now, host = self.scenario_clock.now(), self.scenario.host
        kernel = int(host.kernel(now))
        on_gpus = sum(gpu.shared_bytes() for gpu in self._gpus)
        available = max(0, host.memory - kernel - int(host.used(now)) - self.proc.resident_bytes() - on_gpus)
        page_cache = min(available, int(host.page_cache(now)))
        return HostMemory(
            total_bytes=host.memory,
            available_bytes=available,
            free_bytes=available - page_cache,
            page_cache_bytes=page_cache,
            kernel_bytes=kernel,
            swap_total_bytes=host.swap,
            swap_free_bytes=max(0, host.swap - int(host.swap_used(now))),
        )

    def memory_pressure(self) -> MemoryPressure:
        """Return the shares of time in which programs waited for memory; the scenario gives percent.

        While there is any, programs reclaim memory themselves ten times a second.
        """
        now, host = self.scenario_clock.now(), self.scenario.host
        some, full = min(1.0, host.pressure(now) / 100), min(1.0, host.full_pressure(now) / 100)
        return MemoryPressure(some, full, direct_reclaims=int(10 * now) if some else 0)

    # ---- real processes --------------------------------------------------------------------------

    def bind(self, key: str, pid: int) -> None:
        """Bind the processes that the scenario declares `bind: KEY` to this real one, from now until it ends.

        Raises:
            KeyError: the scenario has no such process.
            ProcessLookupError: there is no such pid.
        """
        self._bindings.bind(key, pid)

    def unbind(self, key: str) -> None:
        """End the process: the driver forgets it and its memory.

        Raises:
            KeyError: the scenario has no such process.
        """
        self._bindings.unbind(key)

    # ---- faults ----------------------------------------------------------------------------------

    def inject(self, fault: Fault) -> Fault:
        """Let something go wrong, from now if its time has passed. Returns the fault as it stands.

        Raises:
            ValueError: it is for a GPU or a call that there is not.
        """
        check_calls(fault)
        if fault.gpu is not None and fault.gpu >= len(self._gpus):
            raise ValueError(f"there is no GPU {fault.gpu}: the node has {len(self._gpus)}")
        return self._faults.inject(fault)

    def clear(self) -> None:
        """Clear every fault, the scenario's own too.

        A driver that was reloaded stays reloaded.
        """
        self._faults.clear()

    def release(self) -> None:
        """Let every hanging call return, now and later."""
        self._faults.release()

    # ---- the rest --------------------------------------------------------------------------------

    def pci_gpu_count(self) -> int:
        """Count the GPUs on the PCI bus: those count too that the driver has lost or does not enumerate."""
        return len(self._gpus)

    def close(self) -> None:
        """Let hanging calls go and give descriptors back."""
        if self._faults_file is not None:
            self._faults_file.close()
        self.release()
        self._bindings.close()


def _each_gpu(scenario: Scenario) -> list[GpuSpec]:
    return [spec for spec in scenario.gpus for _ in range(spec.count)]
