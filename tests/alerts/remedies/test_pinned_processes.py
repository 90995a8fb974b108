"""Those who fall together, and those who must never: members of a scope, orphans, and what changes while it climbs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gpuagent.core.growth import MemoryKey
from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.remedies.audit import Audit
from gpuagent_alerts.remedies.audit_rows import BEGIN, INTENT, RESULT
from gpuagent_alerts.remedies.manager import RemedyManager
from gpuagent_alerts.remedies.observation import RemedyRequest
from gpuagent_alerts.remedies.outcome import RunResult
from gpuagent_alerts.remedies.plan import Plan
from gpuagent_alerts.remedies.safeguards.policy import AllowList, Policy
from gpuagent_alerts.remedies.safeguards.victim import VictimPolicy
from gpuagent_alerts.remedies.selection import AlertCandidates
from gpuagent_alerts.remedies.settings import LadderRule, RemedyRules
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.world import (
    BOOT,
    GIB,
    KILL,
    ORDER,
    RELEASE,
    RESTART,
    RULES,
    TERMINATE,
    World,
    context,
    plan,
    run_ladder,
    target,
)

NOTIFY = RemedyStep(StepKind.NOTIFY, 30.0)
BEGUN = {
    "pid": 1, "start_ticks": 1, "boot_id": "b", "gpu": 0, "gpu_uuid": "g", "name": "p", "dry_run": False,
    "ladder": ["kill"],
}  # fmt: skip
RANK0, RANK1 = target(100), target(101, key=MemoryKey("GPU-1", 101), gpu_index=1)


def test_members_on_other_gpus_fall_together(store: Store) -> None:
    """The ranks of a server are on a GPU each: all are signaled, and the memory that counts is the target's GPU's."""
    world = World(RANK0, RANK1)
    world.relatives = (101,)
    assert run_ladder(world, plan(KILL, scope="job"), store).result is RunResult.RELEASED
    assert sorted(world.log) == [("SIGKILL", 100), ("SIGKILL", 101)]


def test_one_process_is_one_process(store: Store) -> None:
    """With the scope `process` nobody else is touched, however close they are."""
    world = World(RANK0, RANK1)
    world.relatives = (101,)
    assert run_ladder(world, plan(KILL), store).result is RunResult.RELEASED
    assert world.log == [("SIGKILL", 100)]


def test_one_member_that_is_not_allowed_saves_all(store: Store) -> None:
    """All of a job, or none: also where one of them belongs to somebody else."""
    world = World(RANK0, replace(RANK1, user="other"))
    world.relatives = (101,)
    outcome = run_ladder(world, plan(KILL, scope="job"), store)
    assert outcome.result is RunResult.REFUSED
    assert "pid 101, which falls with it: other is not in" in outcome.detail
    assert world.log == []


def test_a_member_that_ends_by_itself_saves_nobody(store: Store) -> None:
    """A rank that has crashed leaves the others on their GPUs: they still are what was meant."""
    world = World(RANK0, RANK1)
    world.relatives = (101,)
    for body in world.bodies.values():
        body.stubborn = True
    world.events = [lambda world: None] * 4 + [lambda world: world.end(101)]
    assert run_ladder(world, plan(TERMINATE, KILL, scope="job"), store).result is RunResult.RELEASED
    assert world.log.count(("SIGKILL", 100)) == 1
    assert ("SIGKILL", 101) not in world.log


def test_a_member_that_nobody_has_reaped(store: Store) -> None:
    """PROC-02: a rank that has crashed is a zombie until its parent looks: the others still fall."""
    world = World(RANK0, RANK1)
    world.relatives = (101,)
    world.bodies[101].state = "Z"
    assert run_ladder(world, plan(KILL, scope="job"), store).result is RunResult.RELEASED
    assert world.log == [("SIGKILL", 100)]


def test_an_orphan_is_known_by_what_it_was(store: Store) -> None:
    """The child of a killed leader has another parent: it is named by what was seen before the step."""
    child = target(101, key=MemoryKey("GPU-0", 101), parent_pid=100)
    world = World(target(), child)
    world.relatives = (101,)

    def orphaned(world: World) -> None:
        world.relatives = ()
        world.bodies[101].target = replace(child, used_bytes=8 * GIB)

    world.events = [lambda world: None, orphaned]
    outcome = run_ladder(world, plan(KILL), store)
    assert outcome.result is RunResult.HELD_BY_OTHER
    assert "pid 101" in outcome.detail


def test_the_last_look_is_on_record(store: Store) -> None:
    """Another program between the intent and the signal: nothing is sent, and the record says that nothing was."""
    world = World()

    class Late(World):
        def protected(self) -> frozenset[int]:
            self.exec(100)  # just after the facts were read, and before the last look
            return frozenset({1})

    world = Late()
    outcome = run_ladder(world, plan(KILL), store)
    assert outcome.result is RunResult.REFUSED
    assert world.log == []
    events = Audit(store, world.clock, BOOT).events()
    result = next(event for event in events if event.kind == RESULT)
    assert not result.data["ok"]
    assert "not done" in result.data["detail"]


def test_nobody_is_warned_of_what_will_not_come(store: Store) -> None:
    """A notice is judged as what it announces: no app drains for a step that is refused."""
    world = World(target(user="other"))
    what = plan(NOTIFY, KILL, of=target(user="other"))
    assert run_ladder(world, what, store).result is RunResult.REFUSED
    assert world.log == []
    spent = replace(RULES, limits=replace(RULES.limits, per_hour=0))
    assert run_ladder(World(), plan(KILL), store).result is RunResult.RELEASED
    world = World()
    outcome = run_ladder(world, plan(NOTIFY, KILL), store, spent)
    assert "per_hour" in outcome.detail
    assert world.log == []


def test_refusals_do_not_push_actions_out_of_the_budget(store: Store) -> None:
    """Limits are counted over all actions of a day, however many refusals were recorded since."""
    rules = replace(RULES, limits=replace(RULES.limits, per_day=1))
    assert run_ladder(World(), plan(KILL), store, rules).result is RunResult.RELEASED
    audit = Audit(store, World().clock, BOOT)
    for _ in range(1100):
        audit.write("x", BEGIN, BEGUN)
    world = World()
    assert "per_day" in run_ladder(world, plan(KILL), store, rules).detail
    assert world.log == []


def test_an_action_under_way_is_an_action_now(store: Store) -> None:
    """The pause goes from the last thing that a run did, not from its beginning."""
    world = World()
    audit = Audit(store, world.clock, BOOT)
    run = audit.begin({**BEGUN, "program": "p"})
    world.clock.advance(100)
    audit.write(run, INTENT, {"step": "kill", "disrupts": True})
    (past,) = audit.past(dry_run=False)
    assert past.age_seconds == 0


def test_the_wall_clock_makes_nobody_older(store: Store) -> None:
    """KILL-01: `min_age` is counted on a clock that nobody can set."""
    world = World()
    world.clock._wall += 1e9
    young = replace(RULES.policy, allow=replace(RULES.policy.allow, min_age=5000.0))
    assert "younger" in run_ladder(world, plan(KILL), store, replace(RULES, policy=young)).detail
    assert world.log == []


@pytest.mark.parametrize(
    "unit", ["docker.service", "slurmd.service", "user@1000.service", "ssh.service", "cron.service"]
)
def test_units_that_are_never_restarted(store: Store, unit: str) -> None:
    """KILL-03: a process may run in the unit of what runs others' processes: that is not restarted for it."""
    runs = target(unit=unit)
    world = World(runs)
    outcome = run_ladder(world, plan(RESTART, of=runs), store)
    assert outcome.result is RunResult.REFUSED
    assert "never-list" in outcome.detail
    assert world.log == []


