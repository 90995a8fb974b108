"""The pause of a fork: how long it will be, whether that is too long, and how to keep it short.

A fork copies the page tables of the app, some 30 ms of CPU time for each GiB resident in pages of 4 KiB; all threads
that need the interpreter or new memory wait for it. On an idle host the pause is that. On a busy one the forking thread
has to wait for a processor in between, which may take twenty times as long: so it asks for real-time priority where
the app may have that, and where not, the wait is measured beforehand.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from gpuagent_client.errors import Refused

PROC = Path("/proc")
PAUSE_PER_BYTE = 0.030 / (1 << 30)
BASE_PAUSE_SECONDS = 0.004
"""CPU time of a fork: measured on CPython 3.11 with torch 2.13, Linux 6.18, in a virtual machine."""
ROUNDS_A_SECOND = 3_500_000
SHORTEST_PROBE, LONGEST_PROBE = 0.01, 0.04
"""Seconds of work. A shorter one fits into the slice that a thread gets when it wakes up, and waits for nobody."""
MOST_WAITING = 100.0
MAY_BE_NICE = 23  # CAP_SYS_NICE, see capabilities(7)


def fields_of(path: Path) -> dict[str, str]:
    """Return the fields of a file such as /proc/self/status; none if it cannot be read."""
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def resident_bytes(proc: Path = PROC) -> int:
    """Return the resident memory of this process without files and shared memory; 0 if it cannot be read."""
    fields = fields_of(proc / "self" / "status")
    known = fields.get("RssAnon", fields.get("VmRSS", "0")).split()
    return int(known[0]) * 1024 if known and known[0].isdigit() else 0


def can_raise_priority(proc: Path = PROC) -> bool:
    """Return whether this thread may ask for real-time priority.

    Not where a seccomp filter is in force: one that does not allow the call may end the process.
    """
    fields = fields_of(proc / "thread-self" / "status")
    try:
        capabilities = int(fields["CapEff"], 16)
    except (KeyError, ValueError):
        return False
    return fields.get("Seccomp", "").strip() == "0" and bool(capabilities >> MAY_BE_NICE & 1)


@contextlib.contextmanager
def realtime_priority(proc: Path = PROC) -> Iterator[int | None]:
    """Give this thread real-time priority, where it may have that; a child that is forked meanwhile has none.

    Yields the niceness that the thread had, which such a child has to take again; None where nothing has changed.
    """
    nice: int | None = None
    try:  # around the call as well: a signal handler or another thread may raise an exception right after it
        try:
            if can_raise_priority(proc) and os.sched_getscheduler(0) == os.SCHED_OTHER:
                nice = os.getpriority(os.PRIO_PROCESS, 0)
                os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
        except (AttributeError, OSError):  # a C library or a kernel that has no such priorities, or a control group
            nice = None
        yield nice
    finally:
        if nice is not None:
            with contextlib.suppress(OSError):
                os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def measure_waiting(seconds: float = SHORTEST_PROBE, proc: Path = PROC) -> float:
    """Return how many times as long as its CPU time some work takes now: 1 on an idle host.

    It is work for about so many seconds, within 10 to 40 ms. Without the interpreter's lock, for which the app would
    wait; what this thread waits for the lock is left out.
    """
    rounds = round(ROUNDS_A_SECOND * min(LONGEST_PROBE, max(SHORTEST_PROBE, seconds)))
    delay, used, began = _run_delay(proc), time.thread_time(), time.monotonic()
    hashlib.pbkdf2_hmac("sha256", b"gpuagent", b"probe", rounds)
    passed = time.monotonic() - began
    used = max(time.thread_time() - used, 1e-6)
    after = _run_delay(proc)
    waited = passed - used if delay is None or after is None else after - delay
    return min(MOST_WAITING, max(1.0, 1.0 + waited / used))


def _run_delay(proc: Path) -> float | None:
    """Return how many seconds this thread has waited for a processor so far; None where the kernel does not tell."""
    try:
        return int((proc / "thread-self" / "schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def foretell_pause(resident: int, waiting: float = 1.0, last_seconds: float = 0.0) -> float:
    """Return how long the app will stand still for a fork, in seconds.

    `waiting` is how many times as long as its CPU time it takes, and `last_seconds` what a fork took a moment ago,
    which says more than the size.
    """
    return last_seconds or (BASE_PAUSE_SECONDS + PAUSE_PER_BYTE * resident) * waiting


def refuse_long_pause(most_seconds: float, last_seconds: float = 0.0) -> float:
    """Return the pause that is foretold.

    Raises:
        Refused: it is longer than allowed.
    """
    if last_seconds:  # the app has borne the first: half a census would be for nothing
        return last_seconds
    size = resident_bytes()
    with realtime_priority() as nice:
        pass  # whether it may
    waiting = 1.0 if nice is not None else measure_waiting(foretell_pause(size))
    foretold = foretell_pause(size, waiting)
    if foretold > most_seconds:
        busy = f" on this host, where work takes {waiting:.0f} times as long as on an idle one" if waiting > 2 else ""
        raise Refused(
            f"a fork of {size / (1 << 30):.1f} GiB would pause the app for about {foretold * 1000:.0f} ms{busy}, and"
            f" {most_seconds * 1000:.0f} ms are allowed (max_pause_seconds)"
        )
    return foretold
