"""The benchmark works: its figures are read right, and nothing in it has rotted. It judges no time."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks import promql
from benchmarks.commands import Took, show_status
from benchmarks.exporters import ROOT
from benchmarks.measure import Figures, cpu_seconds, descriptors, resident_bytes
from benchmarks.program import arguments, show
from benchmarks.prometheus import prometheus_milliseconds
from benchmarks.resident import loaded_bytes

OURS = Figures("gpuagent", 0.01, 0.02, 60 * 2**20, 0.010, 0.020, 1_000_000, 5000)


def test_cpu_time_is_that_of_the_process() -> None:
    """The figure from /proc is what the process itself knows, to a clock tick."""
    before = cpu_seconds(os.getpid())
    while cpu_seconds(os.getpid()) - before < 0.05:
        pass
    times = os.times()

    assert cpu_seconds(os.getpid()) == pytest.approx(times.user + times.system, abs=0.05)


def test_memory_and_descriptors_are_those_of_the_process() -> None:
    """A file that is opened is one descriptor more, and memory that is touched is resident."""
    me = os.getpid()
    gc.collect()  # what earlier tests have left open is closed now and not in between
    files, memory = descriptors(me), resident_bytes(me)
    filled = bytearray(os.urandom(1)) * (64 * 2**20)

    with Path(os.devnull).open("rb"):
        assert descriptors(me) == files + 1
    assert resident_bytes(me) - memory > len(filled) // 2


def test_the_table_has_both_and_the_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    """The other's figure over ours: how many times cheaper the agent is."""
    show([OURS, replace(OURS, name="other", cpu_alone_ratio=0.1, cpu_ratio=0.2, scrape_seconds=0.08)])

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["gpuagent", "other", "ratio"]
    assert lines[1].split() == ["CPU,", "s/s", "0.0100", "0.1000", "10.0x"]
    assert lines[2].split()[-3:] == ["0.0200", "0.2000", "10.0x"]
    assert lines[-1].split() == ["per", "series,", "us", "2.00", "16.00", "8.0x"]


def test_the_agent_alone_has_no_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    """Without the peer the table still is one."""
    show([OURS])

    assert capsys.readouterr().out.splitlines()[1].split() == ["CPU,", "s/s", "0.0100"]


def test_by_default_everything_is_measured() -> None:
    """`make bench` passes no options: all parts, the comparison for 20 s, 40 crossings, a soak of a day."""
    options = arguments([])

    assert (options.seconds, options.crossings, options.soak_ticks) == (20.0, 40, 86_400)
    assert (options.library, options.no_peer, options.no_rules) == (None, False, False)


@pytest.mark.slow
def test_the_soak_reports_memory_and_descriptors() -> None:
    """EXP-01: at the first tick and at the end, processes that come and go in between included."""
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.soak", "40", "5"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )

    first, last = run.stdout.splitlines()
    assert (first.split()[1], last.split()[1]) == ("1", "40")
    # 25 newcomers, each there for longer than the alert waits: they leave no descriptor behind, and alerts are told.
    assert _count(last, "descriptors") - _count(first, "descriptors") < 10
    assert _count(last, "messages") >= 5


def _count(line: str, what: str) -> int:
    return int(line.partition(what)[2].split(maxsplit=1)[0])


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.needs("prometheus")
def test_prometheus_tells_its_time(tmp_path: Path) -> None:
    """It has every series that the agent's engine is given, and evaluates every expression without an error."""
    assert prometheus_milliseconds(promql.families(), promql.texts(), tmp_path) > 0


@pytest.mark.exhaustive  # a crossing lasts three seconds: it is missed where the agent gets no processor time
@pytest.mark.slow
def test_every_crossing_is_told_of() -> None:
    """A real agent tells a real receiver of each crossing; both figures are printed."""
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.crossings", "3", "6.3"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )

    lines = run.stdout.splitlines()
    assert (run.returncode, run.stderr) == (0, "")
    assert [line.split(" median ")[0].rstrip() for line in lines[1:]] == ["crossed to received", "tick to received"]


def test_status_is_judged_by_the_faster_peer() -> None:
    """By wall clock, as whoever waits does; without a peer there is no verdict."""
    ours, slow, fast = Took("gpuagent status", 0.1, 0.09), Took("gpustat --json", 1.0, 0.2), Took("nvitop -1", 0.2, 0.2)

    assert list(show_status([ours, slow, fast]))[-1].startswith("gpuagent status takes 0.50 of the time of nvitop -1")
    assert [line.split()[-2:] for line in show_status([ours])] == [["CPU,", "ms"], ["100", "90"]]


@pytest.mark.slow
def test_what_is_loaded_has_a_size() -> None:
    """A process of its own tells it, and it is more than an interpreter takes."""
    assert loaded_bytes([], dict(os.environ), str(ROOT)) > 20 * 2**20
