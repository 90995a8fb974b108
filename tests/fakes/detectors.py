"""Leak detectors that say what a test tells them to, and remember what they were fed."""

from __future__ import annotations

from collections.abc import Callable

from gpuagent.growth import Growth, Verdict
from gpuagent.leaks.detectors import Beginning
from gpuagent_alerts.leak.examine import Examined
from gpuagent_alerts.leak.settings import Dial
from gpuagent_alerts.leak.trace import Trace

LEARNING, STEADY = Growth(Verdict.LEARNING), Growth(Verdict.STEADY)
Reading = tuple[float | None, ...]


class FakeDetector:
    """`said` is its word; `readings` are (time, used, free, allocated, reserved)."""

    def __init__(self, beginning: Beginning, sensitivity: Dial, resumed: bytes = b"") -> None:
        self.beginning = beginning
        self.sensitivity = sensitivity
        self.resumed = resumed
        self.readings: list[Reading] = []
        self.declared_bytes: float | None = None
        """As it was told last."""
        self.said = STEADY
        self.trace: Trace | None = None

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

    def use(self, sensitivity: Dial) -> None:
        self.sensitivity = sensitivity

    def keep_trace(self, trace: Trace) -> None:
        self.trace = trace

    def examine(self) -> Examined:
        raise NotImplementedError

    def dump(self) -> bytes:
        return b"%d readings" % len(self.readings)


class FakeDetectors:
    """Makes them, and keeps hold of all that it made."""

    def __init__(self, on_begin: Callable[[Beginning], None] = lambda _: None) -> None:
        self.made: list[FakeDetector] = []
        self._on_begin = on_begin
        self._sensitivity: Dial = "balanced"
        self.first_word = STEADY
        """Of those that are made from now on."""
        self.resumed_dial: Dial | None = None
        """Of a dump; None: as the node is."""

    def __call__(self, sensitivity: Dial) -> FakeDetectors:
        self._sensitivity = sensitivity
        return self

    def begin(self, beginning: Beginning) -> FakeDetector:
        self._on_begin(beginning)
        return self._keep(FakeDetector(beginning, self._sensitivity))

    def resume(self, dump: bytes, beginning: Beginning) -> FakeDetector:
        if dump == b"garbage":
            raise ValueError("no dump")
        return self._keep(FakeDetector(beginning, self.resumed_dial or self._sensitivity, dump))

    def _keep(self, detector: FakeDetector) -> FakeDetector:
        detector.said = self.first_word
        self.made.append(detector)
        return detector
