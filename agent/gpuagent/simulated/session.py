"""Between nvmlInit and nvmlShutdown.

Whether a call may be answered at all, and which GPU a handle means.
"""

from __future__ import annotations

import threading
from typing import Any

from gpuagent.simulated.codes import Code, Refusal
from gpuagent.simulated.device import Device, Gpu, MigDevice
from gpuagent.simulated.faults import FaultBoard, Kind
from gpuagent.simulated.garbage import Garbage
from gpuagent.simulated.pointers import Pointers
from gpuagent.simulated.spec import Scenario
from gpuagent.simulated.story import Story


class Session:
    """The library's state in this process. Thread-safe."""

    def __init__(self, scenario: Scenario, gpus: list[Gpu], *, story: Story, faults: FaultBoard) -> None:
        self.scenario = scenario
        self.story = story
        self.faults = faults
        self.pointers = Pointers()
        self.garbage = Garbage()
        self.gpus = gpus
        self._lock = threading.Lock()
        self._references = 0
        self._generation = faults.generation()
        self._born = story.now()

    # ---- life ------------------------------------------------------------------------------------

    def initialize(self) -> None:
        """Open the library once more.

        Raises:
            Refusal: the driver is not there, is another one, or the scenario says so.
        """
        fault = self.faults.find(Kind.INIT_ERROR)
        if fault is not None and fault.code is not None:
            raise Refusal(fault.code)
        self._check_driver()
        with self._lock:
            generation = self.faults.generation()
            if generation != self._generation:
                self._generation, self._references = generation, 0
                self.pointers.invalidate()
            self._references += 1

    def shutdown(self) -> None:
        """Close it once.

        Raises:
            Refusal: it was not open.
        """
        with self._lock:
            if not self._references:
                raise Refusal(Code.UNINITIALIZED)
            self._references -= 1

    def check(self) -> None:
        """Raise what every call answers in a session that is none.

        The library is closed, or the driver is not the one it was opened with.
        """
        if not self._references:
            raise Refusal(Code.UNINITIALIZED)
        if self.faults.of(None):
            self._check_driver()
        if self.faults.generation() != self._generation:
            raise Refusal(Code.UNINITIALIZED)

    def _check_driver(self) -> None:
        if self.faults.driver_is_down():
            raise Refusal(Code.DRIVER_NOT_LOADED)
        mismatch = self.faults.find(Kind.VERSION_MISMATCH)
        # A process keeps the library it has mapped: only one that started later has the new one.
        if mismatch is not None and (mismatch.at == 0 or self._born < mismatch.at):
            raise Refusal(Code.LIB_RM_VERSION_MISMATCH)

    def driver_version(self) -> str:
        """Version of the driver that is loaded now."""
        return self.faults.driver_version(self.scenario.driver)

    # ---- devices ---------------------------------------------------------------------------------

    def enumerated(self) -> list[Gpu]:
        """The GPUs that the driver counts, in the order of their indices."""
        return [gpu for gpu in self.gpus if self.faults.find(Kind.VANISH, gpu.index) is None]

    def index_of(self, gpu: Gpu) -> int:
        """Its index now: those behind a vanished one move up."""
        return sum(other.index < gpu.index for other in self.enumerated())

    def check_present(self, device: Device) -> None:
        """Raise if the GPU has gone, or the MIG instance."""
        gpu = device.parent
        if self.faults.of(gpu.index):
            if self.faults.find(Kind.VANISH, gpu.index) is not None:
                raise Refusal(Code.GPU_IS_LOST)
            lost = self.faults.find(Kind.LOST, gpu.index)
            if lost is not None:
                raise Refusal(Code.GPU_IS_LOST if lost.code is None else lost.code)
        if isinstance(device, MigDevice) and not device.exists(self.story.now()):
            raise Refusal(Code.INVALID_ARGUMENT)

    def device(self, handle: Any) -> Device:
        """The device that a handle means.

        Raises:
            Refusal: INVALID_ARGUMENT for NULL and for a handle from before a driver reload.
        """
        return self.pointers.resolve((Gpu, MigDevice), handle)  # type: ignore[arg-type]

    def handle(self, device: Device, symbol: str) -> int:
        """The address that callers know this device by.

        Taking it can hang or fail like any call on the GPU.
        """
        if self.faults.wait(symbol, device.parent.index, own=True):
            self.check()
        self.check_present(device)
        self.faults.refuse(symbol, device.parent.index, own=True)
        return self.pointers.issue(device)
