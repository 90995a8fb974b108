"""Obstacles with an end: tried again when they are over, told in the past tense with the time, logged once."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from gpuagent.core.growth import MemoryKey
from gpuagent.core.identity import ProcessId
from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.remedies.attempts import Attempts, WithheldLadders
from gpuagent_alerts.remedies.observation import Condition
from gpuagent_alerts.remedies.outcome import RunOutcome, RunResult
from gpuagent_alerts.remedies.safeguards.refusals import TemporaryRefusal, passes_in
from gpuagent_alerts.remedies.safeguards.victim import VictimChoice
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.test_person_and_rules import asked, begun, fire, manager
from tests.alerts.remedies.world import KILL, ORDER, World, plan, run_ladder, target

WHO = ProcessId("boot", 100, 1000)
ALERT = Alert({"alertname": "Full", "gpu": "0"}, {}, Status.FIRING, 1.7e9)
LARGEST = replace(ORDER, victim="largest")


def refused(*reasons: str) -> RunOutcome:
    """Refused for all of these."""
    return RunOutcome(RunResult.REFUSED, "; ".join(reasons), general=True, reasons=reasons)


def test_the_time_of_the_longest_obstacle() -> None:
    """Several obstacles are over when the last one is; one that has no end makes it the usual back-off."""
    assert passes_in([TemporaryRefusal("a", 5.0), TemporaryRefusal("b", 90.0)]) == 90.0
    assert passes_in([TemporaryRefusal("a", 5.0), "b"]) is None
    assert passes_in([]) is None


def test_no_back_off_for_what_passes() -> None:
    """However often a neighbor could not be read: the next try comes as soon as after the first time."""
    now = [0.0]
    attempts = Attempts(lambda: now[0])
    waits = []
    for _ in range(8):
        attempts.note("a", WHO, refused(TemporaryRefusal("a neighbor could not be read")), dry_run=False)
        _, wait = attempts.last("a", WHO, dry_run=False)
        waits.append(wait)
        now[0] += 1000.0
    assert waits == [10.0] * 8
    for _ in range(8):
        attempts.note("a", WHO, refused("it is on the never-list"), dry_run=False)
        waits.append(attempts.last("a", WHO, dry_run=False)[1])
    assert waits[-1] == 900.0


def test_each_refusal_is_told_once_however_they_alternate() -> None:
    """Two obstacles by turns are two records and two messages, not one with every try."""
    attempts = Attempts(lambda: 0.0)
    again = [
        attempts.note("a", WHO, refused(TemporaryRefusal(f"obstacle {letter}")), dry_run=False) for letter in "xyxyxy"
    ]
    assert again == [False, False, True, True, True, True]
    assert len(attempts.gists("a", WHO, dry_run=False)) == 2


def test_how_many_tries_are_remembered() -> None:
    """None of a process that is listed is forgotten while its alert fires; of the others the newest are kept."""
    attempts = Attempts(lambda: 0.0)
    crowd = [target(pid) for pid in range(1000, 1600)]
    for alert, processes in (("b", crowd[:1]), ("a", crowd), ("ended", crowd[:1])):
        for each in processes:
            attempts.note(alert, each.id, refused("it is on the never-list"), dry_run=False)
    attempts.forget_ended({"a": crowd[:300], "b": []})
    due = [each for each in crowd if attempts.is_due("a", each.id, dry_run=False)]
    assert due == crowd[300:344]
    assert not attempts.is_due("b", crowd[0].id, dry_run=False)
    assert attempts.is_due("ended", crowd[0].id, dry_run=False)
    attempts.forget_ended({"a": [], "b": []})
    due = [each for each in crowd if attempts.is_due("a", each.id, dry_run=False)]
    assert due == crowd[:344]


def test_the_past_tense_with_the_time() -> None:
    """What a try came to is of its time: the reason says when that was."""
    attempts = Attempts(lambda: 0.0, lambda: 1.7e9)
    attempts.note("a", WHO, refused("it holds 1 GiB, less than remedies.allow.min_memory"), dry_run=False)
    words, _ = attempts.last("a", WHO, dry_run=False)
    assert words == (
        "refused at 2023-11-14 22:13 UTC (it was said then: it holds 1 GiB, less than remedies.allow.min_memory)"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"choice": VictimChoice((WHO,), unranked_bytes=float("inf"), unranked=True)},
        {"act_refusal": "the figures of GPU 0 could not be true"},
        {"condition": Condition.UNKNOWN, "reason": "GPU 0 cannot be read (hangs)"},
    ],
    ids=["a neighbor could not be read", "figures in doubt", "the GPU could not be read"],
)
def test_obstacles_of_a_reading(store: Store, changes: dict[str, object]) -> None:
    """What the next reading may show is waited for, and no longer than that."""
    world = World()
    world.observation_changes = changes
    outcome = run_ladder(world, plan(KILL, request=LARGEST), store)
    assert (outcome.result, outcome.general) == (RunResult.REFUSED, True)
    assert passes_in(outcome.reasons) == 10.0
    assert world.log == []


def test_somebody_acted_on_the_gpu_by_hand(store: Store) -> None:
    """The rule that a person interrupted goes on within seconds of their end, and says who it was and when."""
    world = World(target(), target(101, key=MemoryKey("GPU-0", 101)))
    world.bodies[100].stubborn = True

    async def story() -> None:
        ends: list[str] = []
        made = manager(world, store, ends)
        fire(made, world, 100)
        await begun(made, 1)
        await made.by_hand(asked(world, 101))
        await made.idle()
        fire(made, world, 100)
        (withheld,) = made.withheld.documents(0.0)
        assert "alice (uid 1000) began to act on this GPU at 20" in str(withheld["reason"])
        world.clock.advance(15.0)
        world.bodies[100].stubborn = False
        fire(made, world, 100)
        await made.idle()
        assert ends[-1] == "100 released"

    asyncio.run(story())


def test_no_log_line_repeats_each_tick(caplog: pytest.LogCaptureFixture) -> None:
    """Two idle processes by turns, with figures that change: a line for each reason, for a quarter of an hour."""
    caplog.set_level(logging.INFO)
    seconds = [0.0]
    withheld = WithheldLadders(lambda: seconds[0])
    for tick in range(600):
        pid, held = (7, 1.5) if tick % 2 else (8, 2.5)
        figures = f"{held + tick / 10:.1f} GiB at 2026-11-22 10:{tick % 60:02} UTC"
        withheld.update({"f": (ALERT, f"pid {pid} is idle; memory of no known process: {figures}")})
        seconds[0] += 1.0
    assert len(caplog.records) == 2
    seconds[0] += 1000.0
    withheld.update({"f": (ALERT, "pid 7 is idle; memory of no known process: 3.5 GiB at 2026-11-22 11:00 UTC")})
    assert len(caplog.records) == 3
