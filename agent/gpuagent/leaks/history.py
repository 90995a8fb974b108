"""One process's memory on one GPU over time, or nobody's: a detector, what it was told last, and what it said.

Most readings are what the last one was. To tell a detector so again and again was a fifth of what the agent cost, so of
those it is given the first in each `AGAIN_SECONDS`. It judges blocks of time by their lowest reading, and of each block
it has the first one: no verdict differs, nor comes later. When the memory changes, it is first given the last reading
that it was spared: it knows since when.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from gpuagent.growth import Evidence, Growth, MemoryKey, Verdict
from gpuagent.identity import ProcessId
from gpuagent.leaks.detectors import Beginning, Detector
from gpuagent.leaks.overrides import Choice
from gpuagent.reading import ProcessReading
from gpuagent_alerts.leak.history import FIRST_BLACKOUT_SECONDS
from gpuagent_alerts.leak.settings import DIALS
from gpuagent_alerts.leak.trace import Trace
from gpuagent_alerts.store.leaks import LeakHistory, LeakKey

log = logging.getLogger(__name__)

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
    detector: Detector
    trace: Trace = field(default_factory=Trace)
    """What the detector was shown, for a replay."""
    override: int | None = None
    """The place of the override whose sensitivity holds; None: that of the node does."""
    told: tuple[Evidence, ...] = ()
    said: Growth | None = None
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
    """Of the last reading in which its process was listed; 0 for none."""
    given_seconds: float = 0.0
    """Of the last reading that the detector was given, which are the two figures."""
    used_bytes: int | None = None
    free_bytes: int | None = None
    again_seconds: float = 0.0
    """A reading before this that is as the last one tells the detector nothing."""
    all_until_seconds: float = math.inf
    """Until then it is given every reading: its blocks have not begun."""
    kept_seconds: float = 0.0
    """When it was last written down; 0 for never."""
    begin_anew: Callable[[], Detector] | None = None
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

    def take(self, said: Growth, to_unix_seconds: float) -> Growth:
        """What the detector says now, for others: in Unix time, and with every standard that this leak has met."""
        self.said = said
        self.shown = True
        since = said.since_seconds
        self.ever_leaked = self.ever_leaked or said.verdict is Verdict.LEAKING
        if said.verdict is not Verdict.LEAKING or said.evidence is None:
            self.told = ()
        elif said.evidence not in self.told:
            self.told = (*self.told, said.evidence)
        self.growth = replace(
            said, since_seconds=None if since is None else since + to_unix_seconds, evidence_told=self.told
        )
        return self.growth

    def kept(self, clock_seconds: float) -> LeakHistory:
        """For a restart."""
        evidence = tuple(str(one) for one in self.told)
        try:
            dump = self.detector.dump()
        except Exception as error:  # noqa: BLE001  likewise
            self._restart(error)
            dump = self.detector.dump()
        return LeakHistory(self.address, clock_seconds, evidence, dump)
