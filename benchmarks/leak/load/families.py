"""The families of services, each drawn by a seed: healthy ones, slow fills, leaks, nightly restarts, crash loops, pods.

Those of `UNSEEN` are no part of the tuning set, and neither is a third of the loads.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from benchmarks.leak.load.arrivals import DAY_SECONDS, Load, office
from benchmarks.leak.load.services import GIB, LARGEST, MIB, Cache, Life, Plan, Swaps, lives_of, room_of

_CARDS: Final = (16.0, 24.0, 40.0, 48.0, 80.0)


class Group(StrEnum):
    """How a family counts."""

    BENIGN = "benign"
    FILL = "slow fill"
    """A bounded cache that takes days to fill: nothing of it may trigger a remedy."""
    LEAK = "leak"
    NIGHTLY = "nightly"
    """Leaks that a restart cuts short every night."""
    CRASH = "crash loop"
    """Leaks that end each life."""
    POD = "pod"
    """Models that swap, with a leak on top."""
    HEALTHY_POD = "pod without a leak"


@dataclass(frozen=True)
class Run:
    """One service with all of its lives."""

    family: str
    group: Group
    seed: int
    total: float
    lives: Sequence[Life]


def _serve(rng: random.Random, load: Load, days: float = 12.0) -> Plan:
    total = rng.choice(_CARDS) * GIB
    weights = rng.uniform(0.15, 0.6) * total
    rps, seconds = math.exp(rng.uniform(math.log(0.05), math.log(3.0))), rng.uniform(0.5, 8.0)
    most = max(2, round(rng.uniform(1.5, 4) * rps * seconds))
    request = rng.uniform(0.03, 0.15) * total / most / LARGEST
    return Plan(load, total, weights, rps, request, seconds, most, days, offset=rng.uniform(0, 40 * DAY_SECONDS))


def _leaking(plan: Plan, days: float, *, by_the_clock: bool = False, after: float = 0.0) -> Plan:
    """Full after about so many days, of which the load decides."""
    rate = 0.9 * room_of(plan) / (days * DAY_SECONDS)
    if by_the_clock:
        return replace(plan, leak_second=rate, leak_after=after)
    return replace(plan, leak_request=rate / plan.rps, leak_after=after)


def _fill(rng: random.Random, plan: Plan, *, least_days: float = 1.0, most_days: float = 6.0) -> Cache:
    """A prefix or LoRA cache of 3 to 33 % of what is free that fills over days."""
    cap = rng.uniform(0.03, 0.33) * room_of(plan)
    requests = rng.uniform(least_days, most_days) * DAY_SECONDS * plan.rps
    entry = rng.uniform(50, 400) * MIB if rng.random() < 0.4 else 0.0
    rush = rng.uniform(0.2, 0.5) if rng.random() < 0.25 else 0.0
    return Cache(cap, requests, min(entry, cap / 8), saturates=rng.random() < 0.6, rush=rush)


def serving(rng: random.Random, load: Load) -> Plan:
    """Follows its load."""
    return _serve(rng, load)


def quick_cache(rng: random.Random, load: Load) -> Plan:
    """A cache that is full within hours."""
    plan = _serve(rng, load)
    return replace(plan, caches=(_fill(rng, plan, least_days=0.05, most_days=0.6),))


def office_hours(rng: random.Random, load: Load) -> Plan:
    """Asked by day alone, with a cache of some hours."""
    plan = _serve(rng, office(load))
    return replace(plan, caches=(_fill(rng, plan, least_days=0.05, most_days=0.4),))


def recycled(rng: random.Random, load: Load) -> Plan:
    """Restarted every night, with a cache that is full by noon."""
    plan = _serve(rng, load)
    return replace(plan, nightly=DAY_SECONDS, caches=(_fill(rng, plan, least_days=0.1, most_days=0.5),))


def crashing(rng: random.Random, load: Load) -> Plan:
    """Crashes now and then, and not for want of memory."""
    plan = _serve(rng, load)
    return replace(plan, crash_days=0.4, caches=(_fill(rng, plan, least_days=0.05, most_days=0.3),))


def slow_fill(rng: random.Random, load: Load) -> Plan:
    """One cache that fills over days; on the 9th day it is restarted, and fills again."""
    plan = _serve(rng, load, days=18.0)
    return replace(plan, caches=(_fill(rng, plan),), ends=(9 * DAY_SECONDS,))


def slow_fill_by_day(rng: random.Random, load: Load) -> Plan:
    """The same in office hours."""
    plan = _serve(rng, office(load), days=18.0)
    return replace(plan, caches=(_fill(rng, plan, most_days=4.0),), ends=(9 * DAY_SECONDS,))


def two_caches(rng: random.Random, load: Load) -> Plan:
    """A quick cache before a slow one."""
    plan = _serve(rng, load, days=18.0)
    slow, quick = _fill(rng, plan), _fill(rng, plan, least_days=0.02, most_days=0.2)
    caches = (replace(slow, cap=0.6 * slow.cap), replace(quick, cap=0.4 * quick.cap))
    return replace(plan, caches=caches, ends=(9 * DAY_SECONDS,))


def leak_of_hours(rng: random.Random, load: Load) -> Plan:
    """Full after some hours of a day."""
    plan = _serve(rng, load, days=4.0)
    return _leaking(plan, rng.uniform(0.15, 0.9), after=rng.uniform(0, DAY_SECONDS))


def leak_of_days(rng: random.Random, load: Load) -> Plan:
    """Full after days."""
    return _leaking(_serve(rng, load), rng.uniform(1, 6), after=rng.uniform(0, 2 * DAY_SECONDS))


def leak_by_day(rng: random.Random, load: Load) -> Plan:
    """Of requests in office hours."""
    return _leaking(_serve(rng, office(load)), rng.uniform(1, 5))


def leak_by_the_clock(rng: random.Random, load: Load) -> Plan:
    """A timer's, whatever the load."""
    return _leaking(_serve(rng, load), rng.uniform(0.5, 5), by_the_clock=True, after=rng.uniform(0, DAY_SECONDS))


