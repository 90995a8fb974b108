"""A bounded ring of used memory per GPU, for the sparklines of `status` and the page."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from gpuagent.reading import Snapshot

LENGTH = 60
INTERVAL_SECONDS = 10.0


class History:
    """The last `length` points of each GPU, `interval_seconds` apart: 10 minutes in 60 points, half a KiB a GPU.

    A point is the highest reading of its interval, because a peak is what runs into the wall. None stands for an
    interval without a reading.
    """

    def __init__(self, interval_seconds: float = INTERVAL_SECONDS, length: int = LENGTH) -> None:
        self.interval_seconds = interval_seconds
        self._length = length
        self._slot: int | None = None
        self._points: dict[str, deque[float | None]] = {}

    def add(self, snapshot: Snapshot) -> None:
        """Note a tick."""
        slot = int(snapshot.clock_seconds // self.interval_seconds)
        passed = 0 if self._slot is None else min(slot - self._slot, self._length)
        self._slot = slot
        for ring in self._points.values():
            ring.extend([None] * passed)
        for gpu in snapshot.gpus:
            used = gpu.memory.used_bytes if gpu.memory else None
            if used is None:
                continue
            ring = self._points.setdefault(gpu.identity.uuid, deque([None], maxlen=self._length))
            ring[-1] = max(ring[-1] or 0, used)
        for uuid in [uuid for uuid, ring in self._points.items() if all(point is None for point in ring)]:
            del self._points[uuid]

    def points(self) -> dict[str, Sequence[float | None]]:
        """Used bytes per GPU UUID, oldest first, the last one still growing."""
        return {uuid: tuple(ring) for uuid, ring in self._points.items()}
