"""What grows is a leak if it goes on: told by its container, or by the memory in use where it has none."""

from __future__ import annotations

from typing import Any

import pytest

from gpuagent_client.blame.judgment import ALTERNATIVES, UNWATCHED, Watch, judge
from gpuagent_client.blame.memory_in_use import floor_rise, host_bytes

MIB = 1 << 20


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


def test_bytes_in_use_are_told() -> None:
    """Those that malloc has given out, or what is resident."""
    before = host_bytes()
    kept = b"x" * (64 * MIB)  # written, so that it is resident as well

    assert host_bytes() - before >= len(kept) // 2
    assert floor_rise([5]) == 0
