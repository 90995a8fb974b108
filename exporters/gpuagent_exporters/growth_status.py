"""What the leak detector says, in the status document: of a process, or of a GPU as a whole."""

from __future__ import annotations

from gpuagent.growth import Growth, Range, Verdict


def growth_status(growth: Growth | None) -> dict[str, object]:
    """All keys, always; null is what is not known, or what will not come. Times are Unix time."""
    verdict = growth.verdict if growth else None
    return {
        "verdict": str(verdict) if verdict else None,
        "evidence": str(growth.evidence) if growth and growth.evidence else None,
        "growth_bytes_per_second": _value(growth.slope if growth else None),
        "growth_range_bytes_per_second": _range(growth.slope if growth else None),
        "growth_since_seconds": growth.since_seconds if growth else None,
        "leak_since_seconds": growth.since_seconds if growth and verdict is Verdict.LEAKING else None,
        "exhaustion_seconds": _value(growth.exhaustion if growth else None),
        "exhaustion_range_seconds": _range(growth.exhaustion if growth else None),
        "fast_exhaustion_seconds": growth.fast_exhaustion_seconds if growth and growth.fast else None,
        "reasons": list(growth.reasons) if growth else [],
    }


def _value(figure: Range | None) -> float | None:
    return None if figure is None else figure.value


def _range(figure: Range | None) -> list[float] | None:
    return None if figure is None else [figure.low, figure.high]
