"""Leak detectors that say what a test tells them to, and remember what they were fed."""

from __future__ import annotations

from collections.abc import Callable

from gpuagent.core.growth import Growth, Verdict
from gpuagent_alerts.leak.detector import MemoryLeakDetector
from gpuagent_alerts.leak.histories import Beginning
from gpuagent_alerts.leak.settings import Sensitivity

LEARNING, STEADY = Growth(Verdict.LEARNING), Growth(Verdict.STEADY)
Reading = tuple[float | None, ...]


class FakeDetector(MemoryLeakDetector):
    """`said` is its word; `readings` are (time, used, free, allocated, reserved)."""

    def set_up(self, beginning: Beginning, sensitivity: str, resumed: bytes) -> None:
        """Begin with what it was made for."""
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
    """Keeps hold of every detector that is made through its `type`."""

    def __init__(self, on_begin: Callable[[Beginning], None] = lambda _: None) -> None:
        self.made: list[FakeDetector] = []
        self.first_word = STEADY
        """Of those that are made from now on."""
        self.on_begin = on_begin
        made = self

        class Made(FakeDetector):
            def __init__(
                self,
                *,
                total_bytes: int,
                started_seconds: float | None,
                sensitivity: Sensitivity = "balanced",
                phase: int = 0,
            ) -> None:
                beginning = Beginning(total_bytes, started_seconds, phase)
                made.on_begin(beginning)
                made.keep(self, beginning, sensitivity)

            @classmethod
            def load(
                cls, data: bytes, *, total_bytes: int, sensitivity: Sensitivity = "balanced", phase: int = 0
            ) -> Made:
                if data == b"garbage":
                    raise ValueError("no dump")
                loaded = cls.__new__(cls)
                made.keep(loaded, Beginning(total_bytes, None, phase), sensitivity, data)
                return loaded

        self.type: type[MemoryLeakDetector] = Made

    def keep(self, detector: FakeDetector, beginning: Beginning, sensitivity: str, resumed: bytes = b"") -> None:
        """Set up a detector that was made, and remember it."""
        detector.set_up(beginning, sensitivity, resumed)
        detector.said = self.first_word
        self.made.append(detector)
