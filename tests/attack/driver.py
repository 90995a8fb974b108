"""A driver that lists what a file says: under pynvml in the agent's process, rewritten by the test while it runs."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpuagent.core.clock import Clock
from gpuagent.procfs.files import parse_stat
from gpuagent_simulator.abi import Code, NvmlError
from gpuagent_simulator.curves import Constant, ScenarioClock
from gpuagent_simulator.device import Gpu, GpuMoment, ListedProcess, MigDevice
from gpuagent_simulator.faults import FaultInjector
from gpuagent_simulator.library import SimulatedLibrary
from gpuagent_simulator.node import FaultsFile
from gpuagent_simulator.process import Bindings, Load, Process
from gpuagent_simulator.scenario import parse_scenario
from gpuagent_simulator.session import SimulatedSession
from gpuagent_simulator.spec import GpuSpec, MigInstanceSpec, ProcessSpec
from tests.attack.processes import a_tick_later

GIB = 2**30
H100_GIB = 80

log = logging.getLogger(__name__)


@dataclass
class Entry:
    """A line of the driver's process list."""

    pid: int
    gib: float | None
    """None is NVML's "not available"."""
    start_ticks: int = 0
    """Of the process that allocated the memory: the driver forgets the line when that one has ended."""
    lags: bool = False
    """The driver lists the line on after the end of its process."""
    sm: int = 0
    """Share of the multiprocessors in percent. 0 gives no sample, as with the real driver."""
    encoder: int = 0
    """Share of the video encoder in percent."""
    kind: str = "C"
    instance: int | None = None
    """GPU instance that the line names; None where it names none."""


@dataclass
class ListedGpu:
    """One GPU, as the file has it."""

    uuid: str
    processes: list[Entry] = field(default_factory=list)
    used_gib: float | None = None
    """What the GPU says is in use; by default the sum of its processes."""
    fails: bool = False
    """Process lists are answered with an error."""
    sm: int | None = None
    """Utilization of the whole GPU in percent; by default the sum of its processes."""
    instances: dict[str, float | None] = field(default_factory=dict)
    """What each MIG GPU instance of 20 GiB says is in use, by its number; None is the sum of its processes."""


def started(pid: int) -> int:
    """Return the start of a process in ticks since the boot; 0 where it has ended, be it a zombie still."""
    try:
        stat = parse_stat(Path(f"/proc/{pid}/stat").read_bytes())
    except (OSError, ValueError):
        return 0
    return 0 if stat.state in {"Z", "X"} and stat.threads <= 1 else stat.start_ticks


class DriverFile:
    """The test's side: every change is in force with the agent's next call."""

    def __init__(self, path: Path, *gpus: ListedGpu) -> None:
        self.path = path
        self.gpus = list(gpus) or [ListedGpu("GPU-attacked")]
        self.write()

    def hold(self, pid: int, gib: float | None, *, gpu: int = 0, **more: Any) -> None:
        """List a living process with memory. None can allocate any in the tick in which it was started."""
        a_tick_later()
        a_tick_later()
        entries = self.gpus[gpu].processes
        entries[:] = [each for each in entries if each.pid != pid]
        entries.append(Entry(pid, gib, started(pid), **more))
        self.write()

    def drop(self, pid: int) -> None:
        """List this number nowhere any more."""
        for gpu in self.gpus:
            gpu.processes = [each for each in gpu.processes if each.pid != pid]
        self.write()

    def write(self) -> None:
        """Replace the file at once."""
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps([asdict(gpu) for gpu in self.gpus]), encoding="utf-8")
        new.replace(self.path)


