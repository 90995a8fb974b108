"""What an app's allocator tells, beside what the driver counts."""

from __future__ import annotations

import dataclasses

import pytest

from gpuagent.core.metrics.clients import TORCH_FAMILIES, cached_bytes, outside_bytes
from gpuagent.core.metrics.series import series
from gpuagent.core.snapshot import AllocatorReading, ProcessReading, ProcessState, Snapshot
from gpuagent.core.units import GIB
from gpuagent_exporters.status.document import allocator_status
from tests.fakes.snapshots import full_snapshot


def process(used_bytes: int | None) -> ProcessReading:
    """One that uses so much by the driver's count."""
    return ProcessReading(0, "GPU-0", 10, ProcessState.LIVE, None, used_bytes, "C", None)


def values(snapshot: Snapshot) -> dict[str, float]:
    """The allocator's series by name, of a snapshot with one such process."""
    names = {family.name for family in TORCH_FAMILIES}
    found = {family.name: samples for family, samples in series(snapshot, 100.0) if family.name in names}
    return {name: sample.value for name, (sample,) in found.items()}


@pytest.mark.parametrize(
    ("reserved", "allocated", "cached"), [(8, 3, 5), (3, 3, 0), (3, 4, 0), (None, 3, None), (3, None, None)]
)
def test_cached(reserved: int | None, allocated: int | None, cached: int | None) -> None:
    """Reserved and not handed out; never negative, and unknown where one of both is."""
    assert cached_bytes(AllocatorReading(reserved_bytes=reserved, allocated_bytes=allocated)) == cached


@pytest.mark.parametrize(
    ("used", "reserved", "outside"), [(9, 8, 1), (8, 8, 0), (7, 8, None), (None, 8, None), (9, None, None)]
)
def test_outside(used: int | None, reserved: int | None, outside: int | None) -> None:
    """What the driver counts beyond it: less than nothing (vLLM's sleep, two moments) is unknown, not zero."""
    assert outside_bytes(process(used), AllocatorReading(reserved_bytes=reserved)) == outside


def test_the_series_of_an_app() -> None:
    """By process and GPU, under the app's name."""
    found = values(full_snapshot())

    assert found["gpuagent_torch_memory_allocated_bytes"] == 20 * GIB
    assert found["gpuagent_torch_memory_cached_bytes"] == 16 * GIB
    assert found["gpuagent_torch_memory_outside_bytes"] == GIB
    assert found["gpuagent_torch_ooms_total"] == 2
    assert found["gpuagent_torch_memory_declared_typical_bytes"] == 6 * GIB
    (labels,) = [
        dict(zip(family.labels, sample.labels, strict=True))
        for family, samples in series(full_snapshot(), 100.0, only=frozenset({"gpuagent_torch_info"}))
        for sample in samples
    ]
    assert (labels["pid"], labels["app"], labels["backend"]) == ("10", "whisper-api", "native")


def test_what_is_not_told_has_no_series() -> None:
    """An allocator that keeps few figures, and an app whose figures are old: absent, never zero."""
    snapshot = full_snapshot()
    client = snapshot.clients[10]
    few = dataclasses.replace(client, devices={"GPU-0": AllocatorReading(allocated_bytes=5)})
    old = dataclasses.replace(client, devices={})

    assert values(dataclasses.replace(snapshot, clients={10: few})).keys() == {
        "gpuagent_torch_memory_allocated_bytes", "gpuagent_torch_info",
        "gpuagent_torch_memory_declared_minimum_bytes", "gpuagent_torch_memory_declared_typical_bytes",
    }  # fmt: skip
    assert values(dataclasses.replace(snapshot, clients={10: old})) == {}
    assert values(dataclasses.replace(snapshot, clients={})) == {}


def test_the_status_of_a_process_has_its_allocator() -> None:
    """Beside the driver's figure; null where no app tells."""
    snapshot = full_snapshot()
    told, _, untold = (allocator_status(snapshot, each) for each in snapshot.processes)

    assert told == {
        "app": "whisper-api", "allocated_bytes": 20 * GIB, "reserved_bytes": 36 * GIB, "cached_bytes": 16 * GIB,
        "outside_bytes": GIB,
    }  # fmt: skip
    assert set(untold.values()) == {None}
