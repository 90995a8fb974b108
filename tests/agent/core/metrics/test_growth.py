"""The leak detector's word as series."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuagent.core.growth import Evidence, Growth, MemoryKey, Range, Verdict
from gpuagent.core.metrics.series import series
from gpuagent.core.snapshot import Snapshot
from tests.fakes.readings import NOW, gpu, process, snapshot

UUID = "GPU-00000000"
LEAK = Growth(
    Verdict.LEAKING,
    Evidence.STRICT,
    Range(1000.0, 900.0, 1100.0),
    since_seconds=1.7e9,
    exhaustion=Range(60.0, 30.0, 90.0),
    evidence_told=(Evidence.BALANCED, Evidence.STRICT),
)


def seen(growth: Growth, **more: Growth) -> Snapshot:
    """A process of which this is said; `more` is by `p<pid>`."""
    said = {7: growth, **{int(name[1:]): one for name, one in more.items()}}
    processes = [process(pid, used_gib=pid) for pid in said]
    return snapshot([gpu()], processes, growth={MemoryKey(UUID, pid): one for pid, one in said.items()})


def of(snapshot: Snapshot, name: str, top: int | None = None) -> dict[tuple[str | None, ...], float]:
    """Values of one family by pid and its own labels."""
    for family, samples in series(snapshot, NOW, top=top):
        if family.name == f"gpuagent_process_memory_{name}":
            return {(one.labels[2], *one.labels[7:]): one.value for one in samples}
    return {}


def test_a_leak() -> None:
    """LEAK-02: suspected since then, how fast, when full, and every standard that it has met."""
    told = seen(LEAK)
    assert of(told, "leak_suspected") == {("7",): 1}
    assert of(told, "growth_bytes_per_second") == {("7",): 1000}
    assert of(told, "exhaustion_seconds") == {("7",): 60}
    assert of(told, "leak_since_seconds") == {("7",): 1.7e9}
    assert of(told, "leak_evidence") == {("7", "balanced"): 1, ("7", "strict"): 1}
    assert of(told, "verdict") == {("7", "leaking"): 1}
    assert of(told, "fast_exhaustion_seconds") == {}


def test_growth_that_is_no_leak() -> None:
    """LEAK-01: 0 is a statement, and what will not come has no series."""
    told = seen(replace(LEAK, verdict=Verdict.GROWING, evidence=None, exhaustion=None, evidence_told=()))
    assert of(told, "leak_suspected") == {("7",): 0}
    assert of(told, "growth_bytes_per_second") == {("7",): 1000}
    assert of(told, "verdict") == {("7", "growing"): 1}
    for name in ("exhaustion_seconds", "leak_since_seconds", "leak_evidence", "fast_exhaustion_seconds"):
        assert of(told, name) == {}


@pytest.mark.parametrize(("verdict", "values"), [(Verdict.LEAKING, {("7",): 0.0}), (Verdict.LEARNING, {})])
def test_a_leak_always_has_a_growth(verdict: Verdict, values: dict[tuple[str, ...], float]) -> None:
    """LEAK-02: the alert multiplies it in, and must not end because a slope cannot be told for a while."""
    assert of(seen(replace(LEAK, verdict=verdict, slope=None)), "growth_bytes_per_second") == values


def test_a_leak_is_exported_however_small_its_process() -> None:
    """LEAK-02, EXP-03: within the same bound: what leaks comes first, then the largest."""
    steady = Growth(Verdict.STEADY)
    told = seen(LEAK, p8=steady, p9=steady, p10=steady)
    assert of(told, "leak_suspected", top=2) == {("7",): 1, ("10",): 0}


def test_before_the_detector_has_spoken() -> None:
    """LEAK-03: there is nothing, not a zero."""
    assert [family.name for family, _ in series(snapshot(), NOW) if "_leak_" in family.name] == []
