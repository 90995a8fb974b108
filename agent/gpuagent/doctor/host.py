"""The machine around the GPUs: namespaces, /proc, permissions, limits, clock."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from gpuagent.doctor.finding import Finding, Level
from gpuagent.procfs.machine import CAP_KILL, CAP_SYS_PTRACE, COST, effective_capabilities, in_host_pid_namespace

_OLDEST_PLAUSIBLE = 1_735_689_600  # 2025-01-01: a clock before that was never set


def pid_namespace(proc: str = "/proc") -> Iterator[Finding]:
    """Whether the driver's pids mean the same here."""
    if in_host_pid_namespace(proc):
        yield Finding("pid namespace", Level.OK, "the host's")
    else:
        yield Finding("pid namespace", Level.WARNING, COST, "hostPID: true in Kubernetes, --pid=host in Docker")


def process_visibility(proc: Path = Path("/proc")) -> Iterator[Finding]:
    """Whether other users' processes can be looked at."""
    try:
        options = next(
            (line.split()[3] for line in (proc / "mounts").read_text().splitlines() if line.split()[1] == "/proc"), ""
        )
    except (OSError, IndexError):
        options = ""
    hidden = any(option in ("hidepid=1", "hidepid=2", "hidepid=invisible", "hidepid=noaccess", "hidepid=ptraceable")
                 for option in options.split(","))  # fmt: skip
    if hidden and os.geteuid() != 0:
        yield Finding(
            "process visibility", Level.WARNING, "/proc is mounted with hidepid: other users' processes look dead",
            "add the agent's user to the group of the mount option gid=, or run as root",
        )  # fmt: skip
    else:
        yield Finding("process visibility", Level.OK, "processes of all users can be seen")


def capabilities(proc: Path = Path("/proc")) -> Iterator[Finding]:
    """What this user may do to other users' processes."""
    effective = effective_capabilities(root=proc)
    if effective is None:
        return
    missing = [
        name for name, bit in (("CAP_KILL", CAP_KILL), ("CAP_SYS_PTRACE", CAP_SYS_PTRACE))
        if not effective >> bit & 1
    ]  # fmt: skip
    if missing:
        yield Finding(
            "capabilities", Level.INFO,
            f"without {' and '.join(missing)}: other users' processes can be shown, not all of them in full, and not "
            "be signalled",
        )  # fmt: skip
    else:
        yield Finding("capabilities", Level.OK, "all that remedies may need")


def pidfd() -> Iterator[Finding]:
    """Whether a process can be held by a descriptor, which is what makes a signal safe."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        yield Finding("pidfd", Level.WARNING, f"pidfd_open: {error.strerror}", "Linux 5.3 or newer is needed to act")
    else:
        yield Finding("pidfd", Level.OK, "available")


def descriptors() -> Iterator[Finding]:
    """One descriptor per GPU process is kept open."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        yield Finding("descriptors", Level.WARNING, f"the hard limit is {hard}",
                      "LimitNOFILE= in the unit; above 4096 GPU processes cost nothing to follow")  # fmt: skip
    else:
        yield Finding("descriptors", Level.OK, f"hard limit {'none' if hard == resource.RLIM_INFINITY else hard}")


def clock() -> Iterator[Finding]:
    """Ages and holds use CLOCK_BOOTTIME; the wall clock is for what people read."""
    if time.time() < _OLDEST_PLAUSIBLE:
        yield Finding("clock", Level.WARNING, "the wall clock was never set", "time stamps will be wrong; use NTP")
    else:
        yield Finding("clock", Level.OK, time.strftime("%Y-%m-%d %H:%M:%S %Z"))
