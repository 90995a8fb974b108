"""Leak detectors that say what a test tells them to, and remember what they were fed."""

from __future__ import annotations

from collections.abc import Callable

from gpuagent.core.growth import Growth, Verdict
from gpuagent_alerts.leak.detector import MemoryLeakDetector
from gpuagent_alerts.leak.examine import Examined
from gpuagent_alerts.leak.histories import Beginning
from gpuagent_alerts.leak.lives import LifeSoFar
from gpuagent_alerts.leak.settings import Dial
from gpuagent_alerts.leak.trace import Trace
from gpuagent_alerts.leak.witnesses import NOTHING_KNOWN, Prior

LEARNING, STEADY = Growth(Verdict.LEARNING), Growth(Verdict.STEADY)
Reading = tuple[float | None, ...]


class FakeDetector(MemoryLeakDetector):
    """`said` is its word; `readings` are (time, used, free, allocated, reserved)."""

    def set_up(self, beginning: Beginning, dial: Dial, resumed: bytes) -> None:
        """Begin with what it was made for."""
        self.beginning = beginning
        self.dial = dial
        self.resumed = resumed
        self.readings: list[Reading] = []
        self.declared_bytes: float | None = None
        """As it was told last."""
        self.said = STEADY
        self.shown = LifeSoFar(0.0, 0, 0, leaks=False, grows=False, full=False, strongly=False)
        self.prior = NOTHING_KNOWN
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

    @property
    def sensitivity(self) -> Dial:
        return self.dial

    def use(self, sensitivity: Dial) -> None:
        self.dial = sensitivity

    def use_prior(self, prior: Prior) -> None:
        self.prior = prior

    def life(self) -> LifeSoFar:
        return self.shown

    def keep_trace(self, trace: Trace) -> None:
        self.trace = trace

    def examine(self) -> Examined:
        raise NotImplementedError

    def dump(self) -> bytes:
        return b"%d readings" % len(self.readings)


class FakeDetectors:
    """Keeps hold of every detector that is made through its `type`."""

    def __init__(self, on_begin: Callable[[Beginning], None] = lambda _: None) -> None:
        self.made: list[FakeDetector] = []
        self.first_word = STEADY
        """Of those that are made from now on."""
        self.on_begin = on_begin
        self.resumed_dial: Dial | None = None
        """Of a dump; None: that of the node."""
        self.resumed_life: LifeSoFar | None = None
        """What those show that are made of a dump; None: what others do."""
        made = self

        class Made(FakeDetector):
            def __init__(
                self,
                *,
                total_bytes: int,
                started_seconds: float | None,
                sensitivity: Dial = "balanced",
                phase: int = 0,
            ) -> None:
                beginning = Beginning(total_bytes, started_seconds, phase)
                made.on_begin(beginning)
                made.keep(self, beginning, sensitivity)

            @classmethod
            def load(
                cls, data: bytes, *, total_bytes: int, sensitivity: Dial | None = "balanced", phase: int = 0
            ) -> Made:
                if data == b"garbage":
                    raise ValueError("no dump")
                loaded = cls.__new__(cls)
                made.keep(
                    loaded, Beginning(total_bytes, None, phase), made.resumed_dial or sensitivity or "balanced", data
                )
                return loaded

        self.type: type[MemoryLeakDetector] = Made

    def keep(self, detector: FakeDetector, beginning: Beginning, dial: Dial, resumed: bytes = b"") -> None:
        """Set up a detector that was made, and remember it."""
        detector.set_up(beginning, dial, resumed)
        detector.said = self.first_word
        if resumed and self.resumed_life is not None:
            detector.shown = self.resumed_life
        self.made.append(detector)
