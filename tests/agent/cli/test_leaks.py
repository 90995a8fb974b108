"""`leaks` and `history` as they are typed, against an agent that answers as it is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from typer.testing import CliRunner

from gpuagent.cli import leaks_tune
from gpuagent.cli.app import app
from gpuagent.cli.cells import Paint
from gpuagent.cli.leaks import lines_of
from gpuagent.core.plot.drawing import Label, to_svg
from gpuagent.core.plot.evidence import plot_of_evidence
from gpuagent.core.plot.memory_plot import draw
from tests.fakes.answering import answering, says

GIB: Final = 2**30
NOW: Final = 1_795_000_000.0
JUDGED: Final = {"sensitivity": "strict", "node_sensitivity": "balanced", "override": 1, "match": {"app": "\x1b[2J"}}


def point(minute: int, gib: float, free: float | None = 40.0) -> dict[str, Any]:
    """Return a stretch of a minute."""
    held = int(gib * GIB)
    return {
        "time_seconds": NOW - 3600 + 60 * minute, "used_bytes": held + GIB, "baseline_bytes": held,
        "free_bytes": None if free is None else int((free - gib) * GIB), "allocated_bytes": None,
    }  # fmt: skip


def evidence(**more: Any) -> dict[str, Any]:
    """Return a leak as the agent explains it."""
    window = {"seconds": 1140.0, "growth_bytes": 9 * GIB, "needed_bytes": 5 * GIB, "counts": True, "finding": "rose"}
    return {
        "schema": 1, "time_seconds": NOW, "pid": 7, "process": "embed\x1b[31m", "user": "svc-ml",
        "unit": "embed.service", "container_id": "", "app": "", "gpu": 0, "gpu_uuid": "GPU-0", "gpu_instance_id": -1,
        "running": True,
        "judged_by": JUDGED, "verdict": "leaking", "evidence": "strict", "growth_state": "rising",
        "growth_bytes_per_second": 2.0 * 2**20, "growth_since_seconds": NOW - 3000.0, "exhaustion_seconds": 900.0,
        "reasons": ["floor of memory rose"], "memory_total_bytes": 80 * GIB, "memory_free_bytes": 9 * GIB,
        "watched_seconds": 3600.0, "points": [point(minute, 10 + minute / 3) for minute in range(60)],
        "standards": [
            {"sensitivity": "strict", "signal": "memory", "alarm": True, "alarm_seconds": NOW - 300.0,
             "nearest": "", "windows": [window]},
        ],
        "why": ["strict: met for 5 min."], **more,
    }  # fmt: skip


def run(*words: str, answer: Any = None, status: str = "200 OK", typed: str = "") -> tuple[int, str, str, list[bytes]]:
    """Return exit status, standard output, standard error, and what the agent was asked."""
    requests: list[bytes] = []
    with answering(says(answer, status, requests)) as place:
        result = CliRunner().invoke(app, [*words, "--socket", str(place)], input=typed)
    return result.exit_code, result.stdout, result.stderr, requests


def test_the_plot() -> None:
    """The baseline rises, the window stands below its time, the forecast follows now; nothing hostile gets through."""
    code, output, _, requests = run("leaks", "explain", "7", "--gpu", "GPU-0", "--ascii", answer=evidence())
    assert (code, requests[0].split()[1]) == (0, b"/api/v1/leaks/7?gpu=GPU-0")
    assert output.isascii()
    assert "\x1b" not in output
    lines = output.splitlines()
    assert "by leaks.overrides[1] (app: ?); the node's is balanced" in " ".join(lines)
    drawn = [line.partition("|")[2] for line in lines if "|#" in line or line.endswith("+") or "#+" in line]
    assert [len(line.rstrip().rstrip("+")) > 0 for line in drawn]
    assert drawn[-1].startswith("#" * 50)
    assert drawn[-1].count("+") == 13
    assert [line.count("#") for line in drawn] == sorted(line.count("#") for line in drawn)
    assert any(line.startswith("   window") and "19 min, strict" in line for line in lines)


def test_the_picture(tmp_path: Path) -> None:
    """`--plot` draws what the screen says into a file, names as text; it says what it cannot write."""
    path = tmp_path / "leak.svg"
    code, output, _, _ = run("leaks", "explain", "7", "--plot", str(path), answer=evidence(process="<b>\x1b[31m"))
    assert (code, "window" in output) == (0, True)
    drawn = [each.strip() for each in ET.parse(path).getroot().itertext() if each.strip()]
    assert drawn[1] == "<b>?[31m (pid 7, svc-ml, embed.service) on GPU 0"
    assert {
        "leaking",
        "leak, strict",
        "strict: +9.0 GiB in 19 min",
        "forecast",
        "GPU 80.0 GiB",
        "others and driver",
    } <= set(drawn)
    code, _, errors, _ = run("leaks", "explain", "7", "--plot", str(tmp_path / "no" / "x.svg"), answer=evidence())
    assert (code, "No such file" in errors) == (1, True)


GIBS: Final = st.floats(0, 80) | st.just(0.0)
POINTS: Final = st.lists(st.tuples(st.integers(0, 59), GIBS, st.none() | st.just(80.0)), max_size=30).map(
    lambda found: [point(*each) for each in sorted(found, key=lambda each: each[0])]
)


@pytest.mark.slow
@settings(max_examples=100)
@given(
    POINTS,
    st.sampled_from([40, 60, 80, 200]),
    st.none() | st.floats(-1, 1e12),
    st.none() | st.floats(0, 1e12),
    st.booleans(),
    st.text(max_size=60),
)
def test_any_history_is_drawn(
    points: list[dict[str, Any]], width: int, pace: float | None, full: float | None, plain: bool, text: str
) -> None:
    """Whatever was remembered: no line is wider than the screen, and none has an escape."""
    document = evidence(
        points=points, growth_bytes_per_second=pace, exhaustion_seconds=full, process=text, why=[text], unit=text
    )
    for line in lines_of(document, width, Paint(ascii_only=plain)):
        assert cell_len(line) <= width
        assert line.isprintable()
    drawing = draw([plot_of_evidence(document)])
    ET.fromstring(to_svg(drawing))
    places = [place for item in drawing.items if not isinstance(item, Label) for place in item.points]
    assert all(0 <= x <= drawing.width and 0 <= y <= drawing.height for x, y in places)


def test_feedback_that_is_kept() -> None:
    """Its id is on standard output, what went for it beside; what is sent is what was said."""
    kept = {
        "id": "1-7-0", "evicted": ["0-1-0"], "process": "embed", "pid": 7, "user": "svc-ml", "gpu": 0, "label": "false",
    }  # fmt: skip
    code, output, errors, (request,) = run(
        "leaks", "feedback", "7", "--false", "--note", "a cache", answer=kept, status="201 Created"
    )
    assert (code, output) == (0, "1-7-0\n")
    assert "embed (pid 7, svc-ml) on GPU 0 does not leak" in errors
    assert "Dropped the oldest: 0-1-0" in errors
    body = json.loads(request.partition(b"\r\n\r\n")[2])
    assert request.startswith(b"POST /api/v1/leaks/7/feedback ")
    assert body == {"label": "false", "note": "a cache", "gpu": ""}


def test_an_answer_that_is_no_trace(tmp_path: Path) -> None:
    """What answers may be anything: it is a fault in words, and no file is left."""
    file = tmp_path / "x.csv"
    answer = {"traces": [{"trace": {"schema": 1}}], "left_out": 0}
    code, output, errors, _ = run("history", "export", "7", "-o", str(file), answer=answer)
    assert (code, output, file.exists()) == (1, "", False)
    assert "The agent's answer is invalid: no trace of the agent's" in errors


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person sits there."""
    monkeypatch.setattr(leaks_tune, "can_be_asked", lambda: True)


