"""GPUs that have fallen off the bus by the kernel's log: believed once NVML fails for them as well.

The log is text, and a GPU that answers is on the bus whatever is written there. A report waits for a minute, since NVML
may answer a while from what it remembers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuagent.core.snapshot import GpuIdentity, GpuReading, GpuState
from gpuagent.procfs.kernel_log import Address, pci_address

WAIT_SECONDS = 60.0
_FAILS = (GpuState.LOST, GpuState.GONE, GpuState.FAILED, GpuState.BLIND)


class FallReports:
    """Reports that wait for NVML to fail, by PCI address."""

    def __init__(self) -> None:
        self._told: dict[Address, float] = {}

    def confirm(self, told: Iterable[Address], gpus: Sequence[GpuReading], now_seconds: float) -> list[GpuIdentity]:
        """Add the addresses that were told since the last call; return the GPUs of reports for which NVML fails now."""
        at = {pci_address(gpu.identity.pci_bus_id): gpu for gpu in gpus}
        self._told |= {each: now_seconds for each in told if each in at}
        found = [at[each].identity for each in self._told if each in at and at[each].state in _FAILS]
        confirmed = {pci_address(each.pci_bus_id) for each in found}
        self._told = {
            each: since
            for each, since in self._told.items()
            if each not in confirmed and now_seconds - since < WAIT_SECONDS
        }
        return found
