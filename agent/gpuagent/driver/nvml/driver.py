"""Serve the collector through NVML: the backend of NVIDIA's GPUs."""

from __future__ import annotations

from collections.abc import Callable

from gpuagent.core.clock import Clock
from gpuagent.driver.backend import Versions
from gpuagent.driver.nvml.collect import COLLECTORS, Collector
from gpuagent.driver.nvml.events import XidWatcher
from gpuagent.driver.nvml.identity import open_device
from gpuagent.driver.nvml.library import Library, NvmlFailure


class NvmlDriver:
    """NVML as a `gpuagent.driver.backend.Driver`."""

    collectors = COLLECTORS

    def __init__(self, library: Library | None = None) -> None:
        """Use `library`; None is the driver's own."""
        self.library = library or Library()

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
        return int(self.library.call("nvmlDeviceGetCount"))

    def open_gpu(self, index: int, clock: Clock, driver_version: str, address_of: Callable[[str], str]) -> Collector:
        """Attach to a GPU, which may wake it: see `open_device`. Raises NvmlFailure."""
        device = open_device(self.library, index, clock, address_of)
        device.driver_version = driver_version
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
