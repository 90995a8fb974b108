"""Real memory of a real app, recorded by the agent: leaks are found before the end, and nothing else is.

tests/data/leaks/README.md says what is real in them; `python -m benchmarks.leak.recorded` records them again.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from benchmarks.leak.recorded.cases import CASES
from typer.testing import CliRunner

from gpuagent.cli.replay import replay
from gpuagent_alerts.leak.settings import SENSITIVITIES

FOLDER = Path(__file__).parents[2] / "data" / "leaks"
MOST_BYTES = 5 * 2**20
FULL_BYTES = 16 * 2**20
LEAKS = [case.name for case in CASES if case.leak]
HEALTHY = [case.name for case in CASES if not case.leak]


def trace(name: str) -> Path:
    """Its file."""
    return FOLDER / f"{name}.csv.gz"


def replayed(path: Path, *options: str) -> dict[str, Any]:
    """What `gpuagent replay --json` says of the one process in it."""
    app = typer.Typer()
    app.command()(replay)
    result = CliRunner().invoke(app, [str(path), "--json", *options])
    (found,) = (json.loads(line) for line in result.stdout.splitlines())
    assert isinstance(found, dict)
    return found


def rows(path: Path) -> list[list[str]]:
    """Of the file, without its first line."""
    return [line.split(",") for line in gzip.decompress(path.read_bytes()).decode().splitlines()[1:]]


def without_allocator(path: Path, folder: Path) -> Path:
    """The same recording of an app without the client: three columns, and whose they are."""
    lines = ["time_seconds,used_bytes,free_bytes,process", *(",".join([*row[:3], row[5]]) for row in rows(path))]
    plain = folder / "plain.csv"
    plain.write_text("\n".join(lines) + "\n")
    return plain


def test_all_cases_are_recorded() -> None:
    """One file for each case and none beside them, half an hour each, within what a checkout may weigh."""
    files = sorted(FOLDER.glob("*.gz"))
    assert files == sorted(trace(case.name) for case in CASES)
    assert sum(file.stat().st_size for file in files) <= MOST_BYTES
    for file in files:
        times = [float(row[0]) for row in rows(file)]
        assert times[-1] - times[0] > 25 * 60
        assert len(times) > 1500


@pytest.mark.parametrize("sensitivity", SENSITIVITIES)
@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_is_found_before_the_end(name: str, sensitivity: str) -> None:
    """LEAK-02: each of the five classic leaks, by the allocator's figures, while a tenth of the room is left."""
    found = replayed(trace(name), "--sensitivity", sensitivity)
    recorded = rows(trace(name))
    room = int(recorded[0][2])

    assert found["verdict"] == "leaking"
    (alarm,) = found["alarms"]
    assert alarm["evidence"] == "allocator"
    free = next(int(row[2]) for row in recorded if float(row[0]) >= alarm["alarm_seconds"])
    assert free > room / 10


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_is_found_without_the_client(name: str, tmp_path: Path) -> None:
    """LEAK-02: by the process's memory alone, while some of it is left."""
    path = without_allocator(trace(name), tmp_path)
    found = replayed(path)
    (alarm, *_) = found["alarms"]

    assert alarm["evidence"] in {"balanced", "strict"}
    assert alarm["alarm_seconds"] < float(rows(trace(name))[-1][0]) - 60


@pytest.mark.parametrize("name", LEAKS)
def test_the_forecast_holds(name: str) -> None:
    """LEAK-02: what it says is left at the alarm is within a factor of two of what was left, where that was seen."""
    recorded = rows(trace(name))
    (alarm,) = replayed(trace(name))["alarms"]
    if int(recorded[-1][2]) > FULL_BYTES:
        # The recording ended first: then the forecast must not have ended before it.
        assert alarm["exhaustion_seconds"] > 0.5 * (float(recorded[-1][0]) - alarm["alarm_seconds"])
        return
    left = float(recorded[-1][0]) - alarm["alarm_seconds"]
    assert 0.5 < alarm["exhaustion_seconds"] / left < 2


@pytest.mark.parametrize("sensitivity", SENSITIVITIES)
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_app_is_left_alone(name: str, sensitivity: str, tmp_path: Path) -> None:
    """LEAK-01: loading, warming up, bursts, long texts, a cache that fills: no alarm, with the client or not."""
    for path in (trace(name), without_allocator(trace(name), tmp_path)):
        found = replayed(path, "--sensitivity", sensitivity)
        assert (found["alarms"], found["fast_seconds"]) == ([], [])
        assert found["verdict"] in {"steady", "cached"}
