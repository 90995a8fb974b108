"""Read what this machine and this agent are: boot, pid namespace, process numbers given out, descriptors.

The kernel gives out process numbers in turn and begins anew only when it has come to the end (kernel/pid.c, `alloc_pid`
with `idr_alloc_cyclic`); out of turn only root can choose one (clone3(2) `set_tid`, `ns_last_pid`). So a number is
given again only after about as many forks as there are numbers, and the kernel counts all forks, threads included.
"""

from __future__ import annotations

import hashlib
import re
import resource
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_MACHINE_IDS = (("firmware", "sys/class/dmi/id/product_uuid"), ("system", "etc/machine-id"))
"""The surest first: in a container the second may be the image's, and the first is for root alone to read."""


def boot_id(root: str = "/proc") -> str:
    """Return the kernel's random id of this boot; "" where it may not be read."""
    try:
        return Path(root, "sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


def boot_time_seconds(root: str = "/proc") -> float:
    """Return Unix time of the boot (`btime` of /proc/stat), whole seconds; 0 where it may not be read."""
    try:
        with Path(root, "stat").open("rb") as lines:
            for line in lines:
                if line.startswith(b"btime "):
                    return float(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return 0.0


def machine_id(root: str = "/") -> str:
    """Return the identity of this machine, as `KIND ID`; "" where it may not be read.

    The id is a hash: machine-id(5) asks not to disclose the content of the file.
    """
    for kind, path in _MACHINE_IDS:
        with suppress(OSError):
            said = Path(root, path).read_bytes().strip().lower()
            if said and said != b"uninitialized":
                return f"{kind} {hashlib.sha256(b'gpuagent' + said).hexdigest()[:32]}"
    return ""


CAP_KILL, CAP_SYS_PTRACE = 5, 19
"""Numbers of capabilities (linux/capability.h)."""


def effective_capabilities(pid: int | str = "self", root: str | Path = "/proc") -> int | None:
    """Return the effective capabilities of a process, a bit for each number; None where /proc does not tell."""
    try:
        lines = Path(root, str(pid), "status").read_bytes().split(b"\n")
        return int(next(line.split()[1] for line in lines if line.startswith(b"CapEff:")), 16)
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def may_trace() -> bool | None:
    """Return whether this process has CAP_SYS_PTRACE; None is unknown."""
    found = effective_capabilities()
    return None if found is None else bool(found >> CAP_SYS_PTRACE & 1)


HOST_PID_NAMESPACE = 4026531836
"""Inode of the first pid namespace, the same on every Linux: PROC_PID_INIT_INO in
include/linux/proc_ns.h."""

COST = (
    "the agent runs in a pid namespace of its own: the pids that the driver lists mean nothing"
    " here, so processes have no name, user or container, none can be killed, and some may not be"
    " listed at all; figures per GPU are complete. Run it on the host, or in a container with the"
    ' pids of the host ("--pid=host", "hostPID: true")'
)
"""What it means not to be in the host's pid namespace, and what to do: for `doctor`, the log and
the page."""

_LINK = re.compile(r"pid:\[(\d+)\]")


def namespace_inode(link: str) -> int:
    """Return the inode in the target of a link such as /proc/<pid>/ns/pid; 0 where the text is none."""
    found = _LINK.fullmatch(link)
    return int(found[1]) if found else 0


def own_namespace(root: str = "/proc") -> int:
    """Return the inode of the agent's pid namespace; 0 where /proc does not report it."""
    try:
        return namespace_inode(str(Path(root, "self/ns/pid").readlink()))
    except OSError:
        return 0


def in_host_pid_namespace(root: str = "/proc") -> bool:
    """Return whether the agent sees the host's pids; False where that cannot be known.

    A wrong "yes" could end in the death of a stranger.
    """
    return own_namespace(root) == HOST_PID_NAMESPACE


class PidMark(NamedTuple):
    """A moment in the life of the number space."""

    forks: int | None
    """The kernel's counter of forks; None where it could not be read."""
    numbers: int | None
    """The smallest `pid_max` known of the time up to then; None where none is known."""


SINCE_BOOT = PidMark(0, 4_194_304)
"""The boot, with as many numbers as there can be (`PID_MAX_LIMIT`): the present `pid_max` counts. Nobody has noted what
it was before; systemd sets it at boot, and by the kernel's own 32768 no list of a running node would be believed."""


class PidSpace:
    """Read the kernel's counter of forks, and how many pids there are."""

    def __init__(self, root: str = "/proc") -> None:
        """Take another `root` for tests."""
        self._root = Path(root)
        self._smallest: int | None = None

    def mark(self) -> PidMark:
        """Return the present moment."""
        return PidMark(self._forks(), self._numbers())

    def may_have_wrapped(self, since: PidMark) -> bool:
        """Return whether a number may have been given twice since then.

        The smallest number of numbers that is known of that time counts: while `pid_max` was smaller, they came round
        sooner. Half of them are left as a margin: those in use are skipped, and a fork that failed may have taken one.
        """
        now, numbers = self.mark()
        if now is None or numbers is None or since.forks is None or since.numbers is None or now < since.forks:
            return True
        return now - since.forks >= min(numbers, since.numbers) // 2

    def _forks(self) -> int | None:
        try:
            with (self._root / "stat").open("rb") as lines:
                return next((int(line.split()[1]) for line in lines if line.startswith(b"processes ")), None)
        except (OSError, ValueError, IndexError):
            return None

    def _numbers(self) -> int | None:
        """Return the smallest `pid_max` that was ever read; None where it cannot be read now."""
        try:
            now = int((self._root / "sys" / "kernel" / "pid_max").read_text("ascii"))
        except (OSError, ValueError):
            return None
        self._smallest = now if self._smallest is None else min(now, self._smallest)
        return self._smallest


DESCRIPTORS = 16384
"""Room for a pidfd per GPU process on the largest node, with the sockets and files of the agent
beside them."""


def raise_descriptor_limit(maximum: int = DESCRIPTORS) -> int:
    """Set the soft limit to `maximum`, or to the hard limit where that is lower, and return it.

    The usual soft limit of 1024 is too low for large nodes. An unlimited one is lowered: libraries
    that close or count every possible descriptor take gigabytes then (XuehaiPan/nvitop#128).
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = maximum if hard == resource.RLIM_INFINITY else min(hard, maximum)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft
