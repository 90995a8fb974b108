"""`python -m benchmarks.leak`: print the table, and write it with the plots into the documentation."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

from benchmarks.leak import cost, document
from benchmarks.leak.families import FAMILIES
from benchmarks.leak.methods import Results, run

SEEDS = 24
"""Traces of each family for the documentation."""
QUICK_SEEDS = 2


def arguments(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.leak", description=__doc__)
    parser.add_argument("--seeds", type=int, metavar="N", help=f"traces of each family [{SEEDS}]")
    parser.add_argument("--first-seed", type=int, default=0, metavar="N", help="to look at other traces [0]")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SEEDS} traces of each family, and write nothing")
    parser.add_argument("--no-write", action="store_true", help="leave the documentation as it is")
    parser.add_argument(
        "--workers", type=int, default=len(os.sched_getaffinity(0)), metavar="N", help="processes [all cores]"
    )
    options = parser.parse_args(words)
    options.seeds = options.seeds or (QUICK_SEEDS if options.quick else SEEDS)
    options.write = not options.no_write and (options.seeds, options.first_seed) == (SEEDS, 0)
    return options


def main(words: Sequence[str]) -> int:
    """Run it. Returns the exit status."""
    options = arguments(words)
    begun, results = time.monotonic(), Results()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    for verdicts in run(seeds, options.workers):
        results.verdicts.append(verdicts)
        if len(results.verdicts) % 50 == 0:
            say(f"{len(results.verdicts)} of {len(FAMILIES) * options.seeds} traces, {time.monotonic() - begun:.0f} s")
    costs = cost.measure(seconds=600 if options.quick else 3600)
    lines = document.write_part(results, costs)
    print("\n".join(lines))  # noqa: T201
    if options.write:
        page = document.PAGE.read_text(encoding="utf-8")
        document.PAGE.write_text(document.replace_part(page, lines), encoding="utf-8")
        document.PLOTS.mkdir(parents=True, exist_ok=True)
        for name in document.PICTURES:
            (document.PLOTS / f"{name}.svg").write_text(document.picture(name), encoding="utf-8")
        say(f"written to {document.PAGE.relative_to(document.ROOT)} and {document.PLOTS.relative_to(document.ROOT)}/")
    say(f"{time.monotonic() - begun:.0f} s")
    return 0


def say(text: str) -> None:
    """Beside the table."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
