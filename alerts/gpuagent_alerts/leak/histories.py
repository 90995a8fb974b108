"""The memory histories of processes: a bounded number, some of them taken over from the agent before.

A history is a process's memory on one GPU over time, or memory that no process owns: a detector, its last reading, and
its last verdict. Most readings are what the last one was. To give each of them to the detector was a fifth of what the
agent cost, so of those it is given the first in each `AGAIN_SECONDS`. It judges blocks of time by their lowest reading,
and of each block it has the first one: no verdict differs, nor comes later. When the memory changes, it is first given
the last reading that it was spared: it knows since when.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple

from gpuagent.core.growth import DetectorLoad, Evidence, Growth, MemoryKey, Verdict, shifted
from gpuagent.core.identity import ProcessId
from gpuagent.core.snapshot import ClientReading, ProcessInfo, ProcessReading
from gpuagent_alerts.leak.detector import FIRST_BLACKOUT_SECONDS, MemoryLeakDetector
from gpuagent_alerts.leak.lives import Lives, Service, service_of
from gpuagent_alerts.leak.overrides import Choice, Override, choose
from gpuagent_alerts.leak.settings import DIALS, Sensitivity
from gpuagent_alerts.leak.trace import Trace, TraceBudget
from gpuagent_alerts.store.leaks import LeakHistory, LeakKey

log = logging.getLogger(__name__)

BLOCK_TICKS = 15
"""A detector works at the end of a block of 15 s, and compares in between: `phase` spreads the ends over the ticks."""


class Beginning(NamedTuple):
    """What a detector has to know before the first reading."""

    total_bytes: int
    started_seconds: float | None
    """When the process started, on the detector's clock; None where that is not known, or there is no process."""
    phase: int


CLIENT_BACK_SECONDS: Final = 60.0
"""After a restart of the agent an app has this long to connect again, before its name counts no more."""
AGAIN_SECONDS: Final = 5
"""A third of a detector's block, which begins with one of these."""


