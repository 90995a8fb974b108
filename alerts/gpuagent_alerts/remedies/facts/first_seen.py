"""Remember which entry of the never-list meant each GPU process when it was first seen.

A process can change its name and lose the ancestor that an entry means. So each is looked at when it is new, and all
are when the entries are. That is done in a thread, as what arguments and entries lead to may not answer, and neither
may a process within execve(2): whoever hangs so is left to that thread, and another one goes on with the others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from gpuagent.core.identity import ProcessId
from gpuagent.procfs.files import ProcFiles, parse_stat
from gpuagent.procfs.hanging import MOST_HANGING, READS

log = logging.getLogger(__name__)
HANGS_AFTER_SECONDS = 5.0
"""An entry with `*` reads directories, which takes longer than a file of /proc."""
_NEW = "it is being compared with remedies.never: it is new, or the entries are"


class MatchedEntry(NamedTuple):
    """Which entry means a process, or may do so; "" for the entry where that cannot be told."""

    entry: str
    why: str


Find = Callable[[int], MatchedEntry | None]
"""Return which entry means the process with this pid. Raises OSError, ValueError; it may hang."""


class _Look:
    """A thread that looks at one process after the other."""

    def __init__(self, find: Find) -> None:
        self.find = find
        self.current: tuple[ProcessId, float] | None = None
        """The process that it looks at, and since when by the clock."""


class FirstSeenMatches:
    """Which entry meant each GPU process when it was first seen, kept until the process ends."""

    def __init__(self, files: ProcFiles, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds."""
        self._files = files
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: tuple[str, ...] = ()
        self._seen: set[ProcessId] = set()
        self._waiting: dict[ProcessId, None] = {}
        self._meant: dict[ProcessId, MatchedEntry] = {}
        self._looks: list[_Look] = []

    def follow(self, ids: Iterable[ProcessId], entries: tuple[str, ...], find: Find) -> None:
        """Have a thread look at those that are new, and at all of them by new entries. It never waits."""
        now = set(ids)
        with self._lock:
            if entries != self._entries:
                self._entries, self._seen = entries, set()
            self._seen &= now
            self._meant = {one: found for one, found in self._meant.items() if one in now}
            busy = {each.current[0] for each in self._looks if each.current}
            self._waiting = dict.fromkeys(now - self._seen - busy)
            if not self._waiting or len(self._looks) >= MOST_HANGING or not all(map(self._hangs, self._looks)):
                return
            look = _Look(find)
            self._looks.append(look)
        threading.Thread(target=self._run, args=(look, entries), name="never-list", daemon=True).start()

    def reason(self, identity: ProcessId, entries: Collection[str]) -> str:
        """Return why a process is spared by what was first seen of it, or that this is looked up; "" where it is not.

        It does not wait.
        """
        with self._lock:
            look = next((each for each in self._looks if each.current and each.current[0] == identity), None)
            if look is not None and self._hangs(look):
                why = READS.reason() or "what its arguments or the entries lead to does not answer"
                return f"it cannot be compared with remedies.never: {why}"
            if look is None and identity in self._waiting and len(self._looks) >= MOST_HANGING:
                return f"{_NEW}, and too many processes hang: {READS.reason()}"
            if look is not None or identity in self._waiting:
                return _NEW
            return self._was_meant(self._meant.get(identity), entries)

    def meant(self, pid: int, start_ticks: int, entries: Collection[str]) -> str:
        """Return why a process was meant by one of these entries when it was first seen; "" where it was not."""
        with self._lock:
            known = (found for one, found in self._meant.items() if (one.pid, one.start_ticks) == (pid, start_ticks))
            return self._was_meant(next(known, None), entries)

    def _was_meant(self, found: MatchedEntry | None, entries: Collection[str]) -> str:
        return f"{found.why}, as it was first seen" if found is not None and found.entry in entries else ""

    def _hangs(self, look: _Look) -> bool:
        return look.current is not None and self._clock() - look.current[1] >= HANGS_AFTER_SECONDS

    def _run(self, look: _Look, entries: tuple[str, ...]) -> None:
        while True:
            with self._lock:
                if self._entries != entries or not self._waiting:
                    self._looks.remove(look)
                    return
                identity = next(iter(self._waiting))
                del self._waiting[identity]
                look.current = identity, self._clock()
            found = self._find(look.find, identity)
            with self._lock:
                look.current = None
                if self._entries == entries:
                    self._seen.add(identity)
                    if found is not None and found.entry:
                        self._meant[identity] = found

    def _find(self, find: Find, identity: ProcessId) -> MatchedEntry | None:
        try:
            if parse_stat(self._files.read(identity.pid, "stat")).start_ticks == identity.start_ticks:
                return find(identity.pid)
        except (OSError, ValueError):  # it has gone, or is judged when somebody would act on it
            pass
        except Exception:
            log.exception("pid %d was not compared with remedies.never", identity.pid)
        return None
