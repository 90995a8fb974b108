"""End what is left of a program, by a word that all of it has in its environment."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from gpuagent.procfs.hanging import HANGS_AFTER_SECONDS, READS, read_all, read_within

VARIABLE = "GPUAGENT_STEP"
"""Name of the variable that has the word."""
_SECONDS = 5.0
"""How long SIGKILL is given: a process that hangs in the kernel is left to it."""
_PAUSE_SECONDS = 0.02
_LOOKS = 2
"""Looks that have to find nobody: within execve(2) a process has no environment for a moment."""
_PROC = Path("/proc")


def end_marked(word: str, proc: Path = _PROC) -> None:
    """End every process of the agent's own user whose environment has this word, and what those start meanwhile.

    A program that runs without capabilities cannot become another user. So the environment of others' processes is not
    read, which they could hold up for as long as they like; one that hangs is passed over. It blocks for seconds.
    """
    deadline = time.monotonic() + _SECONDS
    looks_in_vain = 0
    while looks_in_vain < _LOOKS and time.monotonic() < deadline:
        found = _marked(word, proc)
        looks_in_vain = 0 if found else looks_in_vain + 1
        for pid in found:
            with suppress(OSError):
                descriptor = os.pidfd_open(pid)
                try:
                    if read_within(HANGS_AFTER_SECONDS, partial(_has, proc, pid, word)):  # it is still that process
                        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                finally:
                    os.close(descriptor)
        time.sleep(_PAUSE_SECONDS)


def _marked(word: str, proc: Path) -> list[int]:
    own = [int(entry.name) for entry in proc.iterdir() if entry.name.isdigit() and _is_own(entry)]
    answers = read_all([partial(_has, proc, pid, word) for pid in own])
    return [pid for pid, has in zip(own, answers, strict=True) if has is True]


def _is_own(folder: Path) -> bool:
    """Return whether a process is one of the agent's user.

    The folder belongs to the effective user, also where it may not be dumped (task_dump_owner(), fs/proc/base.c).
    `status` would tell as well, but of a process with 65,536 groups that is half a megabyte.
    """
    try:
        return folder.stat().st_uid == os.geteuid()
    except OSError:  # it has ended
        return False


def _has(proc: Path, pid: int, word: str) -> bool:
    with READS.reading(pid, "environ"), suppress(OSError):  # it has ended, or may not be read
        return f"{VARIABLE}={word}".encode() in (proc / str(pid) / "environ").read_bytes().split(b"\0")
    return False
