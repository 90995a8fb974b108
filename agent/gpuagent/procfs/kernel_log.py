"""GPUs that have fallen off the bus by the kernel's log, which may be the last that is heard of them.

NVML reports its Xid 79 only while the GPU still answers. The driver writes to the kernel's log in any case, with
an Xid number or without (kernel-open/nvidia/nv.c and src/nvidia/src/kernel/gpu_mgr of open-gpu-kernel-modules).
Reading it takes CAP_SYSLOG where `kernel.dmesg_restrict` is set, so it is read where that is permitted.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from pathlib import Path

log = logging.getLogger(__name__)

KMSG = Path("/dev/kmsg")
_RECORD_BYTES = 8192
"""A record is never longer (CONSOLE_EXT_LOG_MAX in linux/printk.h); a read of less would fail."""
_MOST_RECORDS = 2000
"""Records read at a time: a flood is worked off over several ticks."""
_FACILITY_SHIFT = 3
"""Bits below the facility, which is 0 for the kernel: programs that write to the log have another (syslog.h)."""
_DRIVER = "NVRM: "
_BUS = r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?)"
_XID = re.compile(rf"NVRM: Xid \(PCI:{_BUS}(?: [^()]*)?\): 79, ")
_GPU = re.compile(rf"NVRM: GPU (?:at (?:PCI:)?)?{_BUS}:? (?:GPU )?has fallen off the bus\.")
_BEGINS = re.compile(rf"NVRM: The NVIDIA GPU {_BUS}(?![0-9a-fA-F])")
_ENDS = re.compile(r"NVRM: (?:installed in this system has )?fallen off the bus")
"""Each asks for more than a process can have in its name (15 bytes), with which the kernel begins lines of its own:
`NAME[PID]: segfault at`."""
_BREAK = "\\x0a"
_ADDRESS = re.compile(
    r"(?<![0-9a-f])(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-9a-f])?(?![0-9a-f:])", re.IGNORECASE
)

Address = tuple[int, int, int]
"""PCI domain, bus and device."""


def pci_address(text: str) -> Address | None:
    """Return the first PCI address in a text, as NVML and the kernel write them: 00000000:3B:00.0, 0000:3b:00."""
    found = _ADDRESS.search(text)
    return _address(found) if found is not None else None


def _address(found: re.Match[str]) -> Address:
    domain, bus, device = found.groups()
    return int(domain or "0", 16), int(bus, 16), int(device, 16)


class FallenGpus:
    """Read the driver's lines in the kernel log for GPUs that have fallen off the bus.

    A line is the driver's where it begins with the driver's own words and, in there, with more of them than a process
    can have in its name. The rest of a line may be a user's: the name of a process, or of the file that has crashed.
    """

    def __init__(self) -> None:
        self._begun: Address | None = None
        """GPU of the sentence that has begun. Others may write lines in between."""

    def feed(self, line: str) -> Address | None:
        """Return the GPU that this line completes the news of, if it does."""
        if not line.startswith(_DRIVER):
            return None
        if found := _XID.match(line) or _GPU.fullmatch(line):
            return pci_address(found[1])
        if found := _BEGINS.match(line):
            self._begun = pci_address(found[1])
            # It may have broken its lines within one record.
            return self._end() if any(_ENDS.match(each) for each in line.split(_BREAK)[1:]) else None
        return self._end() if _ENDS.match(line) else None

    def _end(self) -> Address | None:
        found, self._begun = self._begun, None
        return found


class KernelLog:
    """What the kernel says from now on. For one thread; nothing waits."""

    def __init__(self, descriptor: int | None) -> None:
        """`descriptor` does not block, and gives one record for each read; None where there is nothing to read."""
        self._descriptor = descriptor
        self._gpus = FallenGpus()

    @classmethod
    def open(cls, path: Path = KMSG) -> KernelLog:
        """Open the log from its end on. One that may not be read is silent."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            log.debug("the kernel's log is not read: %s", error)
            return cls(None)
        with contextlib.suppress(OSError):
            os.lseek(descriptor, 0, os.SEEK_END)
        return cls(descriptor)

    def fallen(self) -> list[Address]:
        """Return the GPUs that were logged since the last call, each as often as it was logged."""
        found: list[Address] = []
        for _ in range(_MOST_RECORDS):
            line = self._record(self._descriptor) if self._descriptor is not None else None
            if line is None:
                break
            address = self._gpus.feed(line)
            found += [] if address is None else [address]
        return found

    def close(self) -> None:
        """Read no more."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _record(self, descriptor: int) -> str | None:
        """Return the text of the next record, as it is escaped, if the kernel itself has written it.

        None where there is no record, "" for one that is not the kernel's. A line break within a record stays escaped:
        the kernel also writes names that users choose, and what follows one there may be a user's text.
        """
        try:
            record = os.read(descriptor, _RECORD_BYTES)
        except BlockingIOError:
            return None
        except BrokenPipeError:  # overwritten before it was read: the next one is the oldest that there is
            return ""
        except OSError as error:
            log.warning("the kernel's log cannot be read any more: %s", error)
            self.close()
            return None
        if not record:
            return None
        # "priority,sequence,microseconds,flags;text\n", with escapes in the text (Documentation/ABI/testing/dev-kmsg).
        prefix, _, text = record.decode("utf-8", "replace").partition("\n")[0].partition(";")
        priority = prefix.partition(",")[0]
        if not priority.isdecimal() or int(priority) >> _FACILITY_SHIFT:
            return ""
        return text
