"""What is asked, what is answered, and in which words."""

from __future__ import annotations

import json
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from gpuagent_client import blame
from gpuagent_client.blame.census import Moment, pace_of
from gpuagent_client.blame.judgment import Series, judge
from gpuagent_client.blame.lines import add_allocating_lines, grown_bytes, places_by_block, surviving_lines
from gpuagent_client.blame.lines import lines_verdict as verdict_of_lines
from gpuagent_client.blame.look import Entry, Table
from gpuagent_client.blame.tensors import Key, described
from gpuagent_client.blame.wire import MAX_BYTES, bounded, census_request, sentence, size, verdict
from gpuagent_client.errors import Refused
from tests.client.conftest import ROOT

GROUP: dict[str, Any] = {
    "growing": True,
    "growth_bytes": 2_040_109_466,
    "container": "app.results",
    "container_length": 412,
    "kind": "list",
    "path": "app.results[*]",
    "file": "app.py",
    "line": 42,
    "function": "predict",
    "how": "added",
    "others": [],
    "taken_out": [],
    "cause": "outputs kept with their graph",
    "remedy": "the tensors carry their graph: detach() or no_grad()",
}


class Idle:
    """An app in which nothing happens."""

    thread_id = 0

    def requests_served(self) -> int | None:
        return None

    def is_capturing(self) -> bool:
        return False

    def wait(self, seconds: float) -> bool:
        return False


def test_the_verdict_says_who_where_and_what_to_do() -> None:
    """One sentence that can be acted on."""
    assert verdict([GROUP], 300, {}) == (
        "+1.9 GiB in 300 s is held by `app.results` (list, 412 items), appended at app.py:42 in `predict`;"
        " the tensors carry their graph: detach() or no_grad()"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "dict"}, "stored at app.py:42"),
        ({"how": "carried"}, "assigned at app.py:42"),
        ({"file": "", "how": ""}, "(list, 412 items); the tensors"),
        ({"others": ["b.py:7 in put"]}, "(or b.py:7 in put)"),
        ({"taken_out": ["app.py:50"]}, "app.py:50 takes out of it again: it may be a bounded cache that is filling"),
        ({"cause": "a closure holds tensors", "remedy": "drop it"}, "a closure holds tensors: drop it"),
        ({"container": "", "kind": "", "path": "<app.Cycle>.x"}, "held by `<app.Cycle>.x`, stored"),
    ],
)
def test_the_words_fit_what_was_found(changes: dict[str, Any], words: str) -> None:
    """Each thing that is known is said, and nothing that is not."""
    assert words in verdict([{**GROUP, **changes}], 300, {})


def test_what_does_not_grow_is_not_blamed() -> None:
    """LEAK-01: a holder that was made once is in the list, and not in the verdict."""
    assert verdict([{**GROUP, "growing": False}], 60, {}).startswith("nothing to blame")


def test_growth_that_no_object_explains_is_said() -> None:
    """NCCL, workspaces and graphs' pools are no tensors."""
    assert "cuda:0 grew by 3.0 GiB, more than Python objects explain" in verdict([], 60, {"cuda:0": 3 << 30})
    assert "more than" not in verdict([GROUP], 60, {"cuda:0": 2 << 30})


