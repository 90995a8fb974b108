"""Traces made by hand, for the tests of the benchmark."""

from __future__ import annotations

from benchmarks.leak.trace import Kind, Samples, Trace
from benchmarks.leak.workload import GIB

TOTAL = 80 * GIB


def trace_of(used: list[float], *, every: float = 60.0, **changes: object) -> Trace:
    """A process alone on its GPU."""
    samples = Samples()
    for number, size in enumerate(used):
        samples.append(number * every, size, TOTAL - size, size / 2, size)
    facts: dict[str, object] = {
        "family": "made/up", "kind": Kind.BENIGN, "seed": 0, "total_bytes": TOTAL, "client": True, "samples": samples,
        "starts": (0.0,), "starts_known": True, "leak_seconds": None, "exhausted_seconds": None,
    }  # fmt: skip
    return Trace(**{**facts, **changes})  # type: ignore[arg-type]
