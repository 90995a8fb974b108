"""Whose turn it is: rules act one at a time over the node, the worst first, and nobody is starved."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpuagent.core.growth import MemoryKey
from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.remedies.audit import Audit
from gpuagent_alerts.remedies.manager import RemedyManager
from gpuagent_alerts.remedies.outcome import RunOutcome, RunResult
from gpuagent_alerts.remedies.plan import Plan
from gpuagent_alerts.remedies.safeguards.limits import RemedyLimits
from gpuagent_alerts.remedies.safeguards.policy import AllowList, Policy
from gpuagent_alerts.remedies.safeguards.victim import VictimPolicy
from gpuagent_alerts.remedies.selection import AlertCandidates
from gpuagent_alerts.remedies.settings import LadderRule, RemedyRules
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.test_person_and_rules import asked, begun
from tests.alerts.remedies.world import (
    BOOT,
    GIB,
    KILL,
    RELEASE,
    RULES,
    TERMINATE,
    World,
    context,
    plan,
    run_ladder,
    target,
)

ON_GPUS = tuple(target(100 + gpu, key=MemoryKey(f"GPU-{gpu}", 100 + gpu), gpu_index=gpu) for gpu in range(3))


def firing(world: World, pid: int, severity: str = "warning", full: float = 0.9) -> AlertCandidates:
    """An alert about a process of this world."""
    labels = {"alertname": "Full", "pid": str(pid), "severity": severity}
    seen = [body.target for body in world.bodies.values() if body.alive]
    return AlertCandidates(Alert(labels, {}, Status.FIRING, world.clock.wall()), 1e9, seen, gpu_used_ratio=full)


def remedies(
    world: World, store: Store, ends: list[str], *, rules: RemedyRules = RULES, dry: Sequence[int] = ()
) -> RemedyManager:
    """One ladder for every alert, dry for some pids; how each run ended is added to `ends`."""

    def told(plan: Plan, _: object, outcome: RunOutcome, __: bool) -> None:
        ends.append(f"{plan.target.pid} {outcome.result}")

    ladders = [LadderRule(lambda labels: int(labels["pid"]) in dry, (KILL,), dry_run=True),
               LadderRule(lambda _: True, (TERMINATE, KILL), dry_run=False)]  # fmt: skip
    return RemedyManager(ladders, rules, context(world, store), proof_seconds=20.0, on_run_end=told)


def test_one_at_a_time_and_the_worst_first(store: Store) -> None:
    """Three GPUs have alerts in one evaluation: by severity, then the fuller GPU, one after the other."""
    world = World(*ON_GPUS)

    async def story() -> list[str]:
        ends: list[str] = []
        made = remedies(world, store, ends)
        for _ in range(6):
            alerts = [(100, "warning", 0.99), (101, "critical", 0.91), (102, "critical", 0.97)]
            made.consider([firing(world, pid, how, full) for pid, how, full in alerts if world.bodies[pid].alive])
            assert len(made.running) <= 1
            waiting = {str(one["reason"]) for one in made.withheld.documents(0.0)}
            assert all("one at a time over the node" in reason for reason in waiting)
            await made.idle()
        return ends

    assert asyncio.run(story()) == ["102 released", "101 released", "100 released"]


def test_nobody_is_starved(store: Store) -> None:
    """Two turns an hour, and a worse alert whose process outlives everything: the other one has the second turn."""
    world = World(*ON_GPUS[:2])
    world.bodies[100].stubborn = world.bodies[100].immortal = True
    limits = RemedyLimits(pause=60, per_hour=2, per_day=9, unit_per_hour=9, cooldown=0, breaker=9)

    async def story() -> list[str]:
        ends: list[str] = []
        made = remedies(world, store, ends, rules=replace(RULES, limits=limits))
        made.ladders = (replace(made.ladders[1], steps=(TERMINATE,)),)
        for _ in range(40):
            alive = [pid for pid in (100, 101) if world.bodies[pid].alive]
            made.consider([firing(world, pid, "critical" if pid == 100 else "warning") for pid in alive])
            await made.idle()
            world.clock.advance(60)
        return [end for end in ends if "refused" not in end]

    assert asyncio.run(story())[:2] == ["100 no_effect", "101 released"]


def test_a_run_that_only_considered_a_step_uses_up_no_turn(store: Store) -> None:
    """The very last look forbade it, a thousand times over: the limits see what was done, and nothing else."""
    rules = replace(RULES, limits=replace(RULES.limits, per_day=1, pause=600.0))
    for _ in range(3):
        world = World()
        world.inner = [lambda _: None, lambda _: None, lambda made: made.exec(100)]
        assert run_ladder(world, plan(KILL), store, rules).result is RunResult.REFUSED
        assert world.log == []
    assert Audit(store, World().clock, BOOT).past(dry_run=False) == []
    world = World()
    assert run_ladder(world, plan(KILL), store, rules).result is RunResult.RELEASED
    assert len(Audit(store, world.clock, BOOT).past(dry_run=False)) == 1


def test_what_was_considered_pushes_no_action_out(store: Store) -> None:
    """Six hundred runs that did nothing since: the one action of the day still counts."""
    world = World()
    run_ladder(world, plan(KILL), store)
    audit = Audit(store, world.clock, BOOT)
    for number in range(600):
        audit.write(f"r{number}", "intent", {"step": "SIGKILL", "disrupts": True})
        audit.write(f"r{number}", "result", {"step": "SIGKILL", "considered": True, "taken": False})
    assert [each.unknown for each in audit.past(dry_run=False)] == [False]


def test_dry_runs_hold_nobody_up(store: Store) -> None:
    """A dry run that waits on one GPU: the others are acted on for real, and so is its own."""
    world = World(*ON_GPUS[:2], target(103, key=MemoryKey("GPU-0", 103)))

    async def story() -> None:
        ends: list[str] = []
        made = remedies(world, store, ends, dry=[100])
        made.consider([firing(world, 100)])
        await begun(made, 1)
        made.consider([firing(world, pid) for pid in (100, 101)])
        assert {run.plan.target.pid for run in made.running} == {100, 101}
        await made.idle()
        made.consider([firing(world, 103)])
        await made.idle()
        assert set(ends) == {"100 dry_run", "101 released", "103 released"}

    asyncio.run(story())


def test_what_ends_nobody_does_not_wait_for_another_gpu(store: Store) -> None:
    """A cache is given back on one GPU while a process is ended on another."""
    world = World(*ON_GPUS[:2])
    world.bodies[100].stubborn = True

    async def story() -> None:
        made = remedies(world, store, [])
        made.consider([firing(world, 100)])
        await begun(made, 1)
        made.ladders = (LadderRule(lambda _: True, (RELEASE,), dry_run=False),)
        made.consider([firing(world, 101)])
        assert {run.plan.target.pid for run in made.running} == {100, 101}
        await made.close()

    asyncio.run(story())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "seconds"),
    [
        ({"pause": 300.0}, 300.0),
        ({"cooldown": 600.0}, 600.0),
        ({"per_hour": 1}, 3600.0),
        ({"per_day": 1}, 86_400.0),
    ],
)
def test_a_limit_is_tried_again_when_it_is_over(store: Store, limits: dict[str, float], seconds: float) -> None:
    """No back-off beyond the limit itself, and none before: at its end the alert has its turn."""
    rules = replace(RULES, limits=replace(RULES.limits, **limits))  # type: ignore[arg-type]
    world = World(*ON_GPUS[:2])

    async def story() -> None:
        ends: list[str] = []
        made = remedies(world, store, ends, rules=rules)
        made.consider([firing(world, 100)])
        await made.idle()
        done = world.clock.now()
        while world.bodies[101].alive:
            made.consider([firing(world, 101)])
            await made.idle()
            world.clock.advance(5.0)
        assert seconds <= world.ended_at[101] - done + 30.0 <= seconds + 60.0
        assert ends == ["100 released", "101 refused", "101 released"]

    asyncio.run(story())


def test_a_person_begins_when_the_rule_has_stopped(store: Store) -> None:
    """KILL-06: one at a time on a GPU: the rule's run takes its last step first, and the person is told."""
    world = World(ON_GPUS[0], target(103, key=MemoryKey("GPU-0", 103)))
    world.bodies[100].stubborn = True
    together: list[int] = []

    async def story() -> None:
        made = remedies(world, store, [])
        made.consider([firing(world, 100)])
        await begun(made, 1)
        world.events = [lambda _: together.append(sum(not run.has_stopped.is_set() for run in made.running))] * 50
        outcome = await made.by_hand(asked(world, 103))
        assert outcome.result is RunResult.RELEASED
        assert (
            "a rule's remedy was under way on this GPU (SIGTERM for pid 100): it took no further step" in outcome.detail
        )
        await made.idle()

    asyncio.run(story())
    assert max(together) == 1
    assert ("SIGKILL", 100) not in world.log


