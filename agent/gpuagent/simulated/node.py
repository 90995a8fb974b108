"""A whole simulated node: what `--simulate` and the tests hold in their hands."""

from __future__ import annotations

from pathlib import Path

from gpuagent.core.clock import Clock
from gpuagent.simulated.bindings import Bindings
from gpuagent.simulated.device import Gpu
from gpuagent.simulated.faults import Fault, FaultBoard
from gpuagent.simulated.faults_file import FaultsFile
from gpuagent.simulated.library import SimulatedLibrary
from gpuagent.simulated.proc import ProcFiles, SimulatedProc
from gpuagent.simulated.process import expand
from gpuagent.simulated.scenario import check_calls
from gpuagent.simulated.session import Session
from gpuagent.simulated.spec import MAX_PID, GpuSpec, Scenario
from gpuagent.simulated.story import Story


class SimulatedNode:
    """GPUs, processes and faults of a scenario, by an injected clock.

    Time 0 of the story is when the node is made, unless `start` says at which `clock.now()` it was:
    so a process that replaces itself goes on where it was. `library` goes under pynvml; `proc` is
    /proc with the made-up processes, `fallback` what it asks about real ones.
    """

    max_pid = MAX_PID
    """Made-up pids lie above the kernel's highest: a reader must believe in them all the same."""

    def __init__(
        self,
        scenario: Scenario,
        clock: Clock,
        start: float | None = None,
        *,
        fallback: ProcFiles | None = None,
    ) -> None:
        self.scenario = scenario
        self.name = scenario.name
        self.story = Story(clock, start)
        self._faults = FaultBoard(scenario.faults, self.story)
        by_gpu = expand(scenario.gpus)
        every_process = [process for processes in by_gpu for process in processes]
        self._bindings = Bindings(every_process, self.story)
        self._gpus = [
            Gpu(
                index,
                spec,
                by_gpu[index],
                story=self.story,
                faults=self._faults,
                bindings=self._bindings,
            )
            for index, spec in enumerate(_each_gpu(scenario))
        ]
        session = Session(scenario, self._gpus, story=self.story, faults=self._faults)
        self.library = SimulatedLibrary(session)
        self.proc = SimulatedProc(every_process, self.story, fallback)
        self._faults_file = (
            FaultsFile(Path(scenario.faults_file), self._faults, len(self._gpus)) if scenario.faults_file else None
        )

    # ---- real processes --------------------------------------------------------------------------

    def bind(self, key: str, pid: int) -> None:
        """Processes that the scenario declares `bind.

        KEY` are this real one, from now until it ends.

        Raises:
            KeyError: the scenario has no such process.
            ProcessLookupError: there is no such pid.
        """
        self._bindings.bind(key, pid)

    def unbind(self, key: str) -> None:
        """The process has ended: the driver forgets it and its memory.

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
        """Take every fault back, the scenario's own too.

        A driver that was reloaded stays reloaded.
        """
        self._faults.clear()

    def release(self) -> None:
        """Let every call that hangs come back, now and later."""
        self._faults.release()

    # ---- the rest --------------------------------------------------------------------------------

    def pci_gpu_count(self) -> int:
        """GPUs on the PCI bus: those count too that the driver has lost or does not enumerate."""
        return len(self._gpus)

    def close(self) -> None:
        """Let hanging calls go and give descriptors back."""
        if self._faults_file is not None:
            self._faults_file.close()
        self.release()
        self._bindings.close()


def _each_gpu(scenario: Scenario) -> list[GpuSpec]:
    return [spec for spec in scenario.gpus for _ in range(spec.count)]
