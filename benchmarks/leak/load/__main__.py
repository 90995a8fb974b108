"""`python -m benchmarks.leak.load`: judge services under recorded load, and print what an on-call person would see."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.leak.load.arrivals import Load, generated, recorded
from benchmarks.leak.load.families import FAMILIES, UNSEEN, Run, loads_of, make_run
from benchmarks.leak.load.judge import Said, judge
from benchmarks.leak.load.peers import judge_by, peers
from benchmarks.leak.load.score import Judged, rows
from gpuagent.core.growth import Evidence
from gpuagent_alerts.leak.settings import SENSITIVITIES

_FIRST_UNSEEN_SEED = 10_000


def arguments(words: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.leak.load", description=__doc__)
    parser.add_argument("--arrivals", type=Path, metavar="FILE", help="recorded counts (.npz); else generated ones")
    parser.add_argument("--seeds", type=int, default=4, metavar="N", help="services of each family [4]")
    parser.add_argument("--first-seed", type=int, default=0, metavar="N", help="to look at others [0]")
    parser.add_argument("--unseen", action="store_true", help="the loads, families and seeds that are kept back")
    parser.add_argument("--family", action="append", choices=FAMILIES, help="only this one; may be repeated")
    parser.add_argument("--signal", choices=("app", "nvml"), action="append", help="only this one")
    parser.add_argument("--sensitivity", choices=SENSITIVITIES, default="balanced")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes [1]")
    parser.add_argument("--peers", action="store_true", help="what people use, over the driver's figures, as well")
    parser.add_argument("--each", action="store_true", help="tell of each service too")
    return parser.parse_args(words)


def main(words: Sequence[str]) -> int:
    """Run it. Returns the exit status."""
    options = arguments(words)
    loads = loads_of(recorded(options.arrivals) if options.arrivals else generated(12, 1), unseen=options.unseen)
    families = options.family or [name for name in FAMILIES if options.unseen or name not in UNSEEN]
    first = options.first_seed + (_FIRST_UNSEEN_SEED if options.unseen else 0)
    jobs = [(family, seed) for family in families for seed in range(first, first + options.seeds)]
    signals = options.signal or ["app", "nvml"]
    begun = time.monotonic()
    others = peers() if options.peers else []
    work = partial(_judge_job, loads=loads, signals=signals, sensitivity=options.sensitivity, with_peers=options.peers)
    if options.workers > 1:
        with ProcessPoolExecutor(options.workers) as pool:
            found = list(pool.map(work, jobs))
    else:
        found = [work(job) for job in jobs]
    names = [*(f"{signal}, {options.sensitivity}" for signal in signals), *(peer.name for peer in others)]
    for place, name in enumerate(names):
        judged = [one[place][0] for one in found]
        seconds, count = (sum(one[place][1][k] for one in found) for k in (0, 1))
        print(f"\n{name}: {1e6 * seconds / max(1, count):.1f} us a reading")  # noqa: T201
        if options.each:
            for one in judged:
                print("   ", _line(one))  # noqa: T201
        for row in rows(judged, REMEDY):
            print(f"  {row.name:58s} {row.value:8.3f}  {row.of}")  # noqa: T201
    print(f"{time.monotonic() - begun:.0f} s", file=sys.stderr)  # noqa: T201
    return 0


REMEDY = (Evidence.CONFIRMED,)
"""The standards that remedies may go by."""
_Found = list[tuple[Judged, tuple[float, int]]]


def _judge_job(
    job: tuple[str, int], *, loads: Sequence[Load], signals: Sequence[str], sensitivity: str, with_peers: bool
) -> _Found:
    run = make_run(*job, loads)
    dial = next(one for one in SENSITIVITIES if one == sensitivity)
    found: _Found = []
    for signal in signals:
        said, seconds, count = judge(run, dial, client=signal == "app")
        found.append((Judged(_light(run), said), (seconds, count)))
    readings = sum(len(life.times) for life in run.lives)
    for peer in peers() if with_peers else ():
        begun = time.process_time()
        said = judge_by(peer, run)
        found.append((Judged(_light(run), said), (time.process_time() - begun, readings)))
    return found


def _light(run: Run) -> Run:
    """Without the readings."""
    return replace(run, lives=())


def _line(one: Judged) -> str:
    def word(said: Said) -> str:
        life = (said.end - said.begin) / 3600
        told = ",".join(f"{(alarm.at - said.begin) / 3600:.1f}h {'+'.join(alarm.evidence)}" for alarm in said.told)
        leak = "" if said.leak_seconds is None else f" leak {(said.leak_seconds - said.begin) / 3600:.1f}h"
        return f"[{life:.1f}h{' full' if said.exhausted else ''}{leak}: {told or '-'}]"

    return f"{one.run.family} {one.run.seed}: " + " ".join(map(word, one.said))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
