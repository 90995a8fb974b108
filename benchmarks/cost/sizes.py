"""Cost over the number of GPUs and of processes: whether it is a line, and how steep that is."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks.cost.bars import Bar, at_least, markdown
from benchmarks.cost.place import Place
from benchmarks.cost.running import SETTLE_SECONDS, cpu_ratios, started

GPUS = (1, 2, 4, 8, 16)
"""With one process each."""
PROCESSES = (1, 64, 256, 1024, 2048, 4096)
"""On one GPU."""
_LEAST_R_SQUARED = 0.97


class Size(NamedTuple):
    """GPUs, and processes on each."""

    gpus: int
    processes: int


class Line(NamedTuple):
    """Least squares. `r_squared` 1 is a line."""

    slope: float
    intercept: float
    r_squared: float


SIZES = tuple(dict.fromkeys([*(Size(gpus, 1) for gpus in GPUS), *(Size(1, processes) for processes in PROCESSES)]))


def fit(xs: Sequence[float], ys: Sequence[float]) -> Line:
    """A line through the points.

    >>> fit([1, 2, 3], [5, 7, 9])
    Line(slope=2.0, intercept=3.0, r_squared=1.0)
    """
    slope, intercept = statistics.linear_regression(xs, ys)
    return Line(slope, intercept, statistics.correlation(xs, ys) ** 2)


def states_in(folder: Path) -> Callable[[Size], Path]:
    """Files for a stand-in library, `GPUSxPROCESSES.state`, as FAKE_NVML_STATE names them."""
    return lambda size: folder / f"{size.gpus}x{size.processes}.state"


def measure(place_of: Callable[[Size], Place], seconds: float) -> dict[Size, float]:
    """CPU milliseconds a second by size, of all at the same time: what disturbs one disturbs all. Raises NotRunning."""
    with ExitStack() as stack:
        pids = [stack.enter_context(started(place_of(size).agent())).pid for size in SIZES]
        time.sleep(SETTLE_SECONDS)
        ratios = cpu_ratios(pids, seconds)
    return {size: ratio * 1e3 for size, ratio in zip(SIZES, ratios, strict=True)}


def report(found: dict[Size, float]) -> tuple[str, list[Bar]]:
    """The table of all sizes, and the two lines."""
    by_gpu = {gpus: found[Size(gpus, 1)] for gpus in GPUS}
    by_process = {processes: found[Size(1, processes)] for processes in PROCESSES}
    rows = [(str(size.gpus), str(size.processes), f"{cost:.2f}") for size, cost in found.items()]
    bars = []
    for what, costs, unit in (("GPU (with one process)", by_gpu, "ms/s"), ("process (on one GPU)", by_process, "ms/s")):
        line = fit(list(map(float, costs)), list(costs.values()))
        bars.append(
            at_least(
                f"cost per {what}: {line.slope * 1e3:.1f} us/s each, on {line.intercept:.2f} {unit}; how straight (r2)",
                line.r_squared, _LEAST_R_SQUARED, "{:.3f}",
            )
        )  # fmt: skip
    return markdown(("GPUs", "processes on each", "CPU, ms/s"), rows), bars
