"""Each way to hold a tensor is named as docs/blame.md says, by container, line and cause, beside a busy cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.client.blame.kinds import (
    HERE,
    HOLDERS,
    PROGRAMS,
    Row,
    ask,
    healthy_kinds,
    marked_lines,
    name_of,
    program_of,
    rows,
)
from tests.client.conftest import Apps
from tests.exhaustive import evenly

pytestmark = pytest.mark.timeout(180)

ROWS = rows()
LINES = {kind: line for program in PROGRAMS for kind, line in marked_lines(program).items()}
# Nobody adds to a cycle, or to what native code holds; and one kind is not seen at all.
WITHOUT_LINE = {"pure_cycle", "bound_method", "tree_of_cycles", "native_reference", "hidden_thread_local"}
NOT_NAMED = "not named"


def test_every_leak_of_the_app_is_documented() -> None:
    """The table has a row for each marked line, and the other way round."""
    assert {row.kind for row in ROWS} == {*LINES, *WITHOUT_LINE}


@pytest.mark.few(3)
@pytest.mark.slow
@pytest.mark.parametrize("row", evenly(ROWS, 8), ids=lambda row: row.kind)
def test_the_holder_is_named(row: Row, apps: Apps, apps_python: Path) -> None:
    """LEAK-01: what holds the tensors is blamed, with its line and its cause, and the busy cache never is."""
    program = program_of(row.kind)
    answer = ask(apps, apps_python, program, row.kind)

    blamed = [group for group in answer["groups"] if group["growing"]]
    if row.named == NOT_NAMED:
        assert blamed == []
        return
    assert blamed, answer
    first = blamed[0]
    assert (name_of(first), first["cause"]) == (row.named, row.cause)
    assert (first["file"], first["line"]) == ((program.name, LINES[row.kind]) if row.kind in LINES else ("", None))
    assert first["growth_bytes"] > 0
    assert answer["forks"] == 2
    assert "noise" not in json.dumps(blamed)
    assert first["cause"] in answer["verdict"] or first["remedy"] in answer["verdict"]


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("kind", evenly(healthy_kinds(), 3))
def test_what_is_bounded_is_not_blamed(kind: str, apps: Apps, apps_python: Path) -> None:
    """LEAK-02: caches that are full, rings, buffers that are flushed and a warm-up that ended hear no accusation."""
    assert ask(apps, apps_python, program_of(kind), kind)["groups"] == []


@pytest.mark.slow
def test_clean_traffic_is_not_blamed(apps: Apps, apps_python: Path) -> None:
    """LEAK-01: an app whose only growth is a cache that has levelled off hears that there is nothing to blame."""
    answer = ask(apps, apps_python, HOLDERS, "clean")

    assert answer["verdict"].startswith("nothing to blame")
    assert not any(group["growing"] for group in answer["groups"])


@pytest.mark.slow
def test_keys_are_masked_unless_asked_for(apps: Apps, apps_python: Path) -> None:
    """Keys of a dict are data of the app's users: their type is told, and themselves only on demand."""
    masked = json.dumps(ask(apps, apps_python, HOLDERS, "forward_hook"))
    shown = json.dumps(ask(apps, apps_python, HOLDERS, "forward_hook", '{"show_keys": true}'))

    assert "activations[<str>]" in masked
    assert "'first'" not in masked
    assert "activations['first']" in shown


@pytest.mark.slow
@pytest.mark.parametrize("look", ["first", "second"])
def test_a_look_whose_time_is_over_answers_in_part(look: str, apps: Apps, apps_python: Path) -> None:
    """What names lead to is told although nobody had the time for graphs, and a note says what is missing."""
    answer = ask(apps, apps_python, HERE / "cut_short.py", look)

    line = marked_lines(HERE / "cut_short.py")["cut_short"]
    assert [(group["container"], group["line"]) for group in answer["groups"]] == [("__main__.kept", line)]
    assert any(note.startswith(f"the {look} look ran out of time") for note in answer["notes"])


@pytest.mark.slow
def test_an_app_that_cannot_be_looked_into_says_why(apps: Apps, apps_python: Path) -> None:
    """Refusals are answers: a capture, the end of the app, no CUDA, no time."""
    answers = ask(apps, apps_python, HERE / "refusing.py")

    assert {name: answer["err"] for name, answer in answers.items()} == {
        "capturing": "a CUDA graph is being captured",
        "stopping": "the app is stopping",
        "lines": "the app has no CUDA context: lines are known of CUDA memory only; the census knows more",
        "deadline": "a window of 1 s and 2 s to look do not fit into the deadline of 1 s",
    }
