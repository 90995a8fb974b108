"""Memory that grows again after its alert ended because growth had stopped.

The leak detector needs minutes to call it a leak again, and the end of the first alert is told in that time. So the
memory of such an alert is followed for an hour: an end is no all-clear while it rises as it did.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuagent.core.growth import MemoryKey
from gpuagent.core.identity import NO_INSTANCE
from gpuagent.core.snapshot import ProcessReading, Snapshot
from gpuagent.core.units import GIB
from gpuagent_alerts.alert import Alert
from gpuagent_alerts.messages.end_facts import key_of
from gpuagent_alerts.notify.cause import is_leak

GROWTH_STOPPED = "growth stopped"
"""Beginning of the reason of such an end."""
_FOLLOWED_SECONDS = 3600.0
_WINDOWS = (90.0, 180.0, 600.0)
"""Seconds over which it is seen to grow, the shortest one first: slow growth takes longer to rise above noise."""
_LEAST_RISE_BYTES = GIB / 8
"""Rise within a window that is none of an allocator's noise."""
_LEAST_OF_PACE = 0.25
"""Share of the old pace from which on it is the same growth."""
_SPACING_SECONDS = 10.0
_MOST_FOLLOWED = 256


@dataclass(slots=True)
class _Followed:
    key: MemoryKey
    """The process that grew, or the GPU whose memory of no process did."""
    pace: float
    """Bytes a second by which it grew; 0 where its alert does not tell that."""
    began: float
    """Unix time since which it is followed."""
    used: list[tuple[float, int]] = field(default_factory=list)
    """Unix times and bytes in use, the newest last."""

    def add(self, used: int, now: float) -> None:
        if not self.used or now - self.used[-1][0] >= _SPACING_SECONDS:
            self.used.append((now, used))
        while self.used[0][0] < now - _WINDOWS[-1] - _SPACING_SECONDS:
            del self.used[0]

    def grows_over(self, seconds: float, now: float) -> bool:
        """Return whether its lowest figures rise from third to third of the last so many seconds, and by enough."""
        if not self.used or self.used[0][0] > now - seconds + 2 * _SPACING_SECONDS:
            return False
        thirds: list[list[int]] = [[], [], []]
        for time, used in self.used:
            if 0.0 <= now - time <= seconds:
                thirds[2 - min(2, int(3 * (now - time) / seconds))].append(used)
        first, second, third = (min(each, default=0) for each in thirds)
        enough = max(_LEAST_RISE_BYTES, _LEAST_OF_PACE * self.pace * seconds * 2 / 3)
        return all(thirds) and first < second < third and third - first >= enough


class Regrowth:
    """The memory of alerts that ended because growth had stopped."""

    def __init__(self) -> None:
        self._followed: dict[str, _Followed] = {}

    def follow(self, alert: Alert, grower: ProcessReading | None, now: float) -> None:
        """Follow the memory of an alert from now on, if growth that stopped is the reason of its end.

        `grower` is the process that grew most, of an alert that names none. What others load is no growth that goes on.
        """
        name, key = alert.fingerprint, key_of(alert.labels) if grower is None else grower.key
        is_stopped = key is not None and alert.end_reason.startswith(GROWTH_STOPPED)
        if key is not None and is_stopped and name not in self._followed and len(self._followed) < _MOST_FOLLOWED:
            pace = alert.value / 3600 if is_leak(alert.labels) and alert.value > 0 else 0.0
            self._followed[name] = _Followed(key, pace, now)

    def forget(self, name: str) -> None:
        """Forget an alert that is true again, by its fingerprint."""
        self._followed.pop(name, None)

    def observe(self, snapshot: Snapshot, now: float) -> None:
        """Note what each of them uses, at this Unix time. What cannot be read is not noted."""
        for name, one in list(self._followed.items()):
            if not 0.0 <= now - one.began < _FOLLOWED_SECONDS:
                del self._followed[name]
            elif (used := _used(one.key, snapshot)) is not None:
                one.add(used, now)

    def grows(self, name: str, now: float) -> bool:
        """Return whether the memory of an alert, by its fingerprint, grows now as it did; False if that is unknown."""
        one = self._followed.get(name)
        return one is not None and any(one.grows_over(seconds, now) for seconds in _WINDOWS)


def _used(key: MemoryKey, snapshot: Snapshot) -> int | None:
    if key.pid:
        return next((one.used_bytes for one in snapshot.processes if one.key == key), None)
    split = next((one.reconciliation for one in snapshot.gpus if one.identity.uuid == key.gpu_uuid), None)
    return None if split is None or key.gpu_instance_id != NO_INSTANCE else split.unattributed_bytes
