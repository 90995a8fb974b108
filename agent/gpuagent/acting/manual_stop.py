"""`gpuagent remedies stop`: a person ends all that rules do. It reads no file, and holds before it is written down."""

from __future__ import annotations

import asyncio
import pwd

from gpuagent.core.clock import Clock
from gpuagent.runtime.background import in_daemon_thread
from gpuagent_alerts.remedies.audit import Audit, NotRecorded, Stop

_RECORD_SECONDS = 5.0
"""A disk or user database that hangs is not waited for: remedies are stopped already."""


def describe_user(uid: int) -> str:
    """Return name and uid, for the record. It asks the user database, which may hang: for a thread."""
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"? (uid {uid})"


class ManualStop:
    """Who has stopped remedies, and when: as it is on record, or while that fails as it was asked for."""

    def __init__(self, audit: Audit, clock: Clock) -> None:
        self._audit = audit
        self._clock = clock
        self._unrecorded: Stop | None = None
        self.now: Stop | None = None
        """The one that holds, as far as is known."""

    async def begin(self, uid: int) -> str:
        """Have it hold; return why it is not on record, "" if it is."""
        self.now = self._unrecorded = Stop(f"uid {uid}", self._clock.wall())
        try:
            async with asyncio.timeout(_RECORD_SECONDS):
                await in_daemon_thread(lambda: self._audit.stop(describe_user(uid)), "remedies stop")
        except TimeoutError:
            return f"the disk or the user database has not answered for {_RECORD_SECONDS:g} s"
        except NotRecorded as error:
            return str(error)
        return ""

    def end(self) -> None:
        """Forget one that is not on record: a person has reset remedies."""
        self._unrecorded = None

    def use(self, recorded: Stop | None) -> Stop | None:
        """Return the one that holds, by what is on record."""
        if recorded is not None:
            self._unrecorded = None
        self.now = recorded or self._unrecorded
        return self.now
