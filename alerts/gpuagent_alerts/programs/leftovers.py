"""Ends what a program has left behind that killed what contains it: its processes are known by a word of their own.

What it starts inherits its environment. A process that has cleared that, as `env -i` does, is not found.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

VARIABLE = "GPUAGENT_STEP"
_SECONDS = 5.0
"""How long SIGKILL is given: a process that hangs in the kernel is left to it."""
_PAUSE_SECONDS = 0.02


def end_marked(word: str) -> None:
    """End every process whose environment has this word, and what those start meanwhile. It blocks for seconds."""
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        found = False
        for pid in _marked(word):
            found = True
            with suppress(OSError):
                descriptor = os.pidfd_open(pid)
                try:
                    if _has(pid, word):  # the number is still that of the process that was read
                        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                finally:
                    os.close(descriptor)
        if not found:
            return
        time.sleep(_PAUSE_SECONDS)


def _marked(word: str) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _has(int(entry.name), word):
            yield int(entry.name)


def _has(pid: int, word: str) -> bool:
    try:
        return f"{VARIABLE}={word}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is another's
        return False
