"""A driver of a made-up vendor: total and used memory of each GPU, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpuagent.core.clock import Clock
from gpuagent.core.hardware import Memory
from gpuagent.core.snapshot import CollectorRun, GpuIdentity, GpuReading, GpuState, XidCount
from gpuagent.driver.backend import Collected, DriverFailure, Versions, WatchedGpu

TOTAL_BYTES = 16 * 2**30


class BareFailure(DriverFailure):
    """The card has been pulled out."""

    @property
    def lost(self) -> bool:
        return True


class BareDriver:
    """Without MIG, ECC, process lists and events. `used` is each GPU's memory in use, None where the GPU is lost."""

    collectors = ("memory",)

    def __init__(self, used: list[int | None]) -> None:
        self.used = used
        self.initializations = 0

    def initialize(self) -> None:
        self.initializations += 1

    def shutdown(self) -> None:
        pass

    def versions(self) -> Versions:
        return Versions(driver="1.2")

    def count_gpus(self) -> int:
        return len(self.used)

    def open_gpu(
        self, index: int, clock: Clock, driver_version: str, address_of: Callable[[str], str]
    ) -> BareCollector:
        identity = GpuIdentity(index=index, uuid=f"BARE-{index}", name="Bare One", pci_bus_id=f"0000:0{index}:00.0")
        return BareCollector(self, identity, clock)

    def watch_events(self, clock: Clock) -> NoEvents:
        return NoEvents()


class BareCollector:
    def __init__(self, driver: BareDriver, identity: GpuIdentity, clock: Clock) -> None:
        self.handle = identity.index
        self._driver = driver
        self._identity = identity
        self._clock = clock

    def collect(self, *, slow: bool, longest_gap_seconds: float) -> Collected:
        used = self._driver.used[self._identity.index]
        if used is None:
            raise BareFailure("the card is gone")
        memory = Memory(total_bytes=TOTAL_BYTES, used_bytes=used, free_bytes=TOTAL_BYTES - used)
        runs = (CollectorRun("memory", ok=True, duration_seconds=0.0),)
        now = self._clock.now()
        return Collected(GpuReading(self._identity, GpuState.OK, time_seconds=now, memory=memory, runs=runs))

    def close(self) -> None:
        pass


class NoEvents:
    problem = ""

    def watch(self, gpus: Iterable[WatchedGpu]) -> None:
        pass

    def counts(self) -> tuple[XidCount, ...]:
        return ()

    def with_runs(self, gpus: Iterable[GpuReading]) -> list[GpuReading]:
        return list(gpus)

    def note_fallen_off(self, index: int, uuid: str) -> None:
        pass

    def close(self, timeout_seconds: float) -> bool:
        return True
