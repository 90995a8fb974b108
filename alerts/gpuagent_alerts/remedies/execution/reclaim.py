"""Give page cache back to a machine whose GPU shares its memory: the kernel's drop_caches, and compaction.

Only the user id 0 may write these files, whatever capabilities another has: the kernel compares it at each write
(fs/proc/proc_sysctl.c, `test_perm`). So the agent, which is no root, asks `gpuagent-reclaim.service` over a socket.
What is dirty or mapped stays, and no program loses anything but the time in which it reads a file again.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gpuagent.core.background import in_daemon_thread
from gpuagent.core.units import format_bytes, format_duration
from gpuagent.procfs.reclaim_helper import FILES, SOCKET, write_one
from gpuagent_alerts.remedies.observation import ActionResult

_ANSWER_BYTES = 512
_KEPT_FOR_FILES = ("Mapped", "Dirty", "Writeback", "Shmem")
_WAY_OUT = "enable gpuagent-reclaim.socket (docs/unified-memory.md), or leave the step out"


class CacheReclaimer:
    """Drops the page cache of this machine, by itself where it is root, else through the helper."""

    def __init__(
        self,
        proc: str | Path = "/proc",
        socket_path: str | Path = SOCKET,
        monotonic: Callable[[], float] = time.monotonic,
        off: str = "",
    ) -> None:
        """`off` is why nothing is ever dropped, "" where that may be."""
        self._off = off
        self._proc = Path(proc)
        self._socket = str(socket_path)
        self._monotonic = monotonic
        self._last_seconds: float | None = None

    def refusal(self) -> str:
        """Return why nothing can be dropped here; "" if it can."""
        if self._off or self._may_write():
            return self._off
        if refusal := helper_refusal(self._socket):
            return refusal
        if not os.access(self._socket, os.W_OK):
            return f"{self._socket} may not be used by the agent's user: {_WAY_OUT}"
        return ""

    async def drop(
        self, *, compact: bool, every_seconds: float, deadline_seconds: float, rehearse: bool
    ) -> ActionResult:
        """Drop clean page cache, at most once in `every_seconds`; `compact` has the kernel join free pages after it.

        With `rehearse` nothing is done, and the detail tells what would be.
        """
        if refusal := self.refusal():
            return ActionResult(ok=False, detail=refusal, taken=False)
        now = self._monotonic()
        if self._last_seconds is not None and now - self._last_seconds < every_seconds:
            ago = format_duration(now - self._last_seconds)
            return ActionResult(ok=False, detail=f"the page cache was dropped {ago} ago", taken=False)
        before = _droppable_bytes(self._proc)
        if rehearse:
            most = "an unknown amount" if before is None else f"at most {format_bytes(before)}"
            return ActionResult(ok=True, detail=f"{most} of clean page cache would be dropped")
        self._last_seconds = now
        names = ("drop_caches", "compact_memory") if compact else ("drop_caches",)
        for name in names:
            left = max(0.1, deadline_seconds - (self._monotonic() - now))
            try:
                async with asyncio.timeout(left):
                    failure = await in_daemon_thread(partial(self._write, name, left), "drop caches")
            except TimeoutError:
                failure = f"the kernel is still at it after {format_duration(deadline_seconds)}"
            if failure:
                return ActionResult(ok=False, detail=f"{name}: {failure}")
        after = _droppable_bytes(self._proc)
        known = before is not None and after is not None
        freed = max(0, before - after) if before is not None and after is not None else 0
        return ActionResult(ok=True, detail=f"{format_bytes(freed)} of page cache dropped" if known else "dropped")

    def _may_write(self) -> bool:
        return os.access(self._proc / FILES["drop_caches"], os.W_OK, effective_ids=True)

    def _write(self, name: str, seconds: float) -> str:
        """Write, or have it written; return why that failed. The kernel may take seconds: for a thread."""
        if self._may_write():
            return write_one(name, self._proc)
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(seconds)
                connection.connect(self._socket)
                connection.sendall(f"{name}\n".encode())
                said = connection.recv(_ANSWER_BYTES).decode("ascii", "replace").strip()
        except OSError as error:
            return f"{self._socket}: {error}"
        return "" if said == "ok" else said or "the helper gave no answer"


def helper_refusal(socket_path: str | Path = SOCKET) -> str:
    """Return why an agent that is not root can drop nothing; "" where the helper is there for it."""
    if Path(socket_path).is_socket():
        return ""
    return f"only root may write /proc/sys/vm/drop_caches, and there is no {socket_path}: {_WAY_OUT}"


def _droppable_bytes(proc: Path) -> int | None:
    """Return how much page cache is neither mapped nor dirty, at most; None where /proc does not tell."""
    try:
        lines = (proc / "meminfo").read_text("ascii").splitlines()
        kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        cached = kib["Cached"] + kib.get("Buffers", 0)
    except (OSError, ValueError, KeyError, IndexError):
        return None
    return 1024 * max(0, cached - sum(kib.get(name, 0) for name in _KEPT_FOR_FILES))
