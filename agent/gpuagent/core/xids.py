"""What an Xid of the driver means, and how grave it is.

Codes: https://docs.nvidia.com/deploy/xid-errors/index.html. The tiers follow what others page for
(utkuozdemir/nvidia_gpu_exporter) and what the Kubernetes device plugin ignores
(https://github.com/NVIDIA/k8s-device-plugin/issues/1340).
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Severity(StrEnum):
    """Gravest first."""

    CRITICAL = "critical"
    """Work is lost or about to be: somebody has to act now."""
    WARNING = "warning"
    """Somebody has to act in working hours."""
    INFO = "info"
    """Good to know when looking for a cause."""


class Xid(NamedTuple):
    """One code: what it says, how grave it is, and what to do next."""

    meaning: str
    severity: Severity
    advice: str

    @property
    def hardware(self) -> bool:
        """It stays a problem until the GPU has been looked at, not only while it is recent."""
        return self.severity is Severity.CRITICAL


_APPLICATION = "Usually a fault of the program that ran there: look at its log first."
_RESET = "Drain the node, reset the GPU, and run a diagnostic before it is used again."
_REBOOT = "Drain and reboot the node; if it happens again, the GPU has to be replaced."
_RESTART_PROGRAM = "The program that was hit has ended: restart it, and reset the GPU when it is idle."
_CABLES = "Check NVLink on this GPU and its neighbors; reset them, and replace what fails again."
_UNKNOWN = "See NVIDIA's list of Xid errors, and the kernel log around that time."

_XIDS = {
    13: Xid("graphics engine exception", Severity.INFO, _APPLICATION),
    31: Xid("memory page fault", Severity.INFO, _APPLICATION),
    43: Xid("the GPU stopped processing for a program", Severity.INFO, _APPLICATION),
    45: Xid("a program's work was cleaned up after an error", Severity.INFO, _APPLICATION),
    68: Xid("video decoder exception", Severity.INFO, _APPLICATION),
    109: Xid("context switch timeout", Severity.INFO, _APPLICATION),
    48: Xid("memory error that could not be corrected", Severity.CRITICAL, _RESET),
    62: Xid("internal micro-controller halted", Severity.CRITICAL, _RESET),
    63: Xid("a bad memory row or page was recorded", Severity.WARNING, _RESTART_PROGRAM),
    64: Xid("a bad memory row or page could not be recorded", Severity.CRITICAL, _REBOOT),
    74: Xid("NVLink error", Severity.CRITICAL, _CABLES),
    79: Xid("the GPU has fallen off the bus", Severity.CRITICAL, _REBOOT),
    92: Xid("many corrected memory errors", Severity.WARNING, _RESET),
    94: Xid("contained memory error", Severity.WARNING, _RESTART_PROGRAM),
    95: Xid("uncontained memory error", Severity.CRITICAL, _RESET),
    119: Xid("the GPU's firmware (GSP) does not answer", Severity.CRITICAL, _REBOOT),
    120: Xid("error in the GPU's firmware (GSP)", Severity.CRITICAL, _REBOOT),
    140: Xid("memory error that was not recovered", Severity.CRITICAL, _RESET),
    154: Xid("the advised recovery action has changed", Severity.INFO, "See the GPU's other problems."),
}


def explain_xid(code: int) -> Xid:
    """Return what a code says; a code that is not in the list is worth a look."""
    return _XIDS.get(code, Xid("driver error report", Severity.WARNING, _UNKNOWN))
