"""The tables of docs/fleet.md."""

from __future__ import annotations

import datetime as dt
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fleet.measured import Cost
from benchmarks.fleet.recorded import GPUS

BEGIN = "<!-- figures: written by `python -m benchmarks.fleet --write docs/fleet.md` -->"
END = "<!-- end of the figures -->"
_GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Crowd:
    """A crowded node with one `processes.top`."""

    top: int
    series: int
    scrape_bytes: int


@dataclass(frozen=True, slots=True)
class Usual:
    """The whole fleet."""

    processes: int
    nodes: int
    interval_seconds: int
    series: int
    scrape_bytes: int
    cost: Cost


def tables(usual: Usual, crowds: Sequence[Crowd]) -> Iterator[str]:
    """Lines of Markdown."""
    cost, nodes, processes = usual.cost, usual.nodes, usual.processes
    version, date = platform.python_version(), dt.datetime.now(tz=dt.UTC).date()
    yield f"Measured on {date}, on {machine()}, Python {version}. Prometheus and the fleet shared the machine."
    yield ""
    yield f"**{nodes} nodes of {GPUS} GPUs with {processes} processes each, scraped every {usual.interval_seconds} s**"
    yield ""
    yield "| what | |"
    yield "|---|---|"
    yield f"| series of one node | {usual.series:,} |"
    yield f"| one scrape, uncompressed | {usual.scrape_bytes / 1024:.0f} KiB |"
    yield f"| series in Prometheus, those of the rules included | {cost.series:,} |"
    yield f"| samples per second | {cost.samples_per_second:,.0f} |"
    yield f"| resident memory | {cost.resident_bytes / _GIB:.1f} GiB |"
    yield f"| of it, a series | {cost.resident_bytes / cost.series / 1024:.1f} KiB |"
    yield f"| processor | {cost.cpu_cores:.2f} cores |"
    yield f"| median time of a scrape | {cost.scrape_seconds * 1000:.0f} ms |"
    yield f"| nodes that could not be scraped, rules that failed | {cost.unhealthy} |"
    yield ""
    yield "| rule group | evaluated every | takes |"
    yield "|---|---|---|"
    for name, interval, took in cost.groups:
        yield f"| {name} | {interval:g} s | {took * 1000:,.0f} ms |"
    yield ""
    yield f"**`processes.top` where GPUs are crowded ({GPUS} GPUs with 64 processes each)**, for each node"
    yield ""
    yield "| `processes.top` | series | scrape | memory of Prometheus, reckoned from the above |"
    yield "|---|---|---|---|"
    for crowd in crowds:
        memory = crowd.series * cost.resident_bytes / cost.series / 1024**2
        yield f"| {crowd.top} | {crowd.series:,} | {crowd.scrape_bytes / 1024:.0f} KiB | {memory:.1f} MiB |"


def machine() -> str:
    """Processor, cores and memory, in words."""
    models = {
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    }
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    return f"{os.cpu_count()} cores ({', '.join(models) or platform.machine()}), {memory:.0f} GiB"


def write(path: Path, usual: Usual, crowds: Sequence[Crowd]) -> None:
    """Put the tables between the marks of the document. Raises ValueError where it has none."""
    text = path.read_text(encoding="utf-8")
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} has no place for the figures: {BEGIN} ... {END}")
    path.write_text(f"{head}{BEGIN}\n\n" + "\n".join(tables(usual, crowds)) + f"\n\n{END}{tail}", encoding="utf-8")
