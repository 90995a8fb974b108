"""What an update costs: mean over processes and ticks, both signals, beside a straight line through the same window.

python -m benchmarks.leak.cost
"""

from __future__ import annotations

import importlib
import random
import time
from typing import Any, NamedTuple

from benchmarks.leak.allocator import MIB
from benchmarks.leak.workload import GIB
from gpuagent_alerts.leak.detector import MemoryLeakDetector

_PROCESSES = 64
_SECONDS = 3600
_WINDOW_SECONDS = 1800
_TOTAL_BYTES = 80 * GIB


class Cost(NamedTuple):
    """Seconds."""

    mean_seconds: float
    """Per process and tick."""
    slowest_tick_seconds: float
    """Of all processes together: those of which a block ends in that tick do the work."""
    processes: int
    polyfit_seconds: float | None
    """Of numpy, over half an hour of both signals; None where numpy is not installed."""

    def core_share(self, processes: int, interval_seconds: float = 1.0) -> float:
        """Of one core, for so many processes at this interval."""
        return self.mean_seconds * processes / interval_seconds

    def lines(self) -> list[str]:
        """In words."""
        told = [
            f"{self.mean_seconds * 1e6:.2f} us per process and tick of 1 s, both signals (mean of {self.processes})",
            f"4,096 processes at 1 s: {100 * self.core_share(4096):.1f} % of a core",
            f"slowest tick: {self.slowest_tick_seconds * 1e6 / self.processes:.1f} us per process",
        ]
        if self.polyfit_seconds is None:
            told.append("numpy is not installed: no polyfit to compare with")
        else:
            told.append(
                f"numpy polyfit of a line through the last {_WINDOW_SECONDS // 60} min of both signals: "
                f"{self.polyfit_seconds * 1e6:.0f} us, {self.polyfit_seconds / self.mean_seconds:.0f} times as much"
            )
        return told


def measure(processes: int = _PROCESSES, seconds: int = _SECONDS) -> Cost:
    """An hour of processes that leak, breathe and stand, in equal parts, as the agent would feed them."""
    detectors = [
        MemoryLeakDetector(total_bytes=_TOTAL_BYTES, started_seconds=0.0, phase=number % 15)
        for number in range(processes)
    ]
    readings = _readings(seconds)
    free = 20.0 * GIB
    spent = slowest = 0.0
    for tick in range(seconds):
        now = 1000.0 + tick
        column = [reading[tick] for reading in readings]
        begun = time.process_time()
        for number, detector in enumerate(detectors):
            used, allocated, reserved = column[number % 3]
            detector.update(now, used, free, allocated, reserved)
        took = time.process_time() - begun
        spent += took
        slowest = max(slowest, took)
    return Cost(spent / seconds / processes, slowest, processes, _polyfit(readings[0]))


def _readings(seconds: int) -> list[list[tuple[float, float, float]]]:
    """Used, allocated and reserved, for a leak of 1 MiB a second, a saw-tooth, and a level with noise."""
    rng = random.Random(1)
    context, slack = 400.0 * MIB, 500.0 * MIB
    shapes: list[list[float]] = [
        [4.0 * GIB + tick * MIB for tick in range(seconds)],
        [6.0 * GIB + (tick % 90) * 20 * MIB for tick in range(seconds)],
        [8.0 * GIB + rng.uniform(-50, 50) * MIB for _ in range(seconds)],
    ]
    return [[(size + slack + context, size, size + slack) for size in shape] for shape in shapes]


def _polyfit(reading: list[tuple[float, float, float]], repeats: int = 200) -> float | None:
    try:
        numpy: Any = importlib.import_module("numpy")
    except ImportError:
        return None
    window = reading[:_WINDOW_SECONDS]
    times = numpy.arange(len(window), dtype=float)
    both = [numpy.array([row[column] for row in window]) for column in (0, 1)]
    begun = time.process_time()
    for _ in range(repeats):
        for values in both:
            numpy.polyfit(times, values, 1)
    return (time.process_time() - begun) / repeats


if __name__ == "__main__":
    print("\n".join(measure().lines()))  # noqa: T201
