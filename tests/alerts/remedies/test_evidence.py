"""Whose leak it is: a rule on growth ends only a process that leaks itself, by the evidence that is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuagent_alerts.remedies.observation import RemedyRequest
from gpuagent_alerts.remedies.outcome import RunResult
from gpuagent_alerts.remedies.target import Target
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.world import KILL, ORDER, RELEASE, World, plan, run_ladder, target

GROWTH = RemedyRequest(alert="a1", alertname="Grows", labels={}, about_growth=True)


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (target(), "unknown: the process itself is not found to leak"),
        (target(slope_bytes_per_second=1e9), "unknown: the process itself is not found to leak"),
        (target(leaking=True, evidence="balanced"), "the evidence of the leak is balanced"),
        (target(leaking=True, evidence="allocator", driver_confirms=False), "do not confirm the leak"),
        (target(leaking=True, evidence="allocator"), ""),
        (target(leaking=True, evidence="strict"), ""),
        (target(leaking=True, evidence="allocator", leak_confirmed=True, driver_confirms=False), "do not confirm"),
        (target(leaking=True, evidence="allocator", leak_confirmed=True), ""),
    ],
)
@pytest.mark.parametrize(
    "order",
    [
        GROWTH,
        replace(GROWTH, labels={"evidence": "strict"}),
        replace(GROWTH, alertname="GpuProcessMemoryLeak", labels={"evidence": "strict"}),
        replace(GROWTH, victim="largest"),
        replace(GROWTH, about_growth=False, victim="leaking"),
    ],
)
def test_the_leak_is_its_own(store: Store, order: RemedyRequest, of: Target, words: str) -> None:
    """Neither growth, nor a label, nor the alert's name stands for the detector's verdict on the very process."""
    world = World(of)
    outcome = run_ladder(world, plan(KILL, of=of, request=order), store)
    if words:
        assert outcome.result is RunResult.REFUSED
        assert words in outcome.detail
        assert world.log == []
    else:
        assert outcome.result is RunResult.RELEASED


def test_a_label_withholds_all_the_same(store: Store) -> None:
    """An alert for each standard: the one that says `balanced` is no reason, whatever else the process is found to."""
    sure = target(leaking=True, evidence="strict")
    weak = replace(GROWTH, labels={"evidence": "balanced"})
    assert (
        "evidence of the leak is balanced" in run_ladder(World(sure), plan(KILL, of=sure, request=weak), store).detail
    )


@pytest.mark.parametrize(("confirmed", "result"), [(True, RunResult.RELEASED), (False, RunResult.REFUSED)])
def test_an_alert_of_more_than_one_witness_is_about_such_a_leak(
    store: Store, confirmed: bool, result: RunResult
) -> None:
    """The label `confirmed` ends nobody whose leak is not confirmed any more, whatever else remedies may go by."""
    of = target(leaking=True, evidence="strict", leak_confirmed=confirmed)
    order = replace(GROWTH, labels={"evidence": "confirmed"})
    assert run_ladder(World(of), plan(KILL, of=of, request=order), store).result is result


def test_the_name_of_an_alert_asks_for_nothing(store: Store) -> None:
    """A rule that reads no growth is about none, whatever it is called."""
    named = replace(ORDER, labels={})
    assert named.alertname == "GpuProcessMemoryLeak"
    assert run_ladder(World(), plan(KILL, request=named), store).result is RunResult.RELEASED


def test_asking_for_the_cache_needs_none(store: Store) -> None:
    """`release_cache` takes nothing from a process that only grows."""
    world = World()
    run_ladder(world, plan(RELEASE, request=GROWTH), store)
    assert world.log == [("release_cache", 100)]


def test_who_falls_with_the_leak_need_not_leak(store: Store) -> None:
    """With `scope: job` the evidence is asked of the process that was chosen, and root says who falls with it."""
    leak, other = target(leaking=True, evidence="strict"), target(101)
    world = World(leak, other)
    world.relatives = (101,)
    run_ladder(world, plan(KILL, of=leak, request=GROWTH, scope="job"), store)
    assert sorted(world.log) == [("SIGKILL", 100), ("SIGKILL", 101)]