def test_sizes_are_readable() -> None:
    """Binary units, one digit."""
    assert [size(number) for number in (0, 1023, 1536, 5 << 30)] == ["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]


def test_a_table_comes_back_as_it_was() -> None:
    """What one look leaves is what the next one reads."""
    table = Table({-77: Entry(3, 1024, 2), 5: Entry(1)}, objects=77, tensors=2)

    assert Table.decode(table.encode()) == table
    assert table.entry(12345) == Entry(0, 0, 0)


def found(growth_bytes: int, **changes: object) -> dict[str, object]:
    """A holder as the second look tells of it: a list that had 10 items at the first look, and has 30."""
    place = {
        "container": "app.results", "container_length": 30, "path": "app.results[*]", "cause": "c", "rooted": True,
        "targets": [[["module", "app"], [], "length", 30]], "gained": 20, "bound": None, "device": "cpu",
        **changes,
    }  # fmt: skip
    return {"growth_bytes": growth_bytes, "alternatives": [place]}


@pytest.mark.parametrize(
    ("lengths", "changes", "others", "note"),
    [
        ([32, 35, 40], {}, [], None),
        ([30, 30, 30], {}, [], "has not grown since"),
        ([100, 200, 300], {"gained": 2}, [], "has not grown since"),  # most of what comes has no tensors
        ([35, 2, 40], {}, [], "has not grown since"),
        ([None, None, None], {}, [], "has not grown since"),
        ([32, 35, 40], {"bound": 64}, [], "has a bound of 64"),
        ([32, 35, 40], {"bound": 100_000}, [], None),
        ([32, 35, 40], {}, [1 << 30], ""),
        ([], {"targets": []}, [], None),
        ([], {"targets": []}, [8 << 20], "could not be watched"),
        ([], {"targets": [], "rooted": False, "path": "<C>", "cause": "reference cycle"}, [], "collector frees"),
    ],
    ids=[
        "goes on", "warm-up that ended", "mostly without tensors", "a buffer that is flushed", "is gone",
        "a cache that fills up", "a far bound",
        "a small share", "nothing else grew", "not watched, and a small share", "a cycle",
    ],
)  # fmt: skip
def test_only_what_goes_on_growing_is_blamed(
    lengths: list[int | None], changes: dict[str, object], others: list[int], note: str | None
) -> None:
    """LEAK-02: a container of constant length, one that is emptied, and one that is nearly full are no leaks."""
    groups = [found(1 << 20, **changes), *(found(size) for size in others)]
    series: Series = {(0, 0): lengths, **{(number + 1, 0): [30, 30, 30] for number in range(len(others))}}

    judged = judge({"groups": groups, "freed_by_gc": True}, series, pace=0.6)

    assert [group["container"] for group in judged.growing] == (["app.results"] if note is None else [])
    if note:
        assert note in judged.notes[0]


def test_what_is_not_explained_is_said() -> None:
    """Next to a leak, growth that has no holder that goes on is told as a sum."""
    groups = [found(3 << 20), found(1 << 20)]

    judged = judge({"groups": groups, "freed_by_gc": True}, {(0, 0): [40], (1, 0): [30]}, pace=0.6)

    assert len(judged.growing) == 1
    assert "of 4.0 MiB that came between the looks, 1.0 MiB are not explained" in judged.notes


def test_sizes_that_vary_are_one_kind() -> None:
    """Requests of many lengths leave tensors of many shapes."""
    assert described([Key((1, size), "torch.float32", "cpu", False, "") for size in (7, 9)]) == "float32[1, *] on cpu"


@pytest.mark.parametrize(
    "args",
    [{"window_seconds": "60"}, {"window_seconds": -1}, {"gaps": [1]}, {"gaps": [1, "x"]}, {"top": 0}, {"top": True}],
)
def test_arguments_that_are_none_are_refused(args: dict[str, object]) -> None:
    """What comes from the wire is checked before anything is done."""
    with pytest.raises(Refused):
        census_request(args, 600.0, 2.0)


def test_a_window_has_to_fit_into_the_deadline() -> None:
    """A census that cannot answer in time is not begun."""
    with pytest.raises(Refused, match="do not fit"):
        census_request({"window_seconds": 60}, 60.0, 2.0)
    assert census_request({"window_seconds": 60}, 62.0, 2.0).gaps == (36.0, 24.0)


@pytest.mark.parametrize("command", ["census", "lines"])
def test_an_app_without_torch_is_refused(command: str) -> None:
    """A refusal is an answer, not an error."""
    assert blame.run(command, {"window_seconds": 1}, 60.0, Idle()) == {
        "ok": False,
        "err": "the app has not loaded torch",
    }


def test_an_unknown_command_is_refused() -> None:
    """Only what is on the list."""
    assert blame.run("eval", {}, 60.0, Idle())["ok"] is False


@pytest.mark.slow
def test_loading_it_costs_only_the_standard_library() -> None:
    """No torch is imported by looking for it."""
    probe = "import sys, gpuagent_client.blame; print([n for n in sys.modules if n.startswith(('torch', 'numpy'))])"
    run = subprocess.run(
        [sys.executable, "-c", probe],
        env={"PYTHONPATH": str(ROOT / "client")},
        capture_output=True,
        text=True,
        check=True,
    )

    assert run.stdout == "[]\n"


@pytest.mark.parametrize(
    ("moments", "pace"),
    [
        ([(0, 0.0), (100, 9.0), (400, 9.5)], 3.0),
        ([(None, 1.0), (None, 2.0), (None, 6.0)], 4.0),
        ([(5, 0.0), (5, 1.0), (9, 2.0)], 1.0),
    ],
    ids=["by requests", "by time", "nothing happened first"],
)
def test_the_pace_is_that_of_the_work_done(moments: list[tuple[int | None, float]], pace: float) -> None:
    """LEAK-02: a quiet start of the window before a busy rest does not make a leak look like a cache."""
    assert pace_of([Moment(*moment) for moment in moments]) == pace


@pytest.mark.slow
def test_an_answer_fits_into_a_line_of_the_protocol() -> None:
    """The least important groups are left out, and it is said."""
    answer = bounded({"verdict": "v", "groups": [{**GROUP, "path": "x" * 1000} for _ in range(500)], "notes": []})

    assert len(json.dumps(answer).encode()) <= MAX_BYTES
    assert len(answer["groups"]) > 10  # type: ignore[arg-type]
    assert answer["notes"] == ["the answer was cut to its size limit"]


def block(address: int, filename: str, line: int, **changes: object) -> dict[str, object]:
    """A piece of memory in a snapshot."""
    frames = [{"filename": "/torch/nn/f.py", "line": 1, "name": "f"}, {"filename": filename, "line": line, "name": "g"}]
    return {
        "address": address,
        "size": 512,
        "requested_size": 500,
        "state": "active_allocated",
        "frames": frames,
    } | changes


def snapshot(*blocks: dict[str, object]) -> dict[str, object]:
    """One segment with these."""
    return {"segments": [{"device": 0, "address": 0, "blocks": list(blocks)}]}


def test_lines_are_those_whose_blocks_stay() -> None:
    """The first frame outside torch, of blocks that are in both snapshots; what was freed or is new is not counted."""
    stays, freed, new = block(1, "/app/app.py", 7), block(2, "/app/app.py", 8), block(3, "/app/app.py", 9)
    also = block(4, "/app/app.py", 7)
    nameless = block(5, "??", 0, frames=[{"filename": "??", "line": 0, "name": "??"}])
    before_the_window = block(6, "", 0, frames=[])
    pending = block(7, "/app/app.py", 10, state="active_pending_free")

    first = snapshot(stays, freed, also, nameless, before_the_window, pending)
    second = snapshot(stays, new, also, nameless, before_the_window, pending)
    (line,), notes = surviving_lines(first, second, "/torch")

    assert (line["file"], line["line"], line["function"]) == ("/app/app.py", 7, "g")
    assert (line["count"], line["bytes"]) == (2, 1000)
    assert "500 B have no Python frame" in notes[0]
    assert "/app/app.py:7 in `g` (2 blocks)" in verdict_of_lines([line], 30)


def test_a_holder_and_the_line_that_allocated_are_joined_by_address() -> None:
    """The line with most bytes of what it holds; a block of another size at an address is another tensor's."""
    taken = snapshot(
        block(1024, "/app/app.py", 7),
        block(2048, "/app/app.py", 7),
        block(3072, "/app/other.py", 9, requested_size=800),
    )
    groups: list[dict[str, object]] = [
        {"path": "held", "addresses": [[1024, 500], [2048, 500], [3072, 800], [4096, 9999]]},
        {"path": "reused", "addresses": [[1024, 499]]},
        {"path": "on the host", "addresses": []},
    ]
    add_allocating_lines(groups, places_by_block(taken, "/torch"))

    held, *others = groups
    assert held == {
        "path": "held",
        "allocated_file": "/app/app.py",
        "allocated_line": 7,
        "allocated_function": "g",
        "allocated_bytes": 1000,
    }
    assert others == [{"path": "reused"}, {"path": "on the host"}]


def test_the_verdict_names_both_lines() -> None:
    """Who keeps it, and who made it: often not the same line."""
    group = {**GROUP, "allocated_file": "app.py", "allocated_line": 57, "allocated_function": "predict"}

    assert ", allocated at app.py:57 in `predict`" in sentence(group, "300 s")


@pytest.mark.parametrize(
    ("backend", "before", "now", "grown", "said"),
    [
        ("native", {}, {"cuda:0": 5}, {"cuda:0": 5}, ""),
        ("native", {"cuda:0": 2}, {"cuda:0": 5}, {"cuda:0": 3}, ""),
        ("cudaMallocAsync", {"cuda:0": 2}, {"cuda:0": 5}, {"cuda:0": 3}, ""),
        ("cudaMallocAsync", {}, {"cuda:0": 5}, {}, "cudaMallocAsync tells of no bytes on cuda:0: not believed"),
        ("cudaMallocAsync", {"cuda:1": 5}, {}, {}, "cudaMallocAsync tells of no bytes on cuda:1: not believed"),
    ],
)
def test_no_bytes_of_cudas_own_allocator_are_no_answer(
    backend: str, before: dict[str, int], now: dict[str, int], grown: dict[str, int], said: str
) -> None:
    """An allocator that may tell of 0 bytes where there are some is not the source of a growth."""
    cuda = SimpleNamespace(is_initialized=lambda: True, memory=SimpleNamespace(get_allocator_backend=lambda: backend))

    assert grown_bytes(cast("ModuleType", SimpleNamespace(cuda=cuda)), before, now) == (grown, said)
