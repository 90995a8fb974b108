"""What an Xid of the driver means, what NVIDIA says to do about it, and how grave it is.

Codes and actions are those of NVIDIA's catalog for Ampere and later
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, column "Immediate Action"). A code that the
catalog names without an action, or does not name, is worth a look.
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


class Action(NamedTuple):
    """What to do about an Xid, in words, and how grave that makes it."""

    advice: str
    severity: Severity

    @property
    def repair(self) -> bool:
        """It stays a problem until the driver shows that this was done, not only while it is recent."""
        return self.severity is Severity.CRITICAL


IGNORE = Action("NVIDIA asks for nothing: note it for when other errors follow.", Severity.INFO)
FOLLOW_OTHER = Action("It comes along with another Xid: see the GPU's other problems.", Severity.INFO)
RESTART_APP = Action("Usually a fault of the program that ran there: look at its log first.", Severity.INFO)
RESTART_VICTIM = Action(
    "The program that was hit has ended: restart it, and reset the GPU when it is idle.", Severity.WARNING
)
RESET_GPU = Action("Drain the node, reset the GPU, and run a diagnostic before it is used again.", Severity.CRITICAL)
RESTART_MACHINE = Action(
    "Drain and reboot the node; if it happens again, the GPU has to be replaced.", Severity.CRITICAL
)
RESTART_VM = Action("Restart the virtual machine; if it happens again, ask NVIDIA's support.", Severity.CRITICAL)
CHECK_NVLINK = Action(
    "Check NVLink on this GPU and its neighbors; reset them, and replace what fails again.", Severity.CRITICAL
)
CHECK_POWER = Action("Check that the board's auxiliary power cable is connected.", Severity.WARNING)
UPDATE = Action("Update the driver and the firmware to versions that go together.", Severity.WARNING)
LOOK = Action("See NVIDIA's list of Xid errors, and the kernel log around that time.", Severity.WARNING)

FALLEN_OFF_XID = 79
_CATALOG: dict[Action, dict[int, str]] = {
    RESTART_APP: {
        8: "the GPU stopped processing for a program",
        11: "a program sent work that the GPU cannot read",
        13: "graphics engine exception",
        25: "a program sent work that the GPU does not allow",
        31: "memory page fault",
        32: "a program sent work that the GPU cannot read",
        60: "video processor exception",
        68: "video decoder exception",
        69: "graphics engine class error",
        80: "work that was sent to the GPU arrived damaged",
        86: "optical flow engine exception",
        139: "optical flow engine exception",
        **dict.fromkeys((39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), "copy engine exception"),
        **dict.fromkeys((82, *range(99, 106)), "JPEG engine exception"),
        **dict.fromkeys((83, 84, 88, 89, 96, 97, 98), "video decoder exception"),
    },
    RESTART_VICTIM: {94: "contained memory error"},
    RESET_GPU: {
        46: "the GPU stopped processing",
        48: "memory error that could not be corrected",
        62: "internal micro-controller halted",
        64: "a bad memory row or page could not be recorded",
        95: "uncontained memory error",
        109: "context switch timeout",
        110: "security fault",
        119: "the GPU's firmware (GSP) does not answer",
        120: "error in the GPU's firmware (GSP)",
        136: "training of a link failed",
        140: "memory error that was not recovered",
        143: "the GPU could not be initialized",
        155: "NVLink error found by software",
        156: "a part of the GPU was retired, which a reset completes",
        158: "the GPU did not answer in time",
    },
    RESTART_MACHINE: {FALLEN_OFF_XID: "the GPU has fallen off the bus"},
    RESTART_VM: {151: "keys of confidential computing could not be renewed"},
    CHECK_NVLINK: {74: "NVLink error", **dict.fromkeys(range(144, 151), "NVLink error")},
    CHECK_POWER: {54: "auxiliary power is not connected to the board"},
    UPDATE: {78: "a virtual GPU could not be started"},
    FOLLOW_OTHER: {
        45: "a program's work was cleaned up after an error",
        154: "the advised recovery action has changed",
        171: "particulars of a memory error (DRAM)",
        172: "particulars of a memory error (SRAM)",
    },
    IGNORE: {
        37: "error in the driver's firmware",
        38: "the driver's firmware did not answer in time",
        43: "the GPU stopped processing for a program",
        44: "graphics engine fault at a context switch",
        63: "a bad memory row or page was recorded",
        66: "illegal access by the driver",
        67: "illegal access by the driver",
        92: "many corrected memory errors",
        93: "the configuration memory (InfoROM) is written often",
        106: "test message",
        107: "test message",
        121: "error of the link between CPU and GPU (C2C)",
        137: "NVLink access that was not allowed",
        141: "error of a fast path in CUDA",
        152: "memory fault of the deep learning accelerator",
        153: "the deep learning accelerator did not answer in time",
        157: "a part of the GPU could not be retired",
        160: "a memory channel was retired",
        161: "a memory channel could not be retired",
    },
    LOOK: {
        159: "error of the link between CPU and GPU (CHI)",
        162: "power smoothing is on again",
        163: "power smoothing is off",
        164: "the power smoothing circuit is nearly worn out",
        165: "the power smoothing circuit is worn out",
        166: "NVLink traffic before its encryption was ready",
        167: "PCI Express did not answer in time",
        168: "errors in protected memory: the GPU has less memory than before",
        169: "internal micro-controller halted",
        170: "NVLink event in confidential computing",
    },
}


class Xid(NamedTuple):
    """One code: what it says, and what to do next."""

    meaning: str
    action: Action

    @property
    def severity(self) -> Severity:
        return self.action.severity

    @property
    def advice(self) -> str:
        return self.action.advice


_XIDS = {code: Xid(meaning, action) for action, codes in _CATALOG.items() for code, meaning in codes.items()}
REPAIR_XIDS = frozenset(code for code, xid in _XIDS.items() if xid.action.repair)
"""Codes after which NVIDIA asks for a reset of the GPU, a reboot or a new GPU."""


def explain_xid(code: int) -> Xid:
    """Return what a code says; a code that the catalog does not have is said to be one."""
    return _XIDS.get(code, Xid("a code that NVIDIA's catalog does not have", LOOK))