@dataclass(slots=True, eq=False)
class History:
    """Mutable, and for the sensor alone; `growth` is what others get."""

    id: ProcessId
    key: MemoryKey
    beginning: Beginning
    detector: MemoryLeakDetector
    trace: Trace = field(default_factory=Trace)
    """What the detector was shown, for a replay."""
    override: int | None = None
    """The place of the override whose sensitivity holds; None: that of the node does."""
    evidence_told: tuple[Evidence, ...] = ()
    detected: Growth | None = None
    """The detector's own object, to be compared by identity."""
    growth: Growth | None = None
    ever_leaked: bool = False
    """It was called leaking, at least once."""
    process: ProcessReading | None = None
    """As it was when somebody last asked who it is, or when it began."""
    shown: bool = False
    over: bool = False
    """Forgotten, to make room for another."""
    seen_seconds: float = 0.0
    """Time of the last reading in which its process was listed; 0 for none."""
    given_seconds: float = 0.0
    """Time of the last reading that the detector was given: the two figures above."""
    used_bytes: int | None = None
    free_bytes: int | None = None
    again_seconds: float = 0.0
    """A reading before this that is as the last one tells the detector nothing."""
    all_until_seconds: float = math.inf
    """Until then it is given every reading: its blocks have not begun."""
    kept_seconds: float = 0.0
    """When it was last written down; 0 for never."""
    service: Service | None = None
    """Whose life it is, where that is proven."""
    begin_anew: Callable[[], MemoryLeakDetector] | None = None
    """Makes a new detector in place of one that was restored and fails; None for a detector that was not restored."""

    def __post_init__(self) -> None:
        self.detector.keep_trace(self.trace)

    @property
    def address(self) -> LeakKey:
        """Whose it is: a pid that is used again is another address."""
        return LeakKey(self.id, self.key.gpu_uuid, self.key.gpu_instance_id)

    def update(
        self, time_seconds: float, used_bytes: int | None, free_bytes: int | None, figures: tuple[int | None, ...] = ()
    ) -> Growth:
        """Give the detector a reading. `figures` are allocated, reserved and declared bytes, of a process that tells.

        The same object as before while nothing has changed.
        """
        try:
            said = self._give(time_seconds, used_bytes, free_bytes, figures)
        except Exception as error:  # noqa: BLE001  raised again, unless the detector was restored
            self._restart(error)
            said = self._give(time_seconds, used_bytes, free_bytes, figures)
        if not self.given_seconds:
            self.all_until_seconds = time_seconds + FIRST_BLACKOUT_SECONDS
        self.seen_seconds = self.given_seconds = time_seconds
        self.used_bytes, self.free_bytes = used_bytes, free_bytes
        if figures or said.fast or time_seconds < self.all_until_seconds:
            self.again_seconds = 0.0
        else:
            phase = self.beginning.phase
            self.again_seconds = (math.floor((time_seconds - phase) / AGAIN_SECONDS) + 1) * AGAIN_SECONDS + phase
        return said

    def _give(
        self, time_seconds: float, used_bytes: int | None, free_bytes: int | None, figures: tuple[int | None, ...]
    ) -> Growth:
        if self.seen_seconds > self.given_seconds and used_bytes != self.used_bytes:
            self.detector.update(self.seen_seconds, self.used_bytes, self.free_bytes)
        return self.detector.update(time_seconds, used_bytes, free_bytes, *figures)

    def _restart(self, error: Exception) -> None:
        """Go on with a new detector: a dump may be well formed and hold what no history comes to."""
        if self.begin_anew is None:
            raise error
        log.error(
            "the restored history of pid %d on %s fails and begins anew: %r", self.id.pid, self.key.gpu_uuid, error
        )
        dial = self.detector.sensitivity
        self.detector, self.begin_anew = self.begin_anew(), None
        self.detector.keep_trace(self.trace)
        self.detector.use(dial)
        self.given_seconds = self.seen_seconds = 0.0

    def judge_by(self, choice: Choice, *, waits: bool = False) -> None:
        """Judge by this sensitivity from now on.

        With `waits`, a history that was restored stays as little sensitive as it was: its app may not be back yet.
        """
        dial = self.detector.sensitivity
        if waits and self.begin_anew is not None and DIALS.index(dial) < DIALS.index(choice.sensitivity):
            return
        self.override = choice.override
        if choice.sensitivity != dial:
            self.detector.use(choice.sensitivity)
            self.again_seconds = 0.0

    def hide(self) -> None:
        """Nothing is said of it until the next reading, whatever that is."""
        self.shown = False
        self.again_seconds = 0.0

    def publish(self, said: Growth, to_unix_seconds: float) -> Growth:
        """Return what the detector says now, in Unix time and with every criterion that this leak has met."""
        self.detected = said
        self.shown = True
        self.ever_leaked = self.ever_leaked or said.verdict is Verdict.LEAKING
        if said.verdict is not Verdict.LEAKING:
            self.evidence_told = ()
        else:
            for evidence in (said.evidence, said.grade):
                if evidence is not None and evidence not in self.evidence_told:
                    self.evidence_told = (*self.evidence_told, evidence)
        self.growth = replace(shifted(said, to_unix_seconds), evidence_told=self.evidence_told)
        return self.growth

    def kept(self, clock_seconds: float) -> LeakHistory:
        """For a restart."""
        evidence = tuple(str(one) for one in self.evidence_told)
        try:
            dump = self.detector.dump()
        except Exception as error:  # noqa: BLE001  likewise
            self._restart(error)
            dump = self.detector.dump()
        return LeakHistory(self.address, clock_seconds, evidence, dump)


MOST_HISTORIES = 8192
"""About 100 MiB: more GPU processes than any node has been seen with, and an end for a fork bomb."""
MOST_ENDED = 16
"""Histories of processes that have ended after a leak: who is asked about it may ask the next morning."""
COMPARING_TURNS: Final = 20
"""Every sweep compares a part of the lives: each of them every 5 min."""
UNCLAIMED_SECONDS = 3600.0
"""What was kept over a restart waits this long for its process: its GPU may be out of reach when the agent starts."""