def test_a_rule_that_does_not_stop_is_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of a rule's step that goes on: the person is told which one, and nothing is done at the same time."""
    monkeypatch.setattr("gpuagent_alerts.remedies.manager._HAND_OVER_SECONDS", 0.05)
    world = World(ON_GPUS[0])

    async def story() -> None:
        made = remedies(world, store, [])
        made.consider([firing(world, 100)])
        (run,) = made.running
        task = made._running[run]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        run.has_stopped.clear()
        made._running[run] = asyncio.create_task(asyncio.Event().wait())  # type: ignore[arg-type]
        outcome = await made.by_hand(asked(world, 100))
        assert outcome.result is RunResult.REFUSED
        assert "another remedy is under way on GPU 0: a rule's (SIGTERM for pid 100)" in outcome.detail
        await made.close()

    asyncio.run(story())
    assert world.log == []


CROWD = tuple(
    target(200 + number, key=MemoryKey("GPU-0", 200 + number), user="other", uid=2000, used_bytes=9 * GIB)
    for number in range(60)
)
"""Larger processes of a user whom the allow list does not name."""


@pytest.mark.parametrize("names_a_pid", [True, False], ids=["an alert for each", "one alert about the GPU"])
def test_a_crowd_that_is_not_meant_delays_nobody(store: Store, names_a_pid: bool) -> None:
    """Sixty processes that root's list does not mean use up no turn and no row: who is meant comes at once."""
    world = World(target(), *CROWD)

    async def story() -> list[str]:
        ends: list[str] = []
        made = remedies(world, store, ends)
        made.ladders = (LadderRule(lambda _: True, (KILL,), dry_run=False, victim=VictimPolicy.LARGEST),)
        about_gpu = replace(firing(world, 100), alert=Alert({"alertname": "Full"}, {}, Status.FIRING, 0.0))
        alerts = [firing(world, each.pid, full=0.99) for each in CROWD] + [firing(world, 100, full=0.5)]
        for _ in range(2):
            made.consider(alerts if names_a_pid else [about_gpu])
            assert len(made.running) <= 1
            await made.idle()
            if ends:
                break
        return ends

    assert asyncio.run(story()) == ["100 released"]
    assert world.log == [("SIGKILL", 100)]
    recorded = {event.data.get("pid") for event in Audit(store, world.clock, BOOT).events()} - {None}
    assert recorded == {100}


