"""The generated part of docs/leaks.md, and its plots."""

from __future__ import annotations

from pathlib import Path

from benchmarks.leak import cost
from benchmarks.leak.detector import judge
from benchmarks.leak.families import make_trace
from benchmarks.leak.methods import Results
from benchmarks.leak.peers import PEERS, alarms_of
from benchmarks.leak.svg import Lane, draw
from benchmarks.leak.table import dial, families_table, fast_path, methods_table, sizes

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "leaks.md"
PLOTS = ROOT / "docs" / "images" / "leaks"
BEGIN = "<!-- begin: written by make leakbench -->"
END = "<!-- end: written by make leakbench -->"

PICTURES = {
    "leak": ("leak/train", 5, "A leak: training that keeps a loss with its graph at every step"),
    "cache": ("benign/linear_cache", 3, "A cache that fills evenly, then puts the oldest out"),
    "diurnal": ("benign/diurnal", 3, "A server that follows the day"),
}
"""By file name: family, seed and title."""


def write_part(results: Results, costs: cost.Cost) -> list[str]:
    """The lines between the markers."""
    return [
        sizes(results),
        "",
        *methods_table(results),
        "",
        "Traces with an alarm, by family (of a leak: within its life):",
        "",
        *families_table(results),
        "",
        fast_path(results),
        "",
        "What growth may take of the memory that was free, and stop, without a word:",
        "",
        *dial(),
        "",
        "Cost:",
        "",
        *(f"- {line}" for line in costs.lines()),
    ]


def read_part(page: str) -> list[str]:
    """The generated lines of a page. Raises ValueError where the markers are not there."""
    before, begin, rest = page.partition(BEGIN)
    part, end, _ = rest.partition(END)
    if not (before and begin and end):
        raise ValueError("the page has no part to be written by make leakbench")
    return part.strip("\n").split("\n")


def replace_part(page: str, lines: list[str]) -> str:
    """The page with this in the place of what was there."""
    read_part(page)
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{rest.split(END)[1]}"


def picture(name: str) -> str:
    """One of the plots as SVG."""
    family, seed, title = PICTURES[name]
    trace = make_trace(family, seed)
    ours = [alarm.at_seconds for alarm in judge(trace, "balanced", client=True).leaking]
    lanes = [Lane(peer.name, [alarm.at_seconds for alarm in alarms_of(peer, trace, client=False)]) for peer in PEERS]
    return draw(trace, title, ours, lanes)