class Histories:
    """Begins and ends histories, each with a detector of one sensitivity."""

    def __init__(
        self,
        sensitivity: Sensitivity,
        most: int = MOST_HISTORIES,
        detector_type: type[MemoryLeakDetector] = MemoryLeakDetector,
    ) -> None:
        self._sensitivity = sensitivity
        self.overrides: Sequence[Override] = ()
        self._chosen_anew = False
        """The sensitivities of all are to be looked up."""
        self._budget = TraceBudget()
        self.lives = Lives()
        self._turn = 0
        self._ended: deque[History] = deque(maxlen=MOST_ENDED)
        self._most = most
        self._detector_type = detector_type
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
    def watching(self) -> DetectorLoad:
        """How much is remembered."""
        return DetectorLoad(len(self._all), self._refused_count)

    def begin(self, who: ProcessId, key: MemoryKey, beginning: Beginning) -> History | None:
        """Return a new history, or what is kept of it; None where there is no room, or no GPU has that much memory."""
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
                history = History(who, key, beginning, self._new_detector(beginning), Trace(self._budget))
            except ValueError as error:
                log.debug("no history of pid %d on %s: %s", who.pid, key.gpu_uuid, error)
                return None
        self._all[address] = history
        self._budget.traces = len(self._all)
        self._gone.discard(address)
        return history

    def belongs_to(self, history: History, info: ProcessInfo | None) -> None:
        """Judge a history that has begun with what is known of its service's other lives."""
        history.service = None if info is None else service_of(info, history.beginning.total_bytes)
        if history.service is not None and history.begin_anew is not None:
            self.lives.claim(history.service)  # also one of which less is kept than that it leaks
        history.detector.use_prior(self.lives.prior(history.service, history.id))

    def leave(self, history: History) -> None:
        """Tell the others of its service at once that it has left the GPU while it leaked."""
        service = history.service
        if service is not None and self.lives.leave(service, history.id, history.detector.life(), history.key):
            for other in self._all.values():
                if other.service == service and other.id != history.id:
                    other.detector.use_prior(self.lives.prior(service, other.id))

    def end(self, history: History) -> None:
        """Forget it, here and where it is kept, but for what its service's next lives are told by it."""
        history.over = True
        if history.service is not None:
            self.lives.end_life(history.service, history.id, history.detector.life(), history.key)
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
        """Judge by another criterion from now on: the histories stay."""
        self._sensitivity = sensitivity
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
        """Histories of processes that have ended after they were called leaking, the newest last."""
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
        self._compare_lives()
        if len(self._refused) > MOST_HISTORIES:
            self._refused.clear()
        since = self._restored_seconds
        if self._restored and since is not None and clock_seconds - since > UNCLAIMED_SECONDS:
            self._gone |= self._restored.keys()
            self._restored.clear()
        if since is not None and clock_seconds - since > UNCLAIMED_SECONDS:
            self.lives.end_unclaimed()

    def note_lives(self) -> None:
        """Note what all processes show, before the agent is stopped."""
        for history in self._all.values():
            if history.service is not None and history.shown:
                self.lives.note_life(history.service, history.id, history.detector.life(), history.key)

    def _compare_lives(self) -> None:
        """Tell some of the histories what the other lives of their services show, and what these show to others."""
        self._turn = (self._turn + 1) % COMPARING_TURNS
        for place, history in enumerate(self._all.values()):
            if history.service is not None and not history.shown:
                self.lives.hide(history.service, history.id, history.key)
            if place % COMPARING_TURNS == self._turn and history.service is not None and history.shown:
                self.lives.note_life(history.service, history.id, history.detector.life(), history.key)
                history.detector.use_prior(self.lives.prior(history.service, history.id))

    def to_keep(self, clock_seconds: float, most: int | None = None) -> list[LeakHistory]:
        """Dump the histories that were written down longest ago; a pid without an identity is never kept."""
        known = [history for history in self._all.values() if history.id.boot_id]
        due = sorted(known, key=attrgetter("kept_seconds"))[:most]
        for history in due:
            history.kept_seconds = clock_seconds
        return [history.kept(clock_seconds) for history in due]

    def take_gone(self) -> set[LeakKey]:
        """Return what need not be kept any more, told once."""
        gone, self._gone = self._gone, set()
        return gone

    def take_broken(self) -> dict[LeakKey, str]:
        """Return what was restored and could not be resumed, and why; told once."""
        broken, self._broken = self._broken, {}
        return broken

    def __iter__(self) -> Iterator[History]:
        return iter(self._all.values())

    def _new_detector(self, beginning: Beginning) -> MemoryLeakDetector:
        return self._detector_type(
            total_bytes=beginning.total_bytes,
            started_seconds=beginning.started_seconds,
            sensitivity=self._sensitivity,
            phase=beginning.phase,
        )

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
            detector = self._detector_type.load(
                kept.dump, total_bytes=beginning.total_bytes, sensitivity=None, phase=beginning.phase
            )
            told = tuple(Evidence(text) for text in kept.evidence)
        except Exception as error:  # noqa: BLE001  bytes that nobody foresaw must not cost the other histories
            log.warning("the history of pid %d on %s begins anew: %s", who.pid, key.gpu_uuid, error)
            self._broken[kept.key] = str(error)
            return None
        anew = partial(self._new_detector, beginning)
        history = History(who, key, beginning, detector, Trace(self._budget), evidence_told=told, begin_anew=anew)
        if not self.overrides or not who.pid:
            history.judge_by(Choice(self._sensitivity))
        return history