def test_a_program_without_its_argument(store: Store) -> None:
    """`docker restart` of a process in no container would be another command: it is not run."""
    world = World()
    docker = RemedyStep(StepKind.EXEC, 5.0, command=("/usr/bin/docker", "restart", "{container_id}"))
    assert "needs {container_id}" in run_ladder(world, plan(docker, scope="container"), store).detail
    assert world.log == []


IDS: dict[str, dict[str, Any]] = {"container": {"container_id": "a" * 64}, "job": {"slurm_job": "7"}}


@pytest.mark.parametrize("group", IDS)
def test_a_program_that_acts_on_a_whole_group(store: Store, group: str) -> None:
    """KILL-03: the scope has to judge all whom it acts on, and nobody may be in there who must not end."""
    place = {"container": "{container_id}", "job": "{slurm_job}"}[group]
    step = RemedyStep(StepKind.EXEC, 5.0, command=("/usr/bin/program", place))
    containers = ("a" * 12,) if group == "container" else ()
    rules = replace(RULES, policy=Policy(AllowList(users=("svc",), containers=containers)))
    for scope, problem, words in (
        ("process", "", f"the ladder needs scope: {group}"),
        (group, "others are in it", "others are in it"),
        (group, "", ""),
    ):
        member = target(**IDS[group])
        world = World(member)
        world.group_problem = problem
        outcome = run_ladder(world, plan(step, of=member, scope=scope), store, rules)
        assert (world.log == [("exec", 100)], words in outcome.detail) == (not words, True)
    member = target(**IDS[group])
    world = World(member)
    # Between the decision and the last look, others come into it.
    world.inner = [lambda _: None] * 2 + [lambda world: setattr(world, "group_problem", "others are in it")]
    assert "others are in it" in run_ladder(world, plan(step, of=member, scope=group), store, rules).detail
    assert world.log == []


