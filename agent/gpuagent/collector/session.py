"""Hold one NVML session from initialization to its end: retried with back-off, renewed when the driver was reloaded.

A library that is stuck, missing or of another version than the driver is a state with a reason, never the end of the
agent. Everything that may block happens in a worker of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum, auto

from gpuagent.collector.workers import Worker
from gpuagent.core.clock import Backoff, Clock
from gpuagent.core.snapshot import NvmlState, Pause, why_unread
from gpuagent.driver.backend import Driver, DriverFailure, Versions

log = logging.getLogger(__name__)

_FIRST_RETRY_SECONDS = 1.0
_LONGEST_RETRY_SECONDS = 60.0
_SLOW_SECONDS = 1.0
"""An initialization that takes longer is called a hang; it is waited for all the same."""


class _Job(Enum):
    """What the worker was asked to do last."""

    INITIALIZE = auto()
    COUNT = auto()
    LEAVE = auto()


class NvmlSession:
    """The present initialization, known by its `generation`: a handle of another generation must not be used."""

    def __init__(self, driver: Driver, clock: Clock, worker: Worker) -> None:
        self._driver = driver
        self._clock = clock
        self._worker = worker
        self._backoff = Backoff(_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS)
        self._job = _Job.INITIALIZE
        self._references = 0
        self.generation = 0
        self.state = NvmlState.STARTING
        self.reason = ""
        self.asked: Pause | None = None
        """Who asked for the pause that is in force, and until when."""
        self.versions = Versions()
        self.gpu_count = 0
        self.driver_loads = 0
        """Number of times that the driver was found loaded after it was unloaded, or had another version."""
        self._unloaded = False
        self.needs_new_process = False
        """The driver was upgraded underneath: the library that this process has mapped will never fit again."""

    @property
    def ready(self) -> bool:
        """Handles of this generation may be used."""
        return self.state is NvmlState.READY

    @property
    def why_unread(self) -> str:
        """Reason why no GPU is read, in words that stand alone."""
        return why_unread(self.state, self.reason)

    @property
    def beginning(self) -> bool:
        """An initialization is under way, or will be when it is due."""
        return self.state in (NvmlState.STARTING, NvmlState.FAILED)

    def advance(self, *, leave: Callable[[], bool]) -> None:
        """Take what the worker has answered, and start the next initialization when it is due.

        `leave` is called in the worker before an old initialization is shut down: it gets every other thread out of
        the library and says whether that worked. Shutting down under another thread would be a segmentation fault.
        """
        outcome = self._worker.take_result()
        if outcome is not None:
            if self._job is _Job.COUNT:
                self._counted(outcome.value, outcome.error)
            elif self._job is _Job.INITIALIZE:
                self._initialization_ended(outcome.value, outcome.error)
        if self._worker.busy:
            if self.beginning and self._worker.busy_seconds > _SLOW_SECONDS:
                self._fail(f"NVML has not answered for {self._worker.busy_seconds:.0f} s (initialization hangs)")
        elif self.beginning and self._backoff.due(self._clock.now()):
            self._start(_Job.INITIALIZE, lambda: self._initialize(leave))
        elif self.state is NvmlState.PAUSED and self._references:
            self._start(_Job.LEAVE, lambda: self._leave(leave))

    def end(self, reason: str) -> None:
        """End a session (driver reloaded, library gone) and begin anew, at once and then with back-off."""
        if self.ready:
            self.generation += 1
            self._backoff.succeeded()
            self._fail(reason)

    def renew(self, why: str) -> None:
        """Initialize again although nothing has failed: all GPUs miss the time that this takes."""
        if self.ready:
            self.generation += 1
            self.state, self.reason = NvmlState.STARTING, why
            log.info("NVML is initialized again: %s", why)

    def failed_with(self, failure: DriverFailure) -> None:
        """Note that a call answered that the session has ended."""
        self._note(failure)
        self.end(str(failure))

    def count(self) -> None:
        """Ask, off the loop, whether as many GPUs are enumerated as before."""
        if self.ready and not self._worker.busy:
            self._start(_Job.COUNT, self._driver.count_gpus)

    @property
    def released(self) -> bool:
        """Nothing of the driver is held: it can be unloaded, or a GPU reset."""
        return not self._references and not self._worker.busy

    def pause(self, why: str = "", asked: Pause | None = None) -> None:
        """Close the library at the next `advance`, and keep it closed until `resume`.

        `why` is for whoever is told, `asked` for the rules.
        """
        self.asked = asked or self.asked
        if self.state is NvmlState.PAUSED:
            self.reason = why or self.reason
        else:
            self.generation += 1
            self.state, self.reason = NvmlState.PAUSED, why or "on request"
            log.info("NVML is being closed on request")

    def resume(self) -> None:
        """Initialize again after `pause`."""
        if self.state is NvmlState.PAUSED:
            self._backoff.succeeded()
            self.asked = None
            self.state, self.reason = NvmlState.STARTING, "resumed"

    def _start(self, job: _Job, action: Callable[[], object]) -> None:
        self._job = job
        self._worker.start(action)

    def _initialize(self, leave: Callable[[], bool]) -> tuple[Versions, int]:
        """Initialize, in the worker."""
        self._leave(leave)
        self._driver.initialize()
        self._references += 1
        return self._driver.versions(), self._driver.count_gpus()

    def _leave(self, leave: Callable[[], bool]) -> None:
        """Shut down, in the worker: a stuck thread keeps the old initialization alive, which costs one reference.

        NVML counts its initializations and lets go with the last of them (nvml.h, nvmlShutdown).
        """
        if self._references and leave():
            while self._references:
                self._driver.shutdown()
                self._references -= 1

    def _initialization_ended(self, value: tuple[Versions, int] | None, error: BaseException | None) -> None:
        if self.state is NvmlState.PAUSED:
            return
        if error is None and value is not None:
            before = self.versions.driver
            self.versions, self.gpu_count = value
            if self._unloaded or (before and self.versions.driver not in ("", before)):
                self.driver_loads += 1
            self._unloaded = False
            self.generation += 1
            self.state, self.reason = NvmlState.READY, ""
            self._backoff.succeeded()
            log.info("NVML is ready: driver %s, %d GPUs", self.versions.driver or "?", self.gpu_count)
            return
        if isinstance(error, DriverFailure):
            self._note(error)
        self._backoff.failed(self._clock.now())
        self._fail(str(error))

    def _counted(self, number: int | None, error: BaseException | None) -> None:
        if isinstance(error, DriverFailure) and error.ends_session:
            self.failed_with(error)
        elif error is None and number != self.gpu_count:
            self.end(f"{number} GPUs are enumerated instead of {self.gpu_count}")

    def _note(self, failure: DriverFailure) -> None:
        if failure.needs_new_process:
            self.needs_new_process = True
        self._unloaded |= failure.driver_unloaded

    def _fail(self, reason: str) -> None:
        if self.state is not NvmlState.FAILED or _kind(reason) != _kind(self.reason):
            log.warning("no GPU can be read: %s", reason)
        self.state, self.reason = NvmlState.FAILED, reason


def _kind(reason: str) -> str:
    """Return a reason without its numbers: a hang that grows older is not news each second."""
    return "".join(character for character in reason if not character.isdigit())
