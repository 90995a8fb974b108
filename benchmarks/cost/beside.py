"""The agent beside nvitop-exporter and beside the floor, all at the same time: ratios, which a busy machine spares."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.cost import floor
from benchmarks.cost.bars import Bar, absent
from benchmarks.cost.place import Place
from benchmarks.cost.running import (
    SETTLE_SECONDS,
    Running,
    cpu_ratios,
    scrape_seconds,
    scraped_cpu_ratios,
    series_count,
    started,
)

_SCRAPES = 60
_PEER_CPU = 20.0
_PEER_SCRAPE = 8.0
_FLOOR = 10.0
_CPU = "CPU at 1 s, not scraped"


def beside_peer(place: Place, python: Path, seconds: float) -> list[Bar]:
    """Both at 1 s over the same GPUs. Raises NotRunning."""
    with ExitStack() as stack:
        ours = stack.enter_context(started(place.agent()))
        theirs = stack.enter_context(started(place.peer(python)))
        time.sleep(SETTLE_SECONDS)
        alone = cpu_ratios([ours.pid, theirs.pid], seconds)
        scraped = scraped_cpu_ratios([ours, theirs], seconds)
        return [
            _cheaper(_CPU, alone, _PEER_CPU),
            _cheaper("CPU at 1 s, scraped at 1 s", scraped, None),
            *_scrapes(ours, theirs),
        ]


def beside_peer_moving(place: Place, python: Path, seconds: float) -> list[Bar]:
    """The same where nothing stays as it was from one second to the next, so that nothing can be spared."""
    with ExitStack() as stack:
        pids = [stack.enter_context(started(made)).pid for made in (place.agent(), place.peer(python))]
        time.sleep(SETTLE_SECONDS)
        return [_cheaper(f"{_CPU}, the memory of every process growing", cpu_ratios(pids, seconds), None)]


def _scrapes(ours: Running, theirs: Running) -> list[Bar]:
    times = scrape_seconds([ours, theirs], _SCRAPES)
    medians = [statistics.median(times[one.exporter.name]) for one in (ours, theirs)]
    series = series_count(ours.exporter.port), series_count(theirs.exporter.port)
    return [
        _cheaper("scrape, median", medians, _PEER_SCRAPE),
        Bar(
            "series in a scrape",
            f"{series[0]:,}",
            f"at least nvitop-exporter's {series[1]:,}",
            series[0] >= series[1],
        ),
    ]


def _cheaper(what: str, seconds: list[float], times: float | None) -> Bar:
    """The agent's and the peer's figure, and how many times the one is the other."""
    ratio = seconds[1] / seconds[0]
    measured = f"{seconds[0] * 1e3:.2f} ms, nvitop-exporter {seconds[1] * 1e3:.2f} ms: 1/{ratio:.1f}"
    return Bar(
        what, measured, "" if times is None else f"at most 1/{times:.0f}", None if times is None else ratio >= times
    )


def beside_floor(place: Place, seconds: float) -> list[Bar]:
    """Raises NotRunning; where there is no compiler, a row that says so."""
    bar = f"aim: at most {_FLOOR:.0f} times"
    try:
        program = floor.build(place.folder)
    except floor.NoFloor as why:
        return [absent(f"{_CPU}, against the floor", bar, str(why))]
    with ExitStack() as stack:
        ours = stack.enter_context(started(place.agent()))
        pids = [ours.pid]
        for events in (True, False):
            process = floor.start(program, place.environment, events=events)
            stack.callback(process.wait)
            stack.callback(process.kill)
            pids.append(process.pid)
        time.sleep(SETTLE_SECONDS)
        agent, whole, calls = (ratio * 1e3 for ratio in cpu_ratios(pids, seconds))
    return [
        Bar(
            f"{_CPU}, against a C program with the same NVML calls",
            f"{agent:.2f} ms/s, floor {whole:.2f} ms/s: {agent / whole:.1f} times",
            bar,
            agent / whole <= _FLOOR,
        ),
        Bar("of that floor, without the wait for Xid events", f"{calls:.2f} ms/s: {agent / calls:.1f} times"),
    ]
