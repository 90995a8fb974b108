"""`gpuagent replay` as it is typed: a table for people, JSON for programs, and exit statuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import typer
from typer.testing import CliRunner

from gpuagent.cli.replay import replay
from tests.fakes.golden import assert_golden

MIB = 2**20
TOTAL = 81_920 * MIB


def run(*options: str | Path) -> tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    app = typer.Typer()
    app.command()(replay)
    result = CliRunner().invoke(app, [str(option) for option in options])
    return result.exit_code, result.stdout, result.stderr


def trace(folder: Path, mib_per_second: float, most: float, name: str = "trace.csv", *, own: bool = True) -> Path:
    """7 hours: a quiet start, a line, and a plateau at `most` more."""
    path = folder / name
    with path.open("w") as out:
        out.write("time_seconds,used_bytes,free_bytes,allocated_bytes,reserved_bytes,process\n")
        for seconds in range(0, 25_200, 15):
            used = 20_000 * MIB + int(min(most, mib_per_second * max(0, seconds - 1200)) * MIB)
            allocator = f"{used - 900 * MIB},{used - 500 * MIB}" if own else ","
            out.write(f"{seconds},{used},{TOTAL - used},{allocator},python3:4711\n")
    return path


def documents(output: str) -> list[dict[str, Any]]:
    """One a line."""
    return [json.loads(line) for line in output.splitlines()]


def test_a_leak_as_json(tmp_path: Path) -> None:
    """LEAK-02: the keys that a program reads, and exit status 1."""
    path = trace(tmp_path, 2, 1e9)
    code, output, errors = run(path, "--json")
    (shown,) = documents(output)
    (alarm,) = shown["alarms"]

    assert (code, errors) == (1, "")
    assert (shown["file"], shown["process"], shown["samples"], shown["verdict"]) == (
        str(path),
        "python3:4711",
        1680,
        "leaking",
    )
    assert (alarm["alarm_seconds"], alarm["cleared_seconds"], alarm["evidence"]) == (14_040, None, "allocator")
    assert alarm["onset_seconds"] == pytest.approx(1200, abs=600)
    assert alarm["slope_bytes_per_second"] == pytest.approx(2 * MIB)
    assert alarm["exhaustion_seconds"] == pytest.approx((81_920 - 20_000 - 2 * 12_840) / 2, rel=0.01)
    assert alarm["reasons"][0].startswith("floor of tensors rose in 8 of 8 parts")


def test_no_leak(tmp_path: Path) -> None:
    """LEAK-01: a process without alarms is printed too, and the exit status is 0."""
    code, output, errors = run(trace(tmp_path, 2, 10_000), "--json")
    (shown,) = documents(output)

    assert (code, errors) == (0, "")
    assert (shown["verdict"], shown["alarms"]) == ("steady", [])


def test_an_alarm_that_clears(tmp_path: Path) -> None:
    """When it would have been over is told, too."""
    _, output, _ = run(trace(tmp_path, 10, 40_000, own=False), "--json")
    ((alarm,),) = (shown["alarms"] for shown in documents(output))

    assert alarm["alarm_seconds"] < alarm["cleared_seconds"] < 25_200
    assert alarm["evidence"] in {"balanced", "strict"}


def test_the_table(tmp_path: Path) -> None:
    """In 80 columns: the curve, when what would have been said, and why."""
    code, output, _ = run(trace(tmp_path, 10, 40_000), trace(tmp_path, 2, 10_000, "benign.csv"))

    assert code == 1
    assert all(len(line) <= 80 for line in output.splitlines())
    assert_golden("replay.txt", output)


def test_ascii(tmp_path: Path) -> None:
    """--ascii has no character beyond it."""
    assert run(trace(tmp_path, 10, 40_000), "--ascii")[1].isascii()


@pytest.mark.slow
def test_sensitivities(tmp_path: Path) -> None:
    """The more sensitive, the sooner."""
    path = trace(tmp_path, 2, 1e9, own=False)
    told = [
        documents(run(path, "--json", "--sensitivity", name)[1])[0]["alarms"][0]["alarm_seconds"]
        for name in ("sensitive", "balanced", "strict")
    ]

    assert told == sorted(told)
    assert told[0] < told[2]


def test_malformed_rows(tmp_path: Path) -> None:
    """They are named with file and line and skipped; the eleventh and later ones are only counted."""
    path = trace(tmp_path, 0, 0)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:5], *["oops"] * 13, *lines[5:]]) + "\n")
    code, output, errors = run(path, "--json")

    assert code == 0
    assert documents(output)[0]["samples"] == 1680
    assert errors.splitlines()[0].endswith("trace.csv: line 6: 1 cells where the first line has 6; skipped")
    assert errors.splitlines()[-1].endswith("trace.csv: 3 more rows were malformed; skipped")
    assert len(errors.splitlines()) == 11


def test_strict_refuses_a_malformed_row(tmp_path: Path) -> None:
    """With --strict the first one ends the file with exit status 3, and the next file is still read."""
    bad = tmp_path / "bad.csv"
    bad.write_text("time_seconds,used_bytes\n1,x\n")
    code, output, errors = run(bad, trace(tmp_path, 0, 0), "--json", "--strict")

    assert code == 3
    assert "bad.csv: line 2: could not convert" in errors
    assert [Path(shown["file"]).name for shown in documents(output)] == ["trace.csv"]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """Exit status 3, the reason on standard error, nothing on standard output."""
    empty = tmp_path / "empty.csv"
    empty.write_text("time_seconds,used_bytes\n")
    code, output, errors = run(tmp_path / "nothing.csv", empty)

    assert (code, output) == (3, "")
    assert "nothing.csv: No such file or directory" in errors
    assert "empty.csv: no reading in it" in errors


def test_nobody_tells_what_is_free(tmp_path: Path) -> None:
    """Without free memory and without --total there is no verdict: that is said, and no all-clear by exit status."""
    path = tmp_path / "used.csv"
    path.write_text("time_seconds,used_bytes\n" + "".join(f"{k},{30 * 2**30}\n" for k in range(0, 4000, 5)))
    code, output, errors = run(path, "--json")

    assert (code, documents(output)[0]["verdict"]) == (3, "learning")
    assert "no row has free memory. Use --total 80GiB." in errors
    code, output, errors = run(path, "--json", "--total", "80GiB")
    assert (code, documents(output)[0]["verdict"], errors) == (0, "steady", "")


def test_the_total_stands_for_a_column_of_what_is_free(tmp_path: Path) -> None:
    """LEAK-02: the same leak is told at the same second, whether the file tells what is free or --total does."""
    whole = trace(tmp_path, 10, 1e9, own=False)
    used_alone = tmp_path / "used.csv"
    used_alone.write_text(
        "".join(",".join(line.split(",")[:2]) + "\n" for line in whole.read_text().splitlines()),
    )
    (told,) = documents(run(whole, "--json")[1])
    code, output, errors = run(used_alone, "--json", f"--total={TOTAL}")
    (shown,) = documents(output)

    assert (code, errors) == (1, "")
    assert shown["alarms"]
    assert shown["alarms"] == told["alarms"]


@pytest.mark.parametrize("size", ["lots", "0GiB", "20000GiB", "-1GiB"])
def test_a_size_that_is_none(tmp_path: Path, size: str) -> None:
    """A wrong --total is a usage error."""
    code, _, errors = run(tmp_path / "x", f"--total={size}")

    assert code == 2
    assert "--total" in errors


@pytest.mark.parametrize(
    ("name", "installed", "code", "words"),
    [
        ("x.svg", False, 1, ""),
        ("x.png", True, 1, ""),
        ("x.png", False, 2, "gpuagent[plot]"),
        ("x.gif", True, 2, "has to end in .svg or .png"),
        ("no/x.svg", True, 3, "No such file or directory"),
    ],
)
def test_a_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, installed: bool, code: int, words: str
) -> None:
    """A picture of every process; SVG needs no package, and what cannot be drawn is refused with the way out."""
    path = trace(tmp_path, 10, 40_000)
    monkeypatch.setattr("gpuagent.core.plot.png.find_spec", lambda _: object() if installed else None)
    found, _, errors = run(path, "--plot", tmp_path / name)
    assert found == code
    assert words in " ".join(errors.replace("│", "").split())
    if code == 1 and name.endswith(".png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    elif code == 1:
        drawn = "".join(ET.parse(tmp_path / name).getroot().itertext())
        assert all(word in drawn for word in ("python3:4711", "growing", "leaking", "GPU 80.0 GiB", "forecast", "+1 h"))
        assert "leak after" in drawn