class _Listing:
    """The agent's side: the file as it is now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] = (0, 0)
        self._gpus: list[ListedGpu] = []

    def gpus(self) -> list[ListedGpu]:
        """Read the file again if it has been replaced."""
        found = self._path.stat()
        stamp = found.st_mtime_ns, found.st_ino
        if stamp != self._stamp:
            self._gpus = [_gpu(each) for each in json.loads(self._path.read_text(encoding="utf-8"))]
            self._stamp = stamp
        return self._gpus


def _gpu(document: dict[str, Any]) -> ListedGpu:
    entries = [Entry(**each) for each in document["processes"]]
    return ListedGpu(**{**document, "processes": entries})


class _FileGpu(Gpu):
    """A simulated GPU whose processes and memory the file has."""

    def __init__(
        self, listing: _Listing, index: int, spec: GpuSpec, faults: FaultInjector, scenario_clock: ScenarioClock
    ) -> None:
        super().__init__(
            index, spec, [], scenario_clock=scenario_clock, faults=faults, bindings=Bindings((), scenario_clock)
        )
        self._listing = listing
        self.uuid = self.listed.uuid.encode()
        self.instances = tuple(_FileInstance(self, instance) for instance in spec.mig or ())

    @property
    def listed(self) -> ListedGpu:
        return self._listing.gpus()[self.index]

    def moment(self) -> GpuMoment:
        """Build the rows anew at each call: a test that waits for a change waits for one tick."""
        listed = self.listed
        rows = tuple(
            _row(each, self.index)
            for each in listed.processes
            if each.lags or not each.start_ticks or started(each.pid) == each.start_ticks
        )
        sm = listed.sm if listed.sm is not None else min(100, sum(row.load.sm for row in rows))
        return GpuMoment((0, 0), self.scenario_clock.now(), rows, Load(sm, 0, 0, 0, 0, 0))

    def rows(self) -> tuple[ListedProcess, ...]:
        """Return what a process list has."""
        if self.listed.fails:
            raise NvmlError(Code.UNKNOWN)
        return self.moment().rows

    def memory(self) -> tuple[int, int, int]:
        """Return total, reserved and used bytes: a driver that lies is not corrected."""
        used = self.listed.used_gib
        listed = sum(row.used_bytes or 0 for row in self.moment().rows)
        return H100_GIB * GIB, 0, listed if used is None else int(used * GIB)


class _FileInstance(MigDevice):
    """A MIG device whose memory the file has."""

    def __init__(self, parent: _FileGpu, spec: MigInstanceSpec) -> None:
        super().__init__(parent, spec)
        self._gpu = parent

    def memory(self) -> tuple[int, int, int]:
        """Return total, reserved and used bytes of the GPU instance."""
        total, reserved, used = super().memory()
        told = self._gpu.listed.instances.get(str(self.spec.gpu_instance))
        return total, reserved, used if told is None else int(told * GIB)


def _row(entry: Entry, gpu: int) -> ListedProcess:
    used = None if entry.gib is None else int(entry.gib * GIB)
    memory = None if used is None else Constant(used)
    spec = ProcessSpec(name="listed", memory=memory, kind=entry.kind, gpu_instance=entry.instance)
    return ListedProcess(Process(spec, gpu, 0, entry.pid), entry.pid, used, Load(entry.sm, 0, entry.encoder, 0, 0, 0))


def _mig(gpu: ListedGpu) -> dict[str, Any]:
    """Return the part of a GPU's specification that has its instances; nothing where MIG is off."""
    if not gpu.instances:
        return {}
    one = {"profile": "2g.20gb", "memory": "20GiB"}
    return {"mig": [{"gpu_instance": int(number), **one} for number in gpu.instances]}


def library_of(listing: Path, faults: Path, clock: Clock) -> SimulatedLibrary:
    """Return the library for pynvml: H100s that list what one file says, with the faults of another."""
    files = _Listing(listing)
    count = len(files.gpus())
    models = [{"model": "h100", **_mig(each)} for each in files.gpus()]
    scenario = parse_scenario(json.dumps({"name": "attacked", "gpus": models}))
    scenario_clock = ScenarioClock(clock)
    board = FaultInjector((), scenario_clock)
    gpus: list[Gpu] = [_FileGpu(files, index, spec, board, scenario_clock) for index, spec in enumerate(scenario.gpus)]
    FaultsFile(faults, board, count)
    return SimulatedLibrary(SimulatedSession(scenario, gpus, scenario_clock=scenario_clock, faults=board))