def test_a_crowd_however_large_delays_nobody(store: Store) -> None:
    """Of three hundred that are refused none is tried again before whoever stands behind them has had a turn."""
    crowd = tuple(
        target(each, key=MemoryKey("GPU-0", each), user="other", used_bytes=9 * GIB) for each in range(200, 500)
    )
    world = World(target(), *crowd)

    async def story() -> list[str]:
        ends: list[str] = []
        made = remedies(world, store, ends)
        made.ladders = (LadderRule(lambda _: True, (KILL,), dry_run=False, victim=VictimPolicy.LARGEST),)
        about_gpu = replace(firing(world, 100), alert=Alert({"alertname": "Full"}, {}, Status.FIRING, 0.0))
        for _ in range(2):
            made.consider([about_gpu])
            await made.idle()
        return ends

    assert asyncio.run(story()) == ["100 released"]


def test_a_crowd_that_never_means_by_its_script_delays_nobody(store: Store) -> None:
    """Sixty processes that an entry meant when they were first seen (a script, a link) use up no turn and no row."""
    crowd = tuple(replace(each, user="svc", uid=1000, name="bash") for each in CROWD)
    world, listed = World(target(), *crowd), {each.id for each in crowd}
    why = "prodserve.sh is on the never-list (prodserve.sh), as it was first seen"

    async def story() -> list[str]:
        ends: list[str] = []
        made = remedies(world, store, ends)
        made.context = replace(made.context, never_listed=lambda each: why if each in listed else "")
        made.ladders = (LadderRule(lambda _: True, (KILL,), dry_run=False),)
        made.consider([firing(world, each.pid, full=0.99) for each in crowd] + [firing(world, 100, full=0.5)])
        assert len(made.running) == 1
        assert {str(each["reason"]) for each in made.withheld.documents(0.0)} == {
            f"pid {each.pid} (bash): {why}" for each in crowd
        }
        await made.idle()
        return ends

    assert asyncio.run(story()) == ["100 released"]
    recorded = {event.data.get("pid") for event in Audit(store, world.clock, BOOT).events()} - {None}
    assert recorded == {100}