@pytest.mark.parametrize(("yes", "code"), [([], 1), (["--yes"], 0)])
@pytest.mark.usefixtures("terminal")
def test_it_asks_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, yes: list[str], code: int) -> None:
    """Without a yes nothing is changed, and nobody is told to reload."""
    file = tmp_path / "gpuagent.yaml"
    file.write_text("# mine\npoll_interval: 2s\n")
    monkeypatch.setattr("typer.confirm", lambda *_, **__: False)
    words = ("leaks", "tune", "strict", "--unit", "web.service", "--config", str(file), *yes)
    status, output, errors, requests = run(*words, answer={"reloaded": True, "error": ""})
    assert status == code
    assert "+    - match: {unit: web.service}" in output
    assert ("Nothing was changed" in errors) is not bool(yes)
    assert ("web.service" in file.read_text()) is bool(yes)
    assert any(request.startswith(b"POST /api/v1/reload") for request in requests) is bool(yes)


def test_a_file_that_is_changed_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else's change is not overwritten, and nothing is left beside."""
    file = tmp_path / "gpuagent.yaml"
    file.write_text("poll_interval: 2s\n")

    def diff(*_: object, **__: object) -> list[str]:
        file.write_text("poll_interval: 3s\n")
        return []

    monkeypatch.setattr("difflib.unified_diff", diff)
    code, _, errors, _ = run("leaks", "tune", "off", "--user", "bob", "--config", str(file), "--yes", answer={})
    assert (code, file.read_text()) == (1, "poll_interval: 3s\n")
    assert "it has changed in the meantime" in errors
    assert list(tmp_path.iterdir()) == [file]


def test_lines_are_printed_for_the_file_that_the_agent_reads(tmp_path: Path) -> None:
    """Which one that is, only a given `--config` says: the default need not be it, nor be there."""
    file = tmp_path / "gpuagent.yaml"
    file.write_text("poll_interval: 2s\n")
    words = ("leaks", "tune", "off", "--user", "bob", "--print")
    _, _, given, _ = run(*words, "--config", str(file), answer={})
    assert f"add these lines to {file}, before" in given
    _, output, errors, _ = run(*words, answer={})
    assert output.startswith("leaks:\n")
    assert "add these lines to the file that the agent reads (by default /etc/gpuagent/gpuagent.yaml), before" in errors


def test_a_file_with_a_fault(tmp_path: Path) -> None:
    """Its own faults are told first: it is not made worse."""
    file = tmp_path / "gpuagent.yaml"
    file.write_text("pol_interval: 2s\n")
    code, output, errors, _ = run("leaks", "tune", "off", "--user", "bob", "--config", str(file), "--yes", answer={})
    assert (code, output, file.read_text()) == (1, "", "pol_interval: 2s\n")
    assert "did you mean poll_interval" in errors
