"""Measures a fleet: python -m benchmarks.fleet [--nodes N] [--interval SECONDS] [--minutes M] [--write docs/fleet.md].

Two questions: what the whole fleet costs with a usual load on each GPU, and what `processes.top` costs where GPUs are
crowded.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.fleet.document import Crowd, Usual, tables, write
from benchmarks.fleet.measured import Load, measure
from benchmarks.fleet.recorded import scrapes, series

USUAL_PROCESSES = 4
CROWDED = 64
TOPS = (8, 16, 64)


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--interval", type=int, default=30, help="seconds between two scrapes of a node")
    parser.add_argument("--minutes", type=float, default=4.0, help="how long the whole fleet is scraped")
    parser.add_argument("--write", type=Path, help="put the tables into this document, between its marks")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Measure, print, and write if asked to."""
    asked = _arguments(words)
    crowds = [Crowd(top, series(scrape), len(scrape)) for top in TOPS for scrape in scrapes(CROWDED, top, number=1)]
    recorded = scrapes(USUAL_PROCESSES, 64)
    with tempfile.TemporaryDirectory(prefix="gpuagent-") as folder:
        cost = measure(Load(recorded, asked.nodes, asked.interval, asked.minutes), Path(folder))
    usual = Usual(USUAL_PROCESSES, asked.nodes, asked.interval, series(recorded[0]), len(recorded[0]), cost)
    sys.stdout.write("\n".join(tables(usual, crowds)) + "\n")
    if asked.write is not None:
        write(asked.write, usual, crowds)


if __name__ == "__main__":
    main()