def test_a_victim_that_was_chosen_as_a_leak_needs_its_evidence(store: Store) -> None:
    """`victim: leaking` says that it leaks: the detector must be as sure as for an alert about the leak itself."""
    full = RemedyRequest(alert="a1", alertname="GpuMemoryHigh", labels={}, victim="leaking")
    weak, sure = (target(leaking=True, evidence=each) for each in ("balanced", "strict"))
    assert "evidence" in run_ladder(World(weak), plan(KILL, of=weak, request=full), store).detail
    assert run_ladder(World(sure), plan(KILL, of=sure, request=full), store).result is RunResult.RELEASED


def ladder(*steps: RemedyStep, dry_run: bool = False) -> LadderRule:
    """For every alert."""
    return LadderRule(lambda labels: True, steps or (TERMINATE, KILL), dry_run=dry_run)


def firing(of: int, *seen: World) -> AlertCandidates:
    """About a process of this world."""
    alert = Alert({"alertname": "Full", "pid": str(of)}, {}, Status.FIRING, 1.7e9)
    return AlertCandidates(alert, 1e9, [body.target for body in seen[0].bodies.values()])


def remedies(world: World, store: Store, ends: list[str], *ladders: LadderRule) -> RemedyManager:
    """What they come to goes to `ends`."""
    return RemedyManager(
        ladders or [ladder()], RULES, context(world, store), proof_seconds=5.0,
        on_run_end=lambda plan, run, outcome, again: ends.append(f"{plan.target.pid} {outcome.result}"),
    )  # fmt: skip


@pytest.mark.parametrize("now", [(), (ladder(dry_run=True),), (ladder(KILL),)])
def test_another_configuration_calls_it_off(store: Store, now: tuple[LadderRule, ...]) -> None:
    """Who reloads with the ladder gone, changed or made a dry run has ended what climbs before its next step."""
    world = World()
    world.bodies[100].stubborn = True

    async def story() -> None:
        ends: list[str] = []
        made = remedies(world, store, ends)
        world.events = [lambda world: None] * 3 + [lambda world: made.use(now, RULES, 5.0)]
        made.consider([firing(100, world)])
        await made.idle()
        assert ends == ["100 refused"]

    asyncio.run(story())
    assert world.log == [("SIGTERM", 100)]


def test_the_same_configuration_lets_it_run_on(store: Store) -> None:
    """A reload that changes something else changes nothing for it; narrower rules count from the next step on."""
    for rules, result in (
        (RULES, "100 released"),
        (replace(RULES, policy=replace(RULES.policy, never=("pyth*",))), "100 refused"),
    ):
        world = World()
        world.bodies[100].stubborn = True

        async def story(world: World, rules: RemedyRules) -> list[str]:
            ends: list[str] = []
            made = remedies(world, store, ends)
            world.events = [lambda world: None] * 3 + [lambda world: made.use([ladder()], rules, 5.0)]
            made.consider([firing(100, world)])
            await made.idle()
            return ends

        assert asyncio.run(story(world, rules)) == [result]


