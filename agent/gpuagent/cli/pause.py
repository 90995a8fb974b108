"""Foretell how long an app will be paused for a census, before it is asked: as the client in the app reckons it."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

from gpuagent.core.units import GIB, format_bytes

BASE_PAUSE_SECONDS, PAUSE_SECONDS_PER_GIB = 0.004, 0.030
"""What a fork takes on an idle host (see `gpuagent_client/blame/pause.py`): the kernel copies page tables."""
_PROBE_ROUNDS = 100_000
_MOST_WAITING = 100.0
_MAY_BE_NICE = 23  # CAP_SYS_NICE, see capabilities(7)


def predict_pause(pid: int, proc: Path = Path("/proc"), waiting: float | None = None) -> str:
    """Say how long the app will be paused, by its resident memory; "" where that cannot be seen.

    Anonymous memory alone has page tables to copy. On a busy host the app waits for a processor as well, unless it may
    take real-time priority for the fork: `waiting` is how many times as long work takes, else that is measured here.
    """
    try:
        status = (proc / str(pid) / "status").read_bytes()
        fields = dict(line.split(b":", 1) for line in status.split(b"\n") if b":" in line)
        resident_bytes = int(fields.get(b"RssAnon", fields.get(b"VmRSS", b"")).split()[0]) * 1024
        hurries = fields[b"Seccomp"].strip() == b"0" and bool(int(fields[b"CapEff"], 16) >> _MAY_BE_NICE & 1)
    except KeyError:
        hurries = False
    except (OSError, ValueError, IndexError):
        return ""
    pause = BASE_PAUSE_SECONDS + PAUSE_SECONDS_PER_GIB * resident_bytes / GIB
    if not hurries:
        pause *= measure_waiting(proc) if waiting is None else waiting
    return f"; it is paused twice, for about {pause * 1000:.0f} ms each ({format_bytes(resident_bytes)} resident)"


def measure_waiting(proc: Path = Path("/proc")) -> float:
    """Return how many times as long as its CPU time some 30 ms of work take now: 1 on an idle host, at most 100."""
    delay, used, began = _run_delay(proc), time.thread_time(), time.monotonic()
    hashlib.pbkdf2_hmac("sha256", b"gpuagent", b"probe", _PROBE_ROUNDS)
    passed = time.monotonic() - began
    used = max(time.thread_time() - used, 1e-6)
    after = _run_delay(proc)
    waited = passed - used if delay is None or after is None else after - delay
    return min(_MOST_WAITING, max(1.0, 1.0 + waited / used))


def _run_delay(proc: Path) -> float | None:
    """Return how many seconds this thread has waited for a processor so far; None where the kernel does not tell."""
    try:
        return int((proc / "thread-self" / "schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None
