"""`python -m benchmarks.leak.recorded.days`: record tests/data/leaks/days again, by real services on CPU torch.

Each life of a service is a process of its own, in the interpreter that has torch. It answers as many requests for each
minute as the arrivals say, and is read after that minute: days go by in minutes.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.leak.load.arrivals import DAY_SECONDS, Load, generated, recorded
from benchmarks.leak.load.services import LARGEST, poisson
from benchmarks.leak.recorded.__main__ import pack, say
from benchmarks.leak.recorded.app import ROOT
from benchmarks.leak.recorded.stage import MIB
from gpuagent.core.units import GIB

FOLDER = ROOT / "tests" / "data" / "leaks" / "days"
STEP_SECONDS = 60.0
_PYTHON = ROOT / ".venv-apps" / "bin" / "python"
_PROGRAM = Path(__file__).parent / "apps" / "days.py"
_WORDS = 12
"""Of a request of the mean size."""
TOTAL_BYTES = int(1.5 * GIB)


class DaysCase(NamedTuple):
    """One service, for days."""

    name: str
    """Of the file; those of a leak begin with `leak-`."""
    kind: str
    days: int
    requests_a_minute: float
    room_mib: int
    """Free on its GPU once it serves."""
    nightly: bool = False
    """A process for each day."""
    load: int = 0
    """Which of the arrivals."""


CASES = (
    DaysCase("leak-served", "outputs", 5, 4.0, 640),
    DaysCase("leak-nightly", "outputs", 5, 4.0, 340, nightly=True, load=1),
    DaysCase("healthy-prefix-cache", "prefix", 5, 1.0, 640, load=3),
    DaysCase("healthy-lora", "lora", 5, 3.0, 560, load=4),
    DaysCase("healthy-nightly", "prefix", 3, 4.0, 640, nightly=True, load=6),
)


class Row(NamedTuple):
    """What a process holds after a step, in bytes."""

    seconds: float
    used: int
    allocated: int
    reserved: int


def steps(case: DaysCase, load: Load, seed: int, first_day: int, days: int) -> Iterator[tuple[float, list[int]]]:
    """Yield the end of each minute, and the words of each request in it."""
    rng = random.Random(seed + first_day)
    at = first_day * DAY_SECONDS
    while at < (first_day + days) * DAY_SECONDS:
        count = poisson(rng, case.requests_a_minute * load.rate(at))
        sizes = (min(load.sizes[int(rng.random() * len(load.sizes))], LARGEST) for _ in range(count))
        at += STEP_SECONDS
        yield at, [max(1, round(_WORDS * size)) for size in sizes]


def live(case: DaysCase, load: Load, seed: int, first_day: int, days: int) -> list[Row]:
    """Return what a process holds over these days, until its room is gone. Raises OSError and ValueError."""
    command = [str(_PYTHON), "-W", "ignore", str(_PROGRAM), case.kind]
    found: list[Row] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for at, words in steps(case, load, seed, first_day, days):
            process.stdin.write(" ".join(map(str, words)) + "\n")
            process.stdin.flush()
            used, allocated, reserved = map(int, process.stdout.readline().split())
            if found and used - found[0].used > case.room_mib * MIB:
                break
            found.append(Row(at, used, allocated, reserved))
        process.stdin.close()
    return found


def record(case: DaysCase, load: Load, folder: Path) -> Path:
    """Write the trace of a case."""
    path = folder / f"{case.name}.csv"
    lives = [(day, 1) for day in range(case.days)] if case.nightly else [(0, case.days)]
    with path.open("w") as file:
        file.write("time_seconds,used_bytes,free_bytes,allocated_bytes,reserved_bytes,process\n")
        for number, (first, days) in enumerate(lives):
            rows = live(case, load, 7, first, days)
            for row in rows:
                free = case.room_mib * MIB - (row.used - rows[0].used)
                figures = (round(row.seconds), row.used, free, row.allocated, row.reserved)
                file.write(",".join(map(str, figures)) + f",{case.kind}:{number + 1}\n")
            say(f"{case.name}, life {number + 1}: {len(rows)} min, +{(rows[-1].used - rows[0].used) / MIB:.0f} MiB")
    return path


def main(words: Sequence[str]) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.leak.recorded.days", description=__doc__)
    parser.add_argument("--arrivals", type=Path, metavar="FILE", help="recorded counts (.npz); else generated ones")
    parser.add_argument("--into", type=Path, default=FOLDER, help="where the files go [tests/data/leaks/days]")
    parser.add_argument("cases", nargs="*", help=f"which [all]: {', '.join(case.name for case in CASES)}")
    options = parser.parse_args(words)
    loads = recorded(options.arrivals) if options.arrivals else generated(12, 1)
    with tempfile.TemporaryDirectory(prefix="gpuagent-") as name:
        for case in CASES:
            if not options.cases or case.name in options.cases:
                pack(record(case, loads[case.load % len(loads)], Path(name)), options.into)


if __name__ == "__main__":
    main(sys.argv[1:])