@pytest.mark.parametrize(("uid", "name"), [(1000, "tmux"), (1007, "tmux"), (1007, "tmux {}")])
def test_a_crowd_that_is_refused_one_by_one_delays_by_one_turn(store: Store, uid: int, name: str) -> None:
    """Sixty processes of one program, or of another user by any names, that are refused: who is guilty comes second."""
    crowd = tuple(replace(each, user="svc", uid=uid, name=name.format(each.pid)) for each in CROWD)
    world = World(target(), *crowd)
    for each in crowd:
        world.bodies[each.pid].facts_changes = {"oom_score_adjust": -1000}

    async def story() -> list[str]:
        ends: list[str] = []
        made = remedies(world, store, ends)
        made.ladders = (LadderRule(lambda _: True, (KILL,), dry_run=False),)
        alerts = [firing(world, each.pid, "critical", full=0.99) for each in crowd] + [firing(world, 100, full=0.5)]
        for _ in range(3):
            made.consider(alerts)
            await made.idle()
        return ends

    first, second, *_ = asyncio.run(story())
    assert first.endswith("refused")
    assert second == "100 released"


def test_who_hides_in_the_crowd_is_no_reason_for_the_next(store: Store) -> None:
    """KILL-01: one that is measured as another user's and has two users' rights ends the choice, as ever."""
    world = World(target(), *CROWD)
    world.bodies[CROWD[0].pid].facts_changes = {"uids": (1000, 2000, 2000, 2000)}

    async def story() -> list[str]:
        ends: list[str] = []
        made = remedies(world, store, ends)
        made.ladders = (LadderRule(lambda _: True, (KILL,), dry_run=False, victim=VictimPolicy.LARGEST),)
        about_gpu = replace(firing(world, 100), alert=Alert({"alertname": "Full"}, {}, Status.FIRING, 0.0))
        for _ in range(4):
            made.consider([about_gpu])
            await made.idle()
        (withheld,) = made.withheld.documents(0.0)
        assert "the rights of more than one user" in str(withheld["reason"])
        return ends

    assert asyncio.run(story()) == []
    assert world.log == []


@pytest.mark.parametrize(
    ("changes", "policy", "reason"),
    [
        ({"user": "other"}, Policy(AllowList(users=("svc",))), "other is not in remedies.allow.users"),
        ({"unit": "a.service"}, Policy(AllowList(units=("b.service",))), "a.service is not in remedies.allow.units"),
        ({}, Policy(AllowList(units=("b.service",))), "no unit is not in remedies.allow.units"),
        ({"unit": "b.service"}, Policy(AllowList(shared_units=("b.service",))), ""),
        (
            {"container_id": "a1" * 32},
            Policy(AllowList(containers=("b2" * 32,))),
            "is not in remedies.allow.containers",
        ),
        ({"container_id": "a1" * 32}, Policy(AllowList(containers=("web",))), ""),  # its name is not known
        ({"name": "sshd"}, Policy(AllowList(users=("svc",))), "is on the never-list (sshd)"),
        ({"name": "train"}, Policy(AllowList(users=("svc",)), never=("tra*",)), "is on the never-list (tra*)"),
        ({}, Policy(AllowList(users=("svc",), min_age=1e9)), "younger than remedies.allow.min_age"),
        ({}, Policy(AllowList(users=("svc",))), ""),
        ({"user": "other"}, Policy(), ""),
    ],
)
def test_what_is_refused_without_a_turn(changes: dict[str, Any], policy: Policy, reason: str) -> None:
    """By what was measured; whatever needs a look at the process has its turn."""
    found = policy.standing_refusal(target(**changes), 1e6)
    assert reason in found
    assert bool(found) is bool(reason)
