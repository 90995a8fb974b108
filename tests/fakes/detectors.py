"""Leak detectors that say what a test tells them to, and remember what they were fed."""

from __future__ import annotations

from collections.abc import Callable

from gpuagent.core.growth import Growth, Verdict
from gpuagent.leaks.detectors import Beginning

LEARNING, STEADY = Growth(Verdict.LEARNING), Growth(Verdict.STEADY)
Reading = tuple[float | None, ...]


class FakeDetector:
    """`said` is its word; `readings` are (time, used, free, allocated, reserved)."""

    def __init__(self, beginning: Beginning, sensitivity: str, resumed: bytes = b"") -> None:
        self.beginning = beginning
        self.sensitivity = sensitivity
        self.resumed = resumed
        self.readings: list[Reading] = []
        self.declared_bytes: float | None = None
        """As it was told last."""
        self.said = STEADY

    def update(
        self,
        time_seconds: float,
        used_bytes: float | None,
        free_bytes: float | None,
        allocated_bytes: float | None = None,
        reserved_bytes: float | None = None,
        declared_bytes: float | None = None,
    ) -> Growth:
        self.readings.append((time_seconds, used_bytes, free_bytes, allocated_bytes, reserved_bytes))
        self.declared_bytes = declared_bytes
        return self.said

    def use(self, sensitivity: str) -> None:
        self.sensitivity = sensitivity

    def dump(self) -> bytes:
        return b"%d readings" % len(self.readings)


class FakeDetectors:
    """Makes them, and keeps hold of all that it made."""

    def __init__(self, on_begin: Callable[[Beginning], None] = lambda _: None) -> None:
        self.made: list[FakeDetector] = []
        self._on_begin = on_begin
        self._sensitivity = ""
        self.first_word = STEADY
        """Of those that are made from now on."""

    def __call__(self, sensitivity: str) -> FakeDetectors:
        self._sensitivity = sensitivity
        return self

    def begin(self, beginning: Beginning) -> FakeDetector:
        self._on_begin(beginning)
        return self._keep(FakeDetector(beginning, self._sensitivity))

    def resume(self, dump: bytes, beginning: Beginning) -> FakeDetector:
        if dump == b"garbage":
            raise ValueError("no dump")
        return self._keep(FakeDetector(beginning, self._sensitivity, dump))

    def _keep(self, detector: FakeDetector) -> FakeDetector:
        detector.said = self.first_word
        self.made.append(detector)
        return detector
