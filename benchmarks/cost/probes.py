"""What is measured inside of the agent: the budget of a tick, and how long its loop is not there for others."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.cost.bars import Bar, at_most, markdown
from benchmarks.cost.place import Place
from benchmarks.cost.running import SETTLE_SECONDS, NotRunning
from benchmarks.exporters import ROOT

_GRACE_SECONDS = 60.0
_LONGEST_BLOCK_MILLISECONDS = 20.0
_BLOCKS_SECONDS = 200.0
"""Of fewer seconds the 99th percentile is the worst one, whatever has disturbed it."""


def budget(place: Place, seconds: float) -> tuple[str, float]:
    """The table, and all of it in milliseconds a second. Raises NotRunning."""
    process, output = place.inside("budget", seconds, place.agent())
    parts: dict[str, float] = _found(process, output, seconds)
    total = sum(parts.values())
    rows = [
        (part, f"{used * 1e3:.2f}", f"{used / total:.0%}")
        for part, used in sorted(parts.items(), key=lambda item: -item[1])
    ]
    rows.append(("together", f"{total * 1e3:.2f}", "100%"))
    return markdown(("part of the tick", "CPU, ms/s", "share"), rows), total * 1e3


def blocks(place: Place, seconds: float) -> list[Bar]:
    """The longest block of each second, with ten scrapers, of 200 s at least. Raises NotRunning."""
    seconds = max(seconds, _BLOCKS_SECONDS)
    made = place.agent()
    process, output = place.inside("blocks", seconds, made)
    words = [sys.executable, "-m", "benchmarks.cost.scrapers", str(made.port), str(seconds + SETTLE_SECONDS)]
    scrapers = subprocess.Popen(words, cwd=ROOT)
    try:
        found: list[tuple[float, float, str]] = _found(process, output, seconds)
    finally:
        scrapers.kill()
        scrapers.wait()
    late, busy = [each[0] * 1e3 for each in found], [each[1] * 1e3 for each in found]
    what = "longest block of the loop in a second, 10 scrapers at 1 s"
    return [
        at_most(f"{what}: p99", _p99(late), _LONGEST_BLOCK_MILLISECONDS, "{:.1f} ms"),
        Bar("of that, the loop's own CPU time: p99", f"{_p99(busy):.1f} ms"),
        Bar(f"{what}: median", f"{statistics.median(late):.1f} ms, own CPU time {statistics.median(busy):.1f} ms"),
        Bar("the longest of all, and what the loop was at", f"{max(late):.1f} ms: {max(found)[2] or 'nothing'}"),
    ]


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98]


def _found(process: subprocess.Popen[bytes], output: Path, seconds: float) -> Any:
    try:
        process.wait(SETTLE_SECONDS + seconds + _GRACE_SECONDS)
        return json.loads(output.read_bytes())
    except (subprocess.TimeoutExpired, OSError) as error:
        words = output.with_suffix(".log").read_text(encoding="utf-8", errors="replace")[-500:]
        raise NotRunning(f"{error}: {words}") from None
    finally:
        process.kill()
        process.wait()
