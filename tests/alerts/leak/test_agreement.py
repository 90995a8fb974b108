"""Pace and forecast in one line agree: at that pace, what is free lasts for as long as it says."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from gpuagent.core.snapshot import Snapshot
from gpuagent.core.units import GIB
from tests.alerts.leak.node import Node, node, run
from tests.alerts.leak.surfaces import Told, differing_forecasts, told

MINUTE = 60.0
_WITHIN = 0.3
_LEAST_SECONDS = 300.0
"""A figure is up to a minute old: of a shorter forecast that is more than the doubt allowed here."""
_MOVED = 0.15
_RATE = re.compile(r"(\d+(?:\.\d)?) ([MG])iB/h")
_FULL = re.compile(r"full in (?:(\d+) d ?)?(?:(\d+) h ?)?(?:(\d+) min)?")
_UNITS = {"M": 2.0**20, "G": float(GIB)}


def mix(seed: int) -> str:
    """Return a node on which some programs leak, end or are started again, and memory of nobody may grow too."""
    rng = random.Random(seed)
    processes = ["{name: big, user: u, pid: 4999999, age: 0s, memory: 20GiB}"]
    for place in range(rng.randint(2, 4)):
        name, after, rate = f"p{place}", rng.randint(1, 12), rng.randint(8, 16)
        end = rng.choice([None, None, rng.randint(24, 32)])
        until = "" if end is None else f", until: {end}m"
        first = f"{{shape: ramp, start: 2GiB, rate: {rate}MiB, after: {after}m}}"
        who = f"name: {name}, user: u{place}, cgroup: /system.slice/{name}.service, age: 0s"
        processes.append(f"{{{who}, memory: {first}{until}}}")
        if end is not None and rng.random() < 0.6:
            again = f"{{shape: ramp, start: 2GiB, rate: {rate}MiB, after: 20s}}"
            processes.append(f"{{{who}, memory: {again}, from: {end}m}}")
    nobodys = f"{{shape: ramp, start: 400MiB, rate: {rng.randint(3, 10)}MiB, after: 5m}}"
    base = rng.choice(["400MiB", nobodys])
    listed = "\n".join(f"      - {one}" for one in processes)
    return f"gpus:\n  - model: h100\n    memory: {{total: 80GiB, base_used: {base}}}\n    processes:\n{listed}\n"


def contradictions(said: Told) -> Iterator[str]:
    """Yield every place that tells a pace and a forecast that do not belong together."""
    for gpu in said.status["gpus"]:
        free = gpu["memory_free_bytes"]
        yield from _of(gpu, free, f"GPU {gpu['index']}")
        for line in (one.headline for one in said.incidents):
            seconds, pace = _told_seconds(line), sum(float(n) * _UNITS[unit] for n, unit in _RATE.findall(line))
            if seconds and pace and "leaked" not in line:
                yield from _differ(seconds, pace / 3600, free, line)
        for part in said.status["processes"]:
            yield from _of(part, free, f"pid {part['pid']}")


def _of(part: dict[str, Any], free: float, who: str) -> Iterator[str]:
    seconds, pace = part["exhaustion_seconds"], part["growth_bytes_per_second"]
    if seconds and pace and part["growth_state"] == "rising":
        yield from _differ(seconds, pace, free, who)


def _told_seconds(line: str) -> float:
    found = _FULL.search(line)
    return (
        0.0
        if found is None
        else sum(int(n or 0) * unit for n, unit in zip(found.groups(), (86400, 3600, 60), strict=True))
    )


def _differ(seconds: float, pace: float, free: float, where: str) -> Iterator[str]:
    if seconds >= _LEAST_SECONDS and abs(seconds * pace - free) > _WITHIN * free:
        yield f"{where}: {seconds:.0f} s of {3600 * pace / GIB:.1f} GiB/h with {free / GIB:.1f} GiB free"


async def walk(one: Node, seconds: float) -> int:
    """Let the story go on until then; return how many incidents told a forecast with a pace."""
    lines, free = 0, [0, 0, 0]
    while one.seconds < seconds:
        snapshot = await one.tick(15.0)
        free = [*free[1:], _free_bytes(snapshot)]
        if max(free) - min(free) > _MOVED * max(free):  # a program ended or began: figures are renewed after a block
            continue
        said = told(snapshot, one.engine, one.stage.clock.now(), one.told_of())
        wrong = [*contradictions(said), *differing_forecasts(said)]
        assert not wrong, f"after {one.seconds / MINUTE:.2f} min:\n" + "\n".join(wrong)
        lines += sum(bool(_told_seconds(each.headline)) and "/h" in each.headline for each in said.incidents)
    return lines


def _free_bytes(snapshot: Snapshot) -> int:
    memory = snapshot.gpus[0].memory
    return 0 if memory is None else memory.free_bytes or 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_status_incident_and_message_tell_a_forecast_of_their_pace(seed: int) -> None:
    """LEAK-02: whoever else leaks, was started again or has ended, and also where memory of nobody grows."""

    async def test() -> None:
        async with node(mix(seed)) as one:
            assert await walk(one, 55 * MINUTE) > 0

    run(test)
