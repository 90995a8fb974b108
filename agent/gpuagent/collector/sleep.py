"""Let a GPU sleep that nobody uses: reading it would wake it up, or keep it awake.

Laptops and some workstations power a GPU down while it is idle (runtime D3: NVIDIA's README, "PCI-Express Runtime D3
Power Management"; Documentation/power/runtime_pm.rst), and a monitor that asks each second keeps it at 10 W and more
(https://github.com/Syllo/nvtop/issues/230). The kernel tells in sysfs whether a device may sleep and does, without
waking it. Of a GPU that may not sleep, as on servers, nothing changes.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from gpuagent.core.snapshot import GpuReading
from gpuagent.procfs.kernel_log import pci_address

IDLE_SECONDS = 60.0
"""So long a GPU has had no process and no work before it is left alone."""
PATIENCE_SECONDS = 60.0
"""So long it is left alone for it to fall asleep; then it is read once more, as somebody may have come."""
ASLEEP = "powered down, and not read so that it can stay so"
LEFT_ALONE = "nobody uses it, and it is not read so that it can power down"


class RuntimePower(NamedTuple):
    """What the kernel says of the power of a PCI device."""

    may_sleep: bool
    """`power/control` is `auto`: an administrator, the distribution or the driver allows it."""
    suspended: bool


def read_runtime_power(pci_bus_id: str, root: Path = Path("/sys/bus/pci/devices")) -> RuntimePower | None:
    """Return the runtime power of the GPU at this address; None where the kernel does not tell it."""
    address = pci_address(pci_bus_id)
    if address is None:
        return None
    domain, bus, device = address
    folder = root / f"{domain:04x}:{bus:02x}:{device:02x}.0" / "power"
    try:
        may_sleep = (folder / "control").read_text("ascii").strip() == "auto"
        return RuntimePower(
            may_sleep, may_sleep and (folder / "runtime_status").read_text("ascii").strip() == "suspended"
        )
    except (OSError, ValueError):
        return None


class IdleGpuTracker:
    """Whether one GPU is left alone at this tick."""

    def __init__(self) -> None:
        self.reason = ""
        """Why it is not read; "" while it is."""
        self._idle_since: float | None = None
        self._left_alone_since = 0.0
        self._slept = False

    def update(self, now_seconds: float, power: RuntimePower | None, last: GpuReading | None, *, used: bool) -> bool:
        """Return whether not to read it; `used` says whether its `last` reading showed a process or work."""
        if power is None or not power.may_sleep or last is None:
            return self._read()
        if self.reason:
            return self._goes_on(now_seconds, power)
        if not last.processes_read or used:
            return self._read()
        if self._idle_since is None:
            self._idle_since = now_seconds
        if not power.suspended and now_seconds - self._idle_since < IDLE_SECONDS:
            return False
        self._left_alone_since, self._slept = now_seconds, power.suspended
        self.reason = ASLEEP if power.suspended else LEFT_ALONE
        return True

    def _goes_on(self, now_seconds: float, power: RuntimePower) -> bool:
        if power.suspended:
            self._slept, self.reason = True, ASLEEP
            return True
        if self._slept or now_seconds - self._left_alone_since >= PATIENCE_SECONDS:
            return self._read()  # somebody has woken it, or it does not fall asleep
        return True

    def _read(self) -> bool:
        self.reason, self._idle_since = "", None
        return False