def leak_over_cache(rng: random.Random, load: Load) -> Plan:
    """A leak beside a cache of days."""
    plan = _serve(rng, load)
    plan = replace(plan, caches=(_fill(rng, plan),))
    return _leaking(plan, rng.uniform(1, 5))


def nightly_leak(rng: random.Random, load: Load) -> Plan:
    """Cut short every night, for two weeks."""
    return replace(_leaking(_serve(rng, load), rng.uniform(1.1, 3.0)), nightly=DAY_SECONDS)


def nightly_leak_by_day(rng: random.Random, load: Load) -> Plan:
    """The same in office hours."""
    return replace(_leaking(_serve(rng, office(load)), rng.uniform(1.1, 2.5)), nightly=DAY_SECONDS)


def crash_loop(rng: random.Random, load: Load) -> Plan:
    """Out of memory several times a day."""
    return _leaking(_serve(rng, load, days=4.0), rng.uniform(0.06, 0.5))


def _pod(rng: random.Random, load: Load, days: float) -> Plan:
    plan = replace(_serve(rng, load, days=days), weights=0.05 * GIB, trims=True, interval=57.0)
    sizes = tuple(rng.uniform(0.1, 0.45) * plan.total for _ in range(rng.randint(1, 4)))
    dwell = math.exp(rng.uniform(math.log(60), math.log(2400)))
    return replace(plan, swaps=Swaps(sizes, dwell, rng.uniform(30, 200)))


def pod(rng: random.Random, load: Load) -> Plan:
    """Models that swap."""
    return _pod(rng, load, 6.0)


def pod_leak(rng: random.Random, load: Load) -> Plan:
    """Models that swap, and a leak that is full in 10 or 18 h."""
    plan = _pod(rng, load, 3.0)
    sizes = plan.swaps.sizes if plan.swaps else ()
    rate = 0.9 * (room_of(plan) - max(sizes, default=0.0)) / (rng.choice((10, 18)) * 3600)
    return replace(plan, leak_second=rate, leak_after=rng.uniform(0.2, 0.8) * DAY_SECONDS)


Draw = Callable[[random.Random, Load], Plan]
_OF: Final[tuple[tuple[Group, tuple[Draw, ...]], ...]] = (
    (Group.BENIGN, (serving, quick_cache, office_hours, recycled, crashing)),
    (Group.FILL, (slow_fill, slow_fill_by_day, two_caches)),
    (Group.LEAK, (leak_of_hours, leak_of_days, leak_by_day, leak_by_the_clock, leak_over_cache)),
    (Group.NIGHTLY, (nightly_leak, nightly_leak_by_day)),
    (Group.CRASH, (crash_loop,)),
    (Group.HEALTHY_POD, (pod,)),
    (Group.POD, (pod_leak,)),
)
FAMILIES: Final = {draw.__name__: (group, draw) for group, draws in _OF for draw in draws}
UNSEEN: Final = frozenset({"two_caches", "crashing", "leak_over_cache", "nightly_leak_by_day"})
"""Families that are kept back."""


def make_run(family: str, seed: int, loads: Sequence[Load]) -> Run:
    """Return the same service for the same family, seed and loads, everywhere."""
    group, draw = FAMILIES[family]
    rng = random.Random(zlib.crc32(family.encode()) * 1_000_003 + seed)
    plan = draw(rng, loads[rng.randrange(len(loads))])
    return Run(family, group, seed, plan.total, lives_of(plan, rng))


def loads_of(loads: Sequence[Load], *, unseen: bool) -> list[Load]:
    """Return two thirds of the loads to tune with, or the third that is kept back."""
    return [load for place, load in enumerate(loads) if (place % 3 == 2) is unseen]