def test_a_dry_run_stands_in_nobodys_way(store: Store) -> None:
    """Nothing is done in it: a person or another ladder may act on the same GPU meanwhile."""
    world = World(target(), target(101, key=MemoryKey("GPU-0", 101)))

    async def story() -> None:
        ends: list[str] = []
        made = remedies(world, store, ends, ladder(dry_run=True))
        made.consider([firing(100, world)])
        by_hand = Plan(
            RemedyRequest(asked_by="root"), world.bodies[101].target, (KILL,), dry_run=False, proof_seconds=5.0
        )
        assert (await made.by_hand(by_hand)).result is RunResult.RELEASED
        second = Plan(
            RemedyRequest(asked_by="root"), world.bodies[100].target, (KILL,), dry_run=False, proof_seconds=5.0
        )
        await made.idle()
        running = asyncio.create_task(made.by_hand(second))
        await asyncio.sleep(0)
        assert "under way" in (await made.by_hand(second)).detail
        await running

    asyncio.run(story())


def test_two_alerts_on_one_process_of_two_gpus(store: Store) -> None:
    """A job over two GPUs is one victim: the alert about its other GPU finds it taken, and nobody is hit twice."""
    world = World(RANK0, RANK1)
    world.relatives = (100, 101)
    for body in world.bodies.values():
        body.stubborn = True

    async def story() -> None:
        ends: list[str] = []
        job = LadderRule(lambda labels: True, (KILL,), dry_run=False, scope="job")
        made = remedies(world, store, ends, job)
        made.consider([firing(100, world), firing(101, world)])
        await made.idle()
        assert ends in (["100 released"], ["101 released"])

    asyncio.run(story())
    assert sorted(world.log) == [("SIGKILL", 100), ("SIGKILL", 101)]


def test_a_limit_is_no_reason_for_the_next_one(store: Store) -> None:
    """Where the first of the ranking may not be acted on now, the second is no answer: it is not the one to choose."""
    world = World(target(100, used_bytes=9 * GIB), target(101, key=MemoryKey("GPU-0", 101)))
    spent = replace(RULES, limits=replace(RULES.limits, per_hour=0, pause=1e9))

    async def story() -> None:
        ends: list[str] = []
        largest = LadderRule(lambda labels: True, (KILL,), dry_run=False, victim=VictimPolicy.LARGEST)
        made = remedies(world, store, ends, largest)
        alert = Alert({"alertname": "Full"}, {}, Status.FIRING, 1.7e9)
        what = AlertCandidates(alert, 1e9, [body.target for body in world.bodies.values()])
        audit = Audit(store, world.clock, BOOT)
        run = audit.begin(BEGUN)
        audit.write(run, INTENT, {"step": "kill", "disrupts": True})
        made.use([largest], spent, 5.0)
        for _ in range(3):
            made.consider([what])
            await made.idle()
        assert ends == ["100 refused"]

    asyncio.run(story())
    assert world.log == []


def test_an_alert_in_doubt_is_not_a_new_one(store: Store) -> None:
    """Missing data for a moment, or an expression that flaps: what was tried stays tried, and is not tried at once."""
    world = World()
    world.bodies[100].facts_changes = {"uids": (1000, 0, 0, 0)}

    async def story() -> None:
        ends: list[str] = []
        made = remedies(world, store, ends)
        what = firing(100, world)
        for objection in ("", "the data behind the alert is missing") * 3:
            made.consider([replace(what, objection=objection)])
            await made.idle()
        assert ends == ["100 refused"]

    asyncio.run(story())


def test_the_alert_never_comes_to_mean_another(store: Store) -> None:
    """KILL-01: the number is given to another process while the alert goes on: that one was never meant."""
    world = World()

    async def story() -> None:
        ends: list[str] = []
        made = remedies(world, store, ends, ladder(RELEASE))
        made.consider([firing(100, world)])
        await made.idle()
        world.reuse(100)
        world.clock.advance(10_000)
        made.consider([firing(100, world)])
        await made.idle()
        assert ends == ["100 no_effect"]

    asyncio.run(story())


def test_the_agent_stops_while_a_person_waits(store: Store) -> None:
    """Whoever has asked is told that the agent is stopping; what was sent is on record."""
    world = World()
    world.bodies[100].immortal = True

    async def story() -> None:
        made = remedies(world, store, [])
        what = Plan(ORDER, world.bodies[100].target, (KILL,), dry_run=False)
        asked = asyncio.create_task(made.by_hand(replace(what, request=RemedyRequest(asked_by="root"))))
        while not any(event.kind == INTENT for event in Audit(store, world.clock, BOOT).events()):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await made.close()
        assert (await asked).result is RunResult.INTERRUPTED

    asyncio.run(story())
