"""What grows is a leak if it goes on: told by its container, or by the memory in use where it has none."""

from __future__ import annotations

import itertools
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from gpuagent_client.blame import memory_in_use
from gpuagent_client.blame.judgment import ALTERNATIVES, UNWATCHED, Watch, judge
from gpuagent_client.blame.memory_in_use import HOST, UsageSeries, floor_rise

MIB = 1 << 20
WITHOUT_CUDA = cast("ModuleType", SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: False)))


def group(growth_mib: int, targets: list[Any], name: str) -> dict[str, Any]:
    """A holder of tensors on the host."""
    place = {
        "targets": targets, "gained": 10, "bound": None, "container_length": 10, "container": name, "path": name,
        "rooted": True, "cause": "", "device": "cpu",
    }  # fmt: skip
    return {"growth_bytes": growth_mib * MIB, ALTERNATIVES: [place]}


NAMED = [(("module", "app"), (("kept", None, 1),), "length", 10)]


@pytest.mark.parametrize(
    ("in_use_mib", "watched", "blamed"),
    [
        ([100, 100, 101, 100, 101, 101, 101, 102], [], False),
        ([100, 110, 101, 111, 102, 112, 103, 113], [], True),
        ([100, 180, 101, 140, 101, 170, 100, 101], [], False),
        ([90, 80, 70, 60, 50, 40, 30, 20], [], False),
        ([100, 102, 104, 106, 108, 110, 112, 114], [12] * 8, True),
        ([100, 101, 102, 103, 104, 105, 106, 107], [12, 14, 16, 18, 20, 22, 24, 26], False),
        ([], [], False),
    ],
    ids=["has ended", "goes on", "comes and goes", "falls", "beside one that has ended", "beside a leak", "not told"],
)
def test_what_cannot_be_watched_is_blamed_only_if_memory_grows_on(
    in_use_mib: list[int], watched: list[int], blamed: bool
) -> None:
    """LEAK-02: a warm-up that has ended grew between the looks too; what a leak explains is no evidence against it."""
    groups = [group(10, [], "native"), group(10, NAMED, "app.kept")]
    usage = {"cpu": [value * MIB for value in in_use_mib]}

    judged = judge({"groups": groups, "freed_by_gc": False}, {(1, 0): watched}, 1.0, usage=usage)

    assert ("native" in [one["container"] for one in judged.growing]) is blamed
    assert any(UNWATCHED in note for note in judged.notes) is not blamed


def test_memory_is_measured_only_for_holders_without_a_container() -> None:
    """One place that can be asked is enough."""
    assert Watch([group(1, [], "native")]).is_blind
    assert not Watch([group(1, NAMED, "app.kept")]).is_blind


def test_a_device_that_nobody_measures_is_no_evidence() -> None:
    """Missing is not idle: tensors of a device that is not in the usage are judged as without any usage."""
    found = {"groups": [group(10, [], "native")], "freed_by_gc": False}

    assert [judge(found, {}, 1.0, usage=usage).notes for usage in (None, {}, {"cuda:0": [1, 1]})] == [[], [], []]


def test_what_is_expected_is_what_came_while_it_was_measured() -> None:
    """Where the second look took half of the time, half of the growth is seen."""
    found = {"groups": [group(10, [], "native")], "freed_by_gc": False}
    usage = {"cpu": [MIB * value for value in (100, 100, 101, 101)]}

    assert [len(judge(found, {}, 1.0, usage=usage, usage_part=part).growing) for part in (1.0, 0.5)] == [0, 1]


def test_bytes_in_use_are_measured() -> None:
    """Those that malloc has given out, or what is resident; nothing before the first sample."""
    usage = UsageSeries(WITHOUT_CUDA)
    assert usage.values == {}
    usage.sample()
    kept = b"x" * (64 * MIB)  # written, so that it is resident as well
    usage.sample()

    first, second = usage.values[HOST]
    assert second - first >= len(kept) // 2
    assert floor_rise([5]) == 0


@pytest.mark.parametrize(
    ("malloc", "cpu_seconds", "asked"),
    [(90 * MIB, 0.001, 3), (90 * MIB, 0.006, 1), (5 * MIB, 0.001, 1), (None, 0.001, 1)],
    ids=["malloc", "slow", "another allocator", "not glibc"],
)
def test_malloc_is_asked_while_that_is_cheap(
    malloc: int | None, cpu_seconds: float, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread of the app can allocate while malloc counts; one series has one source from its start."""
    times = itertools.count(0.0, cpu_seconds)
    calls: list[None] = []

    def malloc_bytes() -> int | None:
        calls.append(None)
        return malloc

    monkeypatch.setattr(memory_in_use, "time", SimpleNamespace(thread_time=lambda: next(times), monotonic=lambda: 7.0))
    monkeypatch.setattr(memory_in_use, "malloc_bytes", malloc_bytes)
    monkeypatch.setattr(memory_in_use, "resident_bytes", lambda: 100 * MIB)
    usage = UsageSeries(WITHOUT_CUDA)
    for _ in range(3):
        usage.sample()

    assert len(calls) == asked
    assert usage.values == {HOST: [malloc if asked == 3 else 100 * MIB] * 3}
    assert [usage.part_of(since, until) for since, until in [(5.0, 9.0), (8.0, 9.0), (5.0, 6.0), (9.0, 9.0)]] == [
        0.5, 1.0, 0.0, 1.0,
    ]  # fmt: skip
