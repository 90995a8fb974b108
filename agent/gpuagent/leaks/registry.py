"""All histories that there are: a bounded number, some of them taken over from the agent before."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter

from gpuagent.embedded import ClientReading
from gpuagent.growth import Evidence, MemoryKey, Watching
from gpuagent.identity import ProcessId
from gpuagent.leaks.detectors import Beginning, MakeDetectors
from gpuagent.leaks.history import CLIENT_BACK_SECONDS, History
from gpuagent.leaks.overrides import Choice, Override, choose
from gpuagent.reading import ProcessInfo
from gpuagent_alerts.leak.settings import Sensitivity
from gpuagent_alerts.leak.trace import Trace, TraceBudget
from gpuagent_alerts.store.leaks import LeakHistory, LeakKey

log = logging.getLogger(__name__)

MOST_HISTORIES = 8192
"""About 100 MiB: more GPU processes than any node has been seen with, and an end for a fork bomb."""
MOST_ENDED = 16
"""Histories of processes that have ended after a leak: who is asked about it may ask the next morning."""
UNCLAIMED_SECONDS = 3600.0
"""What was kept over a restart waits this long for its process: its GPU may be out of reach when the agent starts."""


class Histories:
    """Begins and ends them. `make` makes detectors of a sensitivity."""

    def __init__(self, make: MakeDetectors, sensitivity: Sensitivity, most: int = MOST_HISTORIES) -> None:
        self._make = make
        self._sensitivity = sensitivity
        self.overrides: Sequence[Override] = ()
        self._chosen_anew = False
        """The sensitivities of all are to be looked up."""
        self._detectors = make(sensitivity)
        self._budget = TraceBudget()
        self._ended: deque[History] = deque(maxlen=MOST_ENDED)
        self._most = most
        self._all: dict[LeakKey, History] = {}
        self._restored: dict[LeakKey, LeakHistory] = {}
        self._restored_seconds: float | None = None
        self._gone: set[LeakKey] = set()
        self._broken: dict[LeakKey, str] = {}
        """Histories that were restored and are no dumps of a detector, and why."""
        self._full = False
        """No history can be spared, as of the last look."""
        self._refused: set[ProcessId] = set()
        self._refused_count = 0

    @property
    def watching(self) -> Watching:
        """How much is remembered."""
        return Watching(len(self._all), self._refused_count)

    def begin(self, who: ProcessId, key: MemoryKey, beginning: Beginning) -> History | None:
        """A new history, or what is kept of it; None where there is no room, or no GPU has that much memory."""
        address = LeakKey(who, key.gpu_uuid, key.gpu_instance_id)
        if len(self._all) >= self._most and not self._make_room():
            if who not in self._refused:
                self._refused.add(who)
                self._refused_count += 1
            return None
        kept = self._restored.pop(address, None)
        history = None if kept is None else self._resume(kept, who, key, beginning)
        if history is None:
            try:
                history = History(who, key, beginning, self._detectors.begin(beginning), Trace(self._budget))
            except ValueError as error:
                log.debug("no history of pid %d on %s: %s", who.pid, key.gpu_uuid, error)
                return None
        self._all[address] = history
        self._budget.traces = len(self._all)
        self._gone.discard(address)
        return history

    def end(self, history: History) -> None:
        """Forget it, here and where it is kept."""
        history.over = True
        if self._all.pop(history.address, None) is not None:
            self._full = False
            self._budget.traces = len(self._all)
            self._gone.add(history.address)
            if history.ever_leaked:
                self._ended.append(history)

    @property
    def sensitivity(self) -> Sensitivity:
        """Of the node."""
        return self._sensitivity

    def use(self, sensitivity: Sensitivity, overrides: Sequence[Override] = ()) -> None:
        """Judge by another standard from now on: the histories stay."""
        if sensitivity != self._sensitivity:
            self._sensitivity, self._detectors = sensitivity, self._make(sensitivity)
        self.overrides = overrides
        self._chosen_anew = bool(overrides)
        for history in self._all.values():
            if not overrides or not history.id.pid:
                history.judge_by(Choice(sensitivity))

    def take_chosen_anew(self, *, sweep: bool) -> bool:
        """Return whether the sensitivity of every process is to be looked up: after each change, and now and then."""
        anew, self._chosen_anew = self._chosen_anew, False
        return anew or (sweep and bool(self.overrides))

    def choose(
        self, history: History, info: ProcessInfo | None, client: ClientReading | None, clock_seconds: float
    ) -> None:
        """Judge a process by the sensitivity that holds for it."""
        restored = self._restored_seconds
        waits = client is None and restored is not None and clock_seconds - restored < CLIENT_BACK_SECONDS
        waits = waits and any(override.match.app is not None for override in self.overrides)
        history.judge_by(choose(self.overrides, self._sensitivity, info, client), waits=waits)

    @property
    def ended(self) -> Sequence[History]:
        """Of processes that have ended after they were called leaking, the newest last."""
        return tuple(self._ended)

    def restore(self, rows: Iterable[LeakHistory], clock_seconds: float) -> None:
        """Go on with what was kept. What is of a later time is of another clock, and is dropped."""
        self._restored_seconds = clock_seconds
        for row in rows:
            if row.clock_seconds <= clock_seconds:
                self._restored[row.key] = row
            else:
                self._gone.add(row.key)

    def sweep(self, clock_seconds: float) -> None:
        """Now and then: forget what was kept and has found no process for long, and look for room again."""
        self._full = False
        if len(self._refused) > MOST_HISTORIES:
            self._refused.clear()
        since = self._restored_seconds
        if self._restored and since is not None and clock_seconds - since > UNCLAIMED_SECONDS:
            self._gone |= self._restored.keys()
            self._restored.clear()

    def to_keep(self, clock_seconds: float, most: int | None = None) -> list[LeakHistory]:
        """Dumps of the histories that were written down longest ago; a pid without an identity is never kept."""
        known = [history for history in self._all.values() if history.id.boot_id]
        due = sorted(known, key=attrgetter("kept_seconds"))[:most]
        for history in due:
            history.kept_seconds = clock_seconds
        return [history.kept(clock_seconds) for history in due]

    def take_gone(self) -> set[LeakKey]:
        """What need not be kept any more, told once."""
        gone, self._gone = self._gone, set()
        return gone

    def take_broken(self) -> dict[LeakKey, str]:
        """What was restored and could not be resumed, and why; told once."""
        broken, self._broken = self._broken, {}
        return broken

    def __iter__(self) -> Iterator[History]:
        return iter(self._all.values())

    def _make_room(self) -> bool:
        """At the cost of the process that has been gone for longest, if there is one."""
        if self._full:  # a look at all of them for each of thousands would cost the tick
            return False
        gone = (history for history in self._all.values() if not history.shown)
        longest = min(gone, key=attrgetter("seen_seconds"), default=None)
        if longest is None:
            self._full = True
            return False
        self.end(longest)
        return True

    def _resume(self, kept: LeakHistory, who: ProcessId, key: MemoryKey, beginning: Beginning) -> History | None:
        try:
            detector = self._detectors.resume(kept.dump, beginning)
            told = tuple(Evidence(text) for text in kept.evidence)
        except Exception as error:  # noqa: BLE001  bytes that nobody foresaw must not cost the other histories
            log.warning("the history of pid %d on %s begins anew: %s", who.pid, key.gpu_uuid, error)
            self._broken[kept.key] = str(error)
            return None
        anew = partial(self._detectors.begin, beginning)
        history = History(who, key, beginning, detector, Trace(self._budget), told=told, begin_anew=anew)
        if not self.overrides or not who.pid:
            history.judge_by(Choice(self._sensitivity))
        return history
