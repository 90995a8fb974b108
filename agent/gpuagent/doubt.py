"""Words for what the driver says and is not believed: shared by who measures, who shows and who decides to act."""

from __future__ import annotations

WITHHELD = "cannot be true; withheld"
"""Part of the reason of a collector run whose answer was not believed; `GpuReading.act_refusal` says why."""
SHUFFLED_LIST = "this driver is known to shuffle its process list (535.43 to 535.98)"
"""Refusal to act where `GpuReading.processes_trusted` is False."""
MPS_UNKNOWN = "the MPS list may not be read: clients of MPS cannot be told"
"""Refusal to act where a process without "M" among its kinds may be a client of MPS all the same."""
NO_PCI_ADDRESS = "the driver has not told the GPU's PCI address: which GPU this is, is not certain"
"""Refusal to act on a GPU that is known by its UUID alone."""
