"""Define what a backend gives to the collector: a driver that opens GPUs, collects readings, and reports events.

The collector knows nothing else of a driver. A backend that lacks something (MIG, ECC, process lists) leaves it out of
its readings, where None and () mean that the driver does not report it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from gpuagent.core.clock import Clock
from gpuagent.core.snapshot import CollectorRun, GpuProcess, GpuReading, ProcessUtilization, XidCount
from gpuagent.core.wording import WITHHELD

LONGEST_GAP_SECONDS = 10.0
"""Two readings that are further apart say nothing of the time between them, unless GPUs are read less often."""
IDLE = ProcessUtilization(0.0, 0.0, 0.0, 0.0)
NOT_BELIEVED = f"the driver's figures {WITHHELD}"


def longest_gap(poll_interval_seconds: float, speed: float) -> float:
    """Return how far apart two readings may be, by the agent's clock, that are taken for one observation."""
    return max(LONGEST_GAP_SECONDS * speed, 2.5 * poll_interval_seconds)


class DriverFailure(Exception):
    """A call into the driver that did not answer with a value, and what has to be done about it."""

    @property
    def lost(self) -> bool:
        """The GPU behind the handle is gone; the others are not."""
        return False

    @property
    def unreachable(self) -> bool:
        """The GPU itself has gone, and not just an answer: also where there is no handle to be had."""
        return self.lost

    @property
    def ends_session(self) -> bool:
        """Every handle is worthless: the driver's library has to be initialized again."""
        return False

    @property
    def driver_unloaded(self) -> bool:
        """The driver is not loaded at present."""
        return False

    @property
    def needs_new_process(self) -> bool:
        """Only a new process helps: the library that this one mapped is never unloaded."""
        return False


@dataclass(frozen=True, slots=True)
class Versions:
    """What the driver says of itself; "" where it does not."""

    driver: str = ""
    nvml: str = ""
    cuda: str = ""


@dataclass(frozen=True, slots=True)
class WatchedGpu:
    """A GPU whose events are wanted, with its handle of the present session."""

    index: int
    uuid: str
    handle: object


@dataclass(frozen=True, slots=True)
class Collected:
    """One tick of one GPU, as far as the driver alone can tell."""

    reading: GpuReading
    processes: tuple[GpuProcess, ...] = ()
    utilizations: dict[int, ProcessUtilization] | None = None
    pids: frozenset[int] = frozenset()
    """Pids of the processes."""
    listed_seconds: float = 0.0
    """Clock (CLOCK_BOOTTIME) just before the process lists were read."""
    worked_at: Mapping[int, float] = field(default_factory=dict)
    """Clock at which a sample of each pid at work was last taken in."""
    contradiction: str = ""
    """Clause that says what is impossible or doubtful about these figures; "" if they can be true."""
    kinds_known: bool = True
    """False where the MPS list may not be read: a process without "M" among its kinds may be a client of MPS."""
    answered_seconds: float = 0.0
    """Clock (CLOCK_BOOTTIME) just after the process lists were read; 0 counts as `listed_seconds`."""

    @property
    def used_bytes(self) -> int | None:
        """Memory of the GPU in use; None where it was not read."""
        memory = self.reading.memory
        return None if memory is None else memory.used_bytes

    def withheld(self, contradiction: str) -> Collected:
        """Return the same without the processes, where `contradiction` says whose they are is not known."""
        reading = replace(
            self.reading, processes_known=False, runs=_with_failed(self.reading.runs, "processes", NOT_BELIEVED)
        )
        return Collected(reading, contradiction=contradiction)


def _with_failed(runs: tuple[CollectorRun, ...], collector: str, reason: str) -> tuple[CollectorRun, ...]:
    """Return the runs with this one as failed; one that has failed already keeps its reason."""
    return tuple(
        run._replace(ok=False, reason=reason) if run.collector == collector and run.ok else run for run in runs
    )


class GpuCollector(Protocol):
    """Collector of one GPU that has been opened; used by one thread only."""

    @property
    def handle(self) -> object:
        """Handle of the present session, for `EventWatcher.watch`."""
        ...

    def collect(self, *, slow: bool, longest_gap_seconds: float) -> Collected:
        """Read the GPU once, at the `slow` rate too what rarely moves or takes long.

        Two readings that are further apart than `longest_gap_seconds` say nothing of the time between them.

        Raises:
            DriverFailure: the GPU is lost or the session has ended; what was read before that is not kept.
        """
        ...

    def close(self) -> None:
        """Give back what the driver allocated for this GPU. Only while the library is initialized."""
        ...


class EventWatcher(Protocol):
    """Watcher that counts events (Xids) per GPU and code since the start."""

    problem: str
    """Reason why no event can be seen; "" if all can."""

    def watch(self, gpus: Iterable[WatchedGpu]) -> None:
        """Listen to these GPUs from now on."""
        ...

    def counts(self) -> tuple[XidCount, ...]:
        """Return every (GPU, code) seen so far."""
        ...

    def with_runs(self, gpus: Iterable[GpuReading]) -> list[GpuReading]:
        """Return the readings; one whose events cannot be had reports that as a failed run."""
        ...

    def note_fallen_off(self, index: int, uuid: str) -> None:
        """Count that a GPU is off the bus, once however often it is reported."""
        ...

    def close(self, timeout_seconds: float) -> bool:
        """Leave the library, so that it can be shut down. False if the watcher is stuck inside it."""
        ...


class Driver(Protocol):
    """A driver's library in this process. Every call may block."""

    @property
    def collectors(self) -> tuple[str, ...]:
        """Names of what is collected of each GPU."""
        ...

    @property
    def initializations(self) -> int:
        """How often the library was initialized."""
        ...

    def initialize(self) -> None:
        """Load the library if need be and initialize it.

        Raises:
            DriverFailure: it cannot be loaded or initialized.
        """
        ...

    def shutdown(self) -> None:
        """Take back one initialization. Never while another thread is inside the library."""
        ...

    def versions(self) -> Versions:
        """Return what the driver says of itself. Raises DriverFailure if the session has ended."""
        ...

    def count_gpus(self) -> int:
        """Return how many GPUs are enumerated. Raises DriverFailure."""
        ...

    def open_gpu(self, index: int, clock: Clock, driver_version: str, address_of: Callable[[str], str]) -> GpuCollector:
        """Attach to a GPU by its index and read what it is.

        `address_of` tells the PCI address at which the GPU with a UUID was last seen, for when the driver does not.

        Raises:
            DriverFailure: the GPU cannot be opened.
        """
        ...

    def watch_events(self, clock: Clock) -> EventWatcher:
        """Return what listens to events; it begins with the first GPUs that it is given."""
        ...
