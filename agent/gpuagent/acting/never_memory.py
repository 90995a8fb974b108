"""What the never-list meant when each GPU process was first seen: links turn and parents end, and it is the same."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, Protocol

from gpuagent.core.identity import ProcessId
from gpuagent.procfs.files import ProcFiles, parse_stat

log = logging.getLogger(__name__)

Key = tuple[int, int]
"""Pid and start of a process."""


class Meant(NamedTuple):
    """Which entry means a process, or may do so; "" for the entry where that cannot be told."""

    entry: str
    why: str


class Look(Protocol):
    """The entries at one moment."""

    entries: tuple[str, ...]

    def find_all(self, files: ProcFiles, pid: int) -> Meant | None:
        """Return which entry means a process, also by its names and by an ancestor. Raises as `read_program`."""
        ...


class NeverMemory:
    """For the processes on the node's GPUs, from when they are first seen to their end."""

    def __init__(self, files: ProcFiles) -> None:
        self._files = files
        self._entries: tuple[str, ...] = ()
        self._seen: frozenset[ProcessId] = frozenset()
        self._meant: Mapping[Key, Meant] = {}
        self._thread: threading.Thread | None = None

    def follow(self, ids: Iterable[ProcessId], look: Look) -> None:
        """Have a thread look at those that are new, and at all of them by new entries. It never waits."""
        now = frozenset(ids)
        known = self._seen if look.entries == self._entries else frozenset()
        if now <= known or not look.entries or (self._thread is not None and self._thread.is_alive()):
            return
        new = now - known
        self._thread = threading.Thread(target=self._look, args=(now, new, look), name="never-list", daemon=True)
        self._thread.start()

    def meant(self, key: Key, entries: Collection[str]) -> str:
        """Return why a process was meant by one of these entries when it was first seen; "" where it was not."""
        found = self._meant.get(key)
        return f"{found.why}, as it was first seen" if found is not None and found.entry in entries else ""

    def _look(self, now: Collection[ProcessId], new: Iterable[ProcessId], look: Look) -> None:
        alive = {(each.pid, each.start_ticks) for each in now}
        meant = {key: one for key, one in self._meant.items() if key in alive}
        for each in new:
            try:
                if parse_stat(self._files.read(each.pid, "stat")).start_ticks != each.start_ticks:
                    continue
                found = look.find_all(self._files, each.pid)
            except (OSError, ValueError):  # it has gone, or is judged when somebody would act on it
                continue
            except Exception:
                log.exception("pid %d was not compared with remedies.never", each.pid)
                continue
            if found is not None and found.entry:
                meant[each.pid, each.start_ticks] = found
        self._meant, self._seen, self._entries = meant, frozenset(now), look.entries
