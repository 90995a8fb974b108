"""`make bench`: what the agent costs, beside nvitop-exporter, in one table. Figures, not verdicts."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.bench.crossings import CROSSINGS
from tests.bench.exporters import (
    GPUS,
    PROCESSES,
    ROOT,
    agent,
    install_peer,
    over_library,
    over_scenario,
    peer,
    sleepers,
)
from tests.bench.measure import Exporter, ExporterFailed, Figures, measure

_ROWS: tuple[tuple[str, Callable[[Figures], float], str], ...] = (
    ("CPU, s/s", lambda figures: figures.cpu_alone_ratio, "{:.4f}"),
    ("CPU scraped at 1 s, s/s", lambda figures: figures.cpu_ratio, "{:.4f}"),
    ("RSS, MiB", lambda figures: figures.resident_bytes / 2**20, "{:.1f}"),
    ("scrape median, ms", lambda figures: figures.scrape_seconds * 1e3, "{:.2f}"),
    ("scrape p99, ms", lambda figures: figures.scrape_p99_seconds * 1e3, "{:.2f}"),
    ("scrape, KiB", lambda figures: figures.scrape_bytes / 1024, "{:.0f}"),
    ("series", lambda figures: figures.series, "{:.0f}"),
    ("per series, us", lambda figures: figures.seconds_per_series * 1e6, "{:.2f}"),
)


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("--library", metavar="DIR", help="run over the libnvidia-ml.so.1 in DIR, not the simulated one")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long CPU time is watched [%(default)s]")
    parser.add_argument("--soak-ticks", type=int, default=100_000, help="0 leaves the soak out [%(default)s]")
    parser.add_argument(
        "--crossings", type=int, default=CROSSINGS, help="thresholds crossed; 0 leaves them out [%(default)s]"
    )
    parser.add_argument("--no-rules", action="store_true", help="leave the cost of rules out")
    parser.add_argument("--no-peer", action="store_true", help="measure the agent alone")
    return parser.parse_args(argv)


def compare(options: argparse.Namespace, folder: Path) -> list[Figures]:
    """Each exporter on its own, one after the other, over the same GPUs."""
    with ExitStack() as stack:
        place: list[str] = []
        if options.library:
            environment = over_library(options.library)
        else:
            place, environment = over_scenario(folder, stack.enter_context(sleepers(GPUS * PROCESSES)))
        made, socket = agent(folder, place, environment)
        exporters = [made]
        python = None if options.no_peer else install_peer()
        if python is not None:
            exporters.append(peer(python, folder, place, environment))
        elif not options.no_peer:
            say("nvitop-exporter could not be installed: absent")
        found = [figures for exporter in exporters if (figures := _measured(exporter, options.seconds))]
        _status_times(made, socket)
        return found


def _measured(exporter: Exporter, seconds: float) -> Figures | None:
    say(f"{exporter.name}: {seconds:.0f} s ...", err=True)
    try:
        return measure(exporter, seconds)
    except ExporterFailed as failure:
        say(f"absent: {failure}")
        return None


def show(found: list[Figures]) -> None:
    """One table: a column for each exporter, and how many times the agent's figure the other's is."""
    say(f"{'':20}" + "".join(f"{figures.name:>24}" for figures in found) + (f"{'ratio':>10}" if len(found) > 1 else ""))
    for title, read, form in _ROWS:
        values = [read(figures) for figures in found]
        ratio = f"{values[1] / values[0]:>9.1f}x" if len(values) > 1 and values[0] else ""
        say(f"{title:20}" + "".join(f"{form.format(value):>24}" for value in values) + ratio)


def _status_times(exporter: Exporter, socket: Path) -> None:
    """`gpuagent status` as a whole process, beside an interpreter that does nothing."""
    with exporter.log.open("wb") as log:
        running = subprocess.Popen(
            exporter.command, env=exporter.environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        command = [str(Path(sys.executable).with_name("gpuagent")), "status", "--socket", str(socket)]
        deadline = time.monotonic() + 30
        while subprocess.run(command, capture_output=True, check=False).returncode and time.monotonic() < deadline:
            time.sleep(0.2)
        for words in (command, [sys.executable, "-c", "pass"]):
            say(f"{' '.join(Path(words[0]).name if word == words[0] else word for word in words[:3])}: "
                f"{_median_seconds(words) * 1e3:.0f} ms (median of 10 whole processes)")  # fmt: skip
    finally:
        running.kill()
        running.wait()


def _median_seconds(command: list[str]) -> float:
    times = []
    for _ in range(10):
        started = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def say(text: str, *, err: bool = False) -> None:
    """A line of the report, or of progress."""
    print(text, file=sys.stderr if err else sys.stdout, flush=True)


def main(argv: list[str] | None = None) -> int:
    """0 when the agent could be measured."""
    options = arguments(argv)
    say(f"{GPUS} GPUs x {PROCESSES} processes, each exporter at 1 s and scraped once a second; "
        f"over {options.library or 'the simulated library'}")  # fmt: skip
    # Below /tmp, whatever TMPDIR says: the path of a socket has room for 107 bytes.
    with tempfile.TemporaryDirectory(prefix="gpuagent-bench-", dir="/tmp") as folder:
        found = compare(options, Path(folder))
    show(found)
    if options.crossings:
        _part("tests.bench.crossings", options.crossings)
    if not options.no_rules:
        _part("tests.bench.promql")
    if options.soak_ticks:
        say(f"soak: {options.soak_ticks} ticks in a process of its own, by a clock moved by hand")
        _part("tests.bench.soak", options.soak_ticks)
    return 0 if found and found[0].name == "gpuagent" else 1


def _part(module: str, *numbers: int) -> None:
    """A benchmark in a process of its own, with a line before it that is empty."""
    say("")
    subprocess.run([sys.executable, "-m", module, *map(str, numbers)], cwd=ROOT, check=True)
