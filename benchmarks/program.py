"""`make bench`: what the agent costs, beside nvitop-exporter, in one table. Figures, not verdicts."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.commands import show_status, status_times
from benchmarks.crossings import CROSSINGS
from benchmarks.exporters import (
    GPUS,
    PROCESSES,
    ROOT,
    agent,
    compile_modules,
    install_peer,
    over_library,
    over_scenario,
    peer,
    sleepers,
)
from benchmarks.measure import Exporter, ExporterFailed, Figures, measure
from benchmarks.resident import loaded_bytes

RSS_BAR_BYTES = 68 * 2**20

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
    parser.add_argument("--soak-ticks", type=int, default=86_400, help="0 leaves the soak out [%(default)s]")
    parser.add_argument(
        "--crossings", type=int, default=CROSSINGS, help="thresholds crossed; 0 leaves them out [%(default)s]"
    )
    parser.add_argument("--no-bars", action="store_true", help="leave the table of all bars out: 15 minutes")
    parser.add_argument("--no-rules", action="store_true", help="leave the cost of rules out")
    parser.add_argument("--no-peer", action="store_true", help="measure the agent alone")
    return parser.parse_args(argv)


def compare(options: argparse.Namespace, folder: Path) -> list[Figures]:
    """Each exporter on its own, one after the other, over the same GPUs; shows what was found."""
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
        show(found)
        if found and found[0].name == made.name:
            _memory(found[0], place, environment)
        _status(made, socket, None if place else python)
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


def _status(exporter: Exporter, socket: Path, peers: Path | None) -> None:
    """`gpuagent status`, beside its peers where they need not load a simulated library first."""
    say("")
    try:
        for line in show_status(status_times(exporter, socket, peers)):
            say(line)
    except ExporterFailed as failure:
        say(f"absent: {failure}")


def _memory(found: Figures, place: list[str], environment: dict[str, str]) -> None:
    """The bar is for the agent: what the simulated library takes in its process is not the agent's."""
    simulation = 0
    if place:
        simulation = loaded_bytes(place, environment, str(ROOT)) - loaded_bytes([], environment, str(ROOT))
        say(f"the simulated library, and what reads its scenario, take {simulation / 2**20:.1f} MiB of it")
    own = (found.resident_bytes - simulation) / 2**20
    say(f"RSS of the agent {own:.1f} MiB (bar: at most {RSS_BAR_BYTES / 2**20:.0f})")


def say(text: str, *, err: bool = False) -> None:
    """A line of the report, or of progress."""
    print(text, file=sys.stderr if err else sys.stdout, flush=True)


def main(argv: list[str] | None = None) -> int:
    """0 when the agent could be measured."""
    options = arguments(argv)
    say(f"{GPUS} GPUs x {PROCESSES} processes, each exporter at 1 s and scraped once a second; "
        f"over {options.library or 'the simulated library'}")  # fmt: skip
    # Below /tmp, whatever TMPDIR says: the path of a socket has room for 107 bytes.
    compile_modules()
    with tempfile.TemporaryDirectory(prefix="gpuagent-bench-", dir="/tmp") as folder:
        found = compare(options, Path(folder))
    if not options.no_bars:
        _part("benchmarks.cost", *_bars(options))
    elif options.crossings:  # they are among the bars
        _part("benchmarks.crossings", options.crossings)
    if not options.no_rules:
        _part("benchmarks.promql")
    if options.soak_ticks:
        say(f"soak: {options.soak_ticks} ticks in a process of its own, by a clock moved by hand")
        _part("benchmarks.soak", options.soak_ticks)
    return 0 if found and found[0].name == "gpuagent" else 1


def _bars(options: argparse.Namespace) -> list[object]:
    """The words for `benchmarks.cost`."""
    words: list[object] = ["--seconds", options.seconds, "--crossings", options.crossings]
    words += ["--no-peer"] if options.no_peer else []
    return [*words, "--library", Path(options.library).resolve()] if options.library else words


def _part(module: str, *words: object) -> None:
    """A benchmark in a process of its own, with a line before it that is empty."""
    say("")
    subprocess.run([sys.executable, "-m", module, *map(str, words)], cwd=ROOT, check=True)
