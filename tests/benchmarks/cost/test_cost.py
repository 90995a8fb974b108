"""The tables of the agent's cost: figures are read right and told right. No time is judged."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import time
from pathlib import Path

import pytest
from benchmarks.cost import document, floor
from benchmarks.cost.bars import absent, at_least, at_most, table
from benchmarks.cost.document import BEGIN, END, Section
from benchmarks.cost.meter import REST, Meter, count_parts
from benchmarks.cost.running import cpu_seconds
from benchmarks.cost.sizes import GPUS, PROCESSES, SIZES, Size, fit, report
from benchmarks.cost.turns import Turns

from gpuagent.service.assemble import assemble


class Work:
    """Keeps a processor busy: one part, and another one within it."""

    def __init__(self) -> None:
        self.inner_seconds = 0.0
        self.outer_seconds = 0.0

    def inner(self) -> None:
        """A twentieth of a second."""
        begun = time.thread_time()
        while time.thread_time() - begun < 0.05:
            pass
        self.inner_seconds += time.thread_time() - begun

    def outer(self) -> None:
        """As much again, and the inner part."""
        begun = time.thread_time()
        while time.thread_time() - begun < 0.05:
            pass
        self.outer_seconds += time.thread_time() - begun
        self.inner()


def test_parts_add_up() -> None:
    """A part that calls another is not charged for it, and nothing is lost: the parts are the process's CPU time."""
    meter, work = Meter(), Work()
    meter.count(work, "inner", "inner")
    meter.count(work, "outer", "outer")
    work.outer()
    work.inner()
    spent = meter.seconds()

    assert spent["inner"] == pytest.approx(work.inner_seconds, rel=0.05)
    assert spent["outer"] == pytest.approx(work.outer_seconds, rel=0.05)
    assert spent[REST] > 0
    assert sum(spent.values()) <= time.process_time()


def test_a_part_that_fails_is_counted() -> None:
    """The exception goes on, and the time after it is not the part's."""

    class Failing:
        def fail(self) -> None:
            raise OSError

    meter, work = Meter(), Work()
    failing = Failing()
    meter.count(failing, "fail", "failing")
    with pytest.raises(OSError):  # noqa: PT011  it has no text
        failing.fail()
    work.inner()

    assert meter.seconds()["failing"] < work.inner_seconds


def test_cpu_time_is_that_of_the_process() -> None:
    """The clock of a process by its pid is the process's own, and far finer than a hundredth of a second."""
    before = time.process_time()
    told = cpu_seconds(os.getpid())

    assert before <= told <= time.process_time()


def test_what_kept_the_loop() -> None:
    """The longest turn is told by its name, with what of it was work; a collection of garbage within it too."""
    turns, work = Turns(), Work()

    async def main() -> None:
        await asyncio.sleep(0)
        turns.clear()
        asyncio.get_running_loop().call_soon(work.inner)
        await asyncio.sleep(0)
        work.outer()
        gc.collect()
        await asyncio.sleep(0)

    run = asyncio.Handle._run
    with turns.watched():
        asyncio.run(main())
    assert asyncio.Handle._run is run

    first, second, *_ = [turn for turn in turns.longest(9) if "garbage" not in turn.what]
    assert "main" in first.what
    assert second.what == "Work.inner"
    assert first.cpu_seconds > second.cpu_seconds > 0.04
    assert "garbage collection of generation 2" in [turn.what for turn in turns.longest(9)]


def test_bars() -> None:
    """Met, not met, and not measured are three things."""
    rows = [
        at_most("a", 5.0, 6.0, "{:.1f} ms"),
        at_most("b", 7.0, 6.0, "{:.1f} ms"),
        at_least("c", 0.9, 0.9, "{}"),
        absent("d", "1/20", "no compiler"),
    ]

    assert [row.met for row in rows] == [True, False, True, None]
    lines = table(rows).splitlines()
    assert [cell.strip() for cell in lines[2].split("|")[1:-1]] == ["a", "5.0 ms", "at most 6.0 ms", "met"]
    assert [cell.strip() for cell in lines[3].split("|")[1:-1]] == ["b", "7.0 ms", "at most 6.0 ms", "**not met**"]
    assert [cell.strip() for cell in lines[5].split("|")[1:-1]] == ["d", "not measured: no compiler", "1/20", ""]
    assert len({len(line) for line in lines}) == 1


def test_a_line_and_what_is_none() -> None:
    """Cost over size: the slope is told, and a cost that grows by the square does not pass for a line."""
    assert fit([1, 2, 3], [5, 7, 9]) == (2.0, 3.0, 1.0)
    linear = {size: 3.0 + size.gpus * 0.5 + size.processes * 0.001 for size in SIZES}
    square = {size: linear[size] + size.processes**2 for size in SIZES}

    assert [bar.met for bar in report(linear)[1]] == [True, True]
    assert "0.5" not in report(linear)[1][1].what
    assert "cost per GPU (with one process): 500.0 us/s each" in report(linear)[1][0].what
    assert [bar.met for bar in report(square)[1]] == [True, False]
    assert {Size(gpus, 1) for gpus in GPUS} | {Size(1, processes) for processes in PROCESSES} == set(SIZES)


def test_the_page_keeps_what_is_written_by_hand() -> None:
    """The tables are replaced; a page without marks is left alone, with an error."""
    page = f"before\n\n{BEGIN}\nold\n{END}\n\nafter\n"
    once = document.replaced(page, "here.", [Section("Bars", "| a |")])

    assert once.startswith("before\n\n")
    assert once.endswith("\n\nafter\n")
    assert "old" not in once
    assert "Measured here.\n\n## Bars\n\n| a |" in once
    assert document.replaced(once, "here.", [Section("Bars", "| a |")]) == once
    with pytest.raises(ValueError, match="measured: begin"):
        document.replaced("nothing", "here.", [])


@pytest.mark.slow
@pytest.mark.needs("cc")
def test_the_floor_is_built(tmp_path: Path) -> None:
    """A program that runs: of a library that cannot be loaded it says so, and ends."""
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")
    process = floor.start(floor.build(tmp_path), {"LD_LIBRARY_PATH": str(tmp_path)}, events=True)

    assert process.wait(20) == 1


def test_no_compiler_no_floor(tmp_path: Path) -> None:
    """The bench goes on without it, and says why."""
    with pytest.raises(floor.NoFloor, match="no C compiler"):
        floor.build(tmp_path, compiler="no-such-compiler")


def test_every_part_of_a_tick_is_found(tmp_path: Path) -> None:
    """What the budget counts is there under its name: a method that is renamed is renamed in the budget, too."""
    config = tmp_path / "gpuagent.yaml"
    keys = {f"{name}_dir": str(tmp_path / name) for name in ("runtime", "state", "client")}
    config.write_text(json.dumps({"listen": ""} | keys))
    count_parts(assemble(config, simulate="demo").service, Meter())
