"""Every bar of the agent's cost, measured here and now: python -m benchmarks.cost [--library DIR].

With --library, the state of a stand-in library is what its own variables say (FAKE_NVML_STATE); --sizes names a folder
of such states, GPUSxPROCESSES.state, and --moving one in which the memory of every process grows.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.cost import probes, sizes
from benchmarks.cost.bars import Bar, absent, at_most, table
from benchmarks.cost.beside import beside_floor, beside_peer, beside_peer_moving
from benchmarks.cost.document import Section, write
from benchmarks.cost.place import Place
from benchmarks.cost.running import NotRunning
from benchmarks.crossings import crossings
from benchmarks.exporters import GPUS, PROCESSES, install_peer, sleepers

_POLL_SECONDS = 1.0
_MOST_LATE_SECONDS = 0.02


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost", description=__doc__)
    parser.add_argument("--library", metavar="DIR", help="run over the libnvidia-ml.so.1 in DIR, not the simulated one")
    parser.add_argument("--sizes", metavar="DIR", type=Path, help="states of the library, for its cost over their size")
    parser.add_argument("--moving", metavar="FILE", help="a state of the library in which all memory grows")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long CPU time is watched [%(default)s]")
    parser.add_argument("--crossings", type=int, default=40, help="thresholds crossed; 0: none [%(default)s]")
    parser.add_argument("--no-sizes", action="store_true", help="leave the cost over the size out")
    parser.add_argument("--no-peer", action="store_true", help="leave nvitop-exporter out")
    parser.add_argument("--document", metavar="FILE", type=Path, help="write the tables into this page too")
    return parser.parse_args(argv)


class Bench:
    """Measures part by part; one that cannot be measured costs its own rows."""

    def __init__(self, options: argparse.Namespace, folder: Path, place: Place) -> None:
        self._options = options
        self._folder = folder
        self._place = place
        self.bars: list[Bar] = []
        self.sections: list[Section] = []

    def run(self) -> None:
        """All that is wanted."""
        seconds = self._options.seconds
        if self._options.no_peer:
            pass
        elif (python := install_peer()) is None:
            self.bars.append(absent("CPU and scrape beside nvitop-exporter", "1/20 and 1/8", "it is not to be had"))
        else:
            self._add("nvitop-exporter beside it", lambda: beside_peer(self._place, python, seconds))
            if self._options.moving:
                moving = self._place.with_environment(FAKE_NVML_STATE=self._options.moving)
                self._add("the same, all memory growing", lambda: beside_peer_moving(moving, python, seconds))
        if self._options.library:
            self._add("the floor beside it", lambda: beside_floor(self._place, seconds))
        self._add("ten scrapers", lambda: probes.blocks(self._place, seconds))
        if self._options.crossings:
            self._add("thresholds crossed", self._crossings)
        self._add("the budget of a tick", self._budget)
        if not self._options.no_sizes:
            self._add("sizes", self._sizes)

    def _add(self, what: str, measure: Callable[[], list[Bar]]) -> None:
        say(f"{what} ...")
        try:
            self.bars += measure()
        except NotRunning as error:
            self.bars.append(absent(what, "", str(error)))

    def _crossings(self) -> list[Bar]:
        folder = self._folder / "crossings"  # an agent of its own, which no other's state may reach
        folder.mkdir()
        found = asyncio.run(crossings(self._options.crossings, folder))
        if not found:
            raise NotRunning("no message has come")
        median = statistics.median(latency.from_crossing for latency in found)
        return [
            at_most("threshold crossed to webhook received, median", median * 1e3,
                    (_POLL_SECONDS + _MOST_LATE_SECONDS) * 1e3, "{:.0f} ms"),
            Bar("of that, from the tick to the webhook, median",
                f"{statistics.median(latency.from_tick for latency in found) * 1e3:.0f} ms"),
        ]  # fmt: skip

    def _budget(self) -> list[Bar]:
        text, _ = probes.budget(self._place, self._options.seconds)
        self.sections.append(Section(f"A tick with {GPUS} GPUs and {PROCESSES} processes on each", text))
        return []

    def _sizes(self) -> list[Bar]:
        state_of = sizes.states_in(self._options.sizes) if self._options.sizes else None
        if self._options.library and state_of is None:
            return [absent("cost over the number of GPUs and processes", "linear", "no --sizes for this library")]

        def place_of(size: sizes.Size) -> Place:
            if state_of is None:
                return Place.of_size(self._folder, *size)
            return self._place.with_environment(FAKE_NVML_STATE=str(state_of(size)))

        text, bars = sizes.report(sizes.measure(place_of, self._options.seconds))
        self.sections.append(Section("Over the size of the node", text))
        return bars


def say(text: str) -> None:
    """A line of progress."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def conditions(options: argparse.Namespace) -> str:
    """Where and over what it was measured: a figure means nothing without."""
    over = (
        f"the stand-in {Path(options.library).name}/libnvidia-ml.so.1" if options.library else "the simulated library"
    )
    model = next(
        (line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
         if line.startswith("model name")), platform.machine(),
    )  # fmt: skip
    return (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} CPUs ({model}), Linux {platform.release()}, "
        f"Python {platform.python_version()}, load {os.getloadavg()[1]:.1f}{_priority()}; {GPUS} GPUs with "
        f"{PROCESSES} processes each, over {over}: no real GPU."
    )


def _priority() -> str:
    """What runs at real-time priority does not feel what else the machine does (chrt(1))."""
    real_time = os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)
    return ", at real-time priority" if real_time else ""


def main(argv: list[str] | None = None) -> int:
    """0 when it has come to its end: figures, not verdicts."""
    options = arguments(argv)
    # Below /tmp, whatever TMPDIR says: the path of a socket has room for 107 bytes.
    with TemporaryDirectory(prefix="gpuagent-cost-", dir="/tmp") as name, ExitStack() as stack:
        folder = Path(name)
        if options.library:
            place = Place.of_library(folder, options.library)
        else:
            place = Place.of_crowd(folder, stack.enter_context(sleepers(GPUS * PROCESSES)))
        bench = Bench(options, folder, place)
        bench.run()
    sections = [Section("Bars", table(bench.bars)), *bench.sections]
    for section in sections:
        sys.stdout.write(f"\n{section.title}\n\n{section.text}\n")
    if options.document is not None:
        write(options.document, conditions(options), sections)
    return 0


if __name__ == "__main__":
    sys.exit(main())
