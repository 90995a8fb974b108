"""The suite for a real GPU: on one, dry over the simulator, and what is promised of its table and its exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.client.conftest import apps_python as apps_python  # noqa: PLC0414  for pytest
from tests.exhaustive import usually
from tests.gpu.__main__ import complete, main, run_experiment
from tests.gpu.blaming import ROOM_RATIO, judge
from tests.gpu.machine import ROOT
from tests.gpu.plan import EXPERIMENTS, Check, Experiment, every_check
from tests.gpu.report import Line, Report, Verdict, exit_status, read_lines, table

NAMES = [experiment.name for experiment in EXPERIMENTS]
MIB = 2**20


def run(out: Path, *words: str) -> tuple[int, str, list[Line]]:
    """Run the suite as a person does; return its exit status, its table and its lines."""
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu", "--out", str(out), *words], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": paths}, cwd=ROOT,
    )  # fmt: skip
    document = json.loads((out / "report.json").read_text())
    lines = [Line(**{**row, "verdict": Verdict(row["verdict"])}) for row in document["lines"]]
    return done.returncode, done.stdout, lines


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", NAMES)
def test_on_this_gpu(name: str, tmp_path: Path) -> None:
    """An experiment on the GPU that is here: all of it runs, and both sides agree."""
    status, text, lines = run(tmp_path, "--only", name)
    assert status == 0, text
    assert {line.verdict for line in lines} <= {Verdict.AGREES, Verdict.MEASURED}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", usually(NAMES, "figures", "capture", "ladder", "allocators", "oom", "jax"))
def test_dry(name: str, tmp_path: Path, apps_python: Path) -> None:
    """Over the simulator each check agrees or says why it needs a GPU, and the exit status tells that."""
    status, text, lines = run(tmp_path, "--dry", "--only", name)
    (experiment,) = (one for one in EXPERIMENTS if one.name == name)
    needing = {check.name for check in experiment.checks if check.dry}
    assert {line.check for line in lines if line.verdict is Verdict.NOT_RUN} == needing, text
    assert {line.verdict for line in lines} <= {Verdict.AGREES, Verdict.MEASURED, Verdict.NOT_RUN}, text
    assert status == (3 if needing else 0)
    assert "Dry run over the simulator" in text


def test_without_a_gpu_every_check_is_a_line_that_did_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                              monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """Skipping is no way to pass: each check has its line with the reason, and the exit status is not 0."""
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr("tests.gpu.__main__.missing_gpu", lambda: "NVML counts no GPU")
    monkeypatch.setattr("tests.gpu.__main__.facts", lambda dry: {"card": "none"})
    monkeypatch.setattr("tests.gpu.__main__.adopt_orphans", lambda: None)
    assert main(["--out", str(tmp_path)]) == 3
    rows = [row for row in capsys.readouterr().out.splitlines() if row.startswith("| ")][1:]
    assert len(rows) == len(list(every_check()))
    assert all(row.endswith("| NVML counts no GPU | not run |") for row in rows)


def test_every_experiment_exists() -> None:
    """Each has a name and a function of its own, and checks of different names."""
    assert len(set(NAMES)) == len(NAMES)
    for experiment in EXPERIMENTS:
        module, _, function = experiment.function.partition(":")
        assert callable(getattr(import_module(f"tests.gpu.{module}"), function))
        assert len(experiment.compared()) == len(experiment.checks) > 0


def test_the_page_lists_every_check() -> None:
    """docs/hardware.md says of each line of the table what it compares."""
    page = (ROOT / "docs" / "hardware.md").read_text(encoding="utf-8")
    rows = [row for row in page.splitlines() if row.startswith("| ")]
    missing = [
        f"| {experiment.name} | {check.compared} |"
        for experiment, check in every_check()
        if not any(row.startswith(f"| {experiment.name} | {check.compared} |") for row in rows)
    ]
    assert missing == []


def line(verdict: Verdict, figures: str = "1 = 1") -> Line:
    """A line with this verdict."""
    return Line("figures", "sum", "a | b", figures, verdict)


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [
        ([Verdict.AGREES, Verdict.MEASURED], 0),
        ([Verdict.AGREES, Verdict.NOT_RUN], 3),
        ([Verdict.NOT_RUN, Verdict.DIFFERS], 1),
        ([Verdict.AGREES, Verdict.FAILED], 1),
        ([], 1),
    ],
)
def test_the_exit_status_is_0_only_if_everything_ran_and_agrees(verdicts: list[Verdict], status: int) -> None:
    """What differs counts more than what did not run; nothing at all is no success."""
    assert exit_status(line(verdict) for verdict in verdicts) == status


def test_the_table() -> None:
    """Markdown with the machine above, a row for each line, and the sums below; figures cannot break a row."""
    text = table({"card": "H100", "driver": "595.1"}, [line(Verdict.DIFFERS, "1 |\n2")], dry=False)
    assert text.splitlines() == [
        "card H100; driver 595.1.",
        "",
        "| experiment | what was compared | figures | verdict |",
        "|---|---|---|---|",
        r"| figures | a \| b | 1 \| 2 | differs |",
        "",
        "0 agrees, 0 measured, 1 differs, 0 failed, 0 not run.",
    ]


def experiment_of(function: str) -> Experiment:
    """An experiment of two checks, done by a function of this module."""
    return Experiment("mine", f"test_real_gpu:{function}", 5, (Check("one", "one"), Check("two", "two")))


def breaks(_setting: object, report: Report) -> None:
    """Report one check, then break."""
    report.agrees("one", True, "fine")
    raise RuntimeError("the driver is gone")


def forgets(_setting: object, report: Report) -> None:
    """Report one check and not the other."""
    report.agrees("one", True, "fine")


@pytest.mark.parametrize(
    ("function", "reason"),
    [("breaks", "RuntimeError: the driver is gone"), ("forgets", "the experiment did not report it")],
)
def test_what_breaks_costs_its_own_line(function: str, reason: str, tmp_path: Path) -> None:
    """What an experiment found before it broke stays, and the rest has failed with the reason."""
    experiment = experiment_of(function)
    run_experiment(experiment, tmp_path, dry=False)
    lines = read_lines(tmp_path / "mine.jsonl")
    assert [(one.check, one.verdict) for one in lines] == [("one", Verdict.AGREES), ("two", Verdict.FAILED)]
    assert lines[1].figures == reason


def test_an_experiment_that_was_killed_has_all_its_lines() -> None:
    """In the plan's order: what was written down, and for the rest why it is not there."""
    experiment = experiment_of("breaks")
    found = [Line("mine", "two", "two", "fine", Verdict.AGREES)]
    lines = complete(experiment, found, Verdict.FAILED, "took longer than 5 s")
    assert [(one.check, one.figures) for one in lines] == [("one", "took longer than 5 s"), ("two", "fine")]


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "verdict"), [(6.4, "leaking"), (0.0, "steady")])
def test_a_minute_is_enough_for_a_verdict(rate: float, verdict: str, tmp_path: Path) -> None:
    """A trace of 75 s with a steady leak is judged a leak once it is stretched, and one without is not."""
    rows = []
    for number in range(300):
        held = int((200 + rate * number / 4) * MIB)
        reserved = -(-held // (2 * MIB)) * 2 * MIB
        rows.append({
            "time_seconds": f"{1e9 + number / 4:.3f}", "used_bytes": str(reserved + 512 * MIB), "free_bytes": "",
            "allocated_bytes": str(held), "reserved_bytes": str(reserved), "process": "python:1",
        })  # fmt: skip
    assert judge(rows, ROOM_RATIO * 6.4 * 75 * MIB, tmp_path / "trace.csv")["verdict"] == verdict
