"""The step `limit`: whom it may cap, what a ladder makes of it, and when the limit is lifted again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gpuagent.core.growth import MemoryKey
from gpuagent.core.identity import ProcessId
from gpuagent.core.memory_limits import LimitHolder, LimitRefused, MemoryLimit, SetLimit
from gpuagent_alerts.remedies.audit import Audit
from gpuagent_alerts.remedies.audit_rows import BEGIN, END, INTENT, LIFT, RESULT, runs
from gpuagent_alerts.remedies.limit_lifts import ABSENT_SECONDS, LimitLifts
from gpuagent_alerts.remedies.observation import ActionResult, Condition, NotPossibleHere
from gpuagent_alerts.remedies.outcome import RunResult
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.test_turns import firing, remedies
from tests.alerts.remedies.world import (
    ALERT,
    BOOT,
    GIB,
    KILL,
    RELEASE,
    RESTART,
    RULES,
    TERMINATE,
    World,
    plan,
    run_ladder,
    target,
)

OWNER = "key-state"
LIMIT = RemedyStep(StepKind.LIMIT, 30.0, headroom_bytes=2 * GIB)
UNIT = {"unit": "whisper.service"}
OF_UNIT = target(unit="whisper.service")


def test_it_caps_and_ends_nobody(store: Store) -> None:
    """The intent is on record before it, the process lives on, and the breaker counts it for nothing."""
    world = World(OF_UNIT)
    outcome = run_ladder(world, plan(LIMIT, of=OF_UNIT), store)
    assert (outcome.result, outcome.detail, outcome.helped) == (RunResult.LIMITED, "it is limited to 6.0 GiB", None)
    assert (world.log, world.bodies[100].alive) == ([("limit", 100)], True)
    rows = Audit(store, world.clock, BOOT).events()
    assert [row.kind for row in rows] == [BEGIN, INTENT, RESULT, END]
    assert rows[1].data["may_end"] is False
    (ask,) = world.limit_asks
    assert ask.holder == LimitHolder(rows[0].run, ALERT, pid=100, start_ticks=1000)


def test_until_the_process_ends(store: Store) -> None:
    """A limit that is to outlive the alert goes by the process alone."""
    world = World(OF_UNIT)
    run_ladder(world, plan(replace(LIMIT, until_process_ends=True), of=OF_UNIT), store)
    assert world.limit_asks[0].holder.alert == ""
    assert world.limit_asks[0].holder.pid == 100


def test_the_growth_ends(store: Store) -> None:
    """An alert that ends while the limit holds ends the ladder, and nothing harder follows."""
    world = World(OF_UNIT)

    def over(world: World) -> None:
        world.condition = Condition.OVER

    world.events = [lambda world: None, lambda world: None, over]
    outcome = run_ladder(world, plan(LIMIT, TERMINATE, of=OF_UNIT), store)
    assert (outcome.result, world.log) == (RunResult.RESOLVED, [("limit", 100)])


def test_what_follows_where_the_alert_goes_on(store: Store) -> None:
    """A ladder goes on after its wait, and passes over a step that was taken before."""
    world = World(OF_UNIT)
    outcome = run_ladder(world, plan(LIMIT, RESTART, of=OF_UNIT), store)
    assert (outcome.result, world.log) == (RunResult.RELEASED, [("limit", 100), ("restart_unit", 100)])
    world = World(OF_UNIT)
    world.group_problem = NotPossibleHere("limited already")
    outcome = run_ladder(world, plan(LIMIT, RESTART, of=OF_UNIT), store)
    assert (outcome.result, world.log) == (RunResult.RELEASED, [("restart_unit", 100)])


def test_a_limit_that_stands_is_no_action(store: Store) -> None:
    """Tried again while the alert goes on, a ladder that ends with the limit is refused, and uses up no turn."""
    world = World(OF_UNIT)
    world.group_problem = NotPossibleHere("limited already")
    outcome = run_ladder(world, plan(LIMIT, of=OF_UNIT), store)
    assert (outcome.result, outcome.detail, outcome.acted) == (RunResult.REFUSED, "limited already", False)
    assert Audit(store, world.clock, BOOT).past(dry_run=False) == []


def test_a_dry_run_only_tells(store: Store) -> None:
    """What would be done is said, and nothing is."""
    world = World(OF_UNIT)
    outcome = run_ladder(world, plan(LIMIT, of=OF_UNIT, dry_run=True), store)
    assert (outcome.result, world.log) == (RunResult.DRY_RUN, [("rehearsed limit", 100)])
    assert world.limit_asks[0].rehearse


@pytest.mark.parametrize("where", ["before", "driver", "machine"])
def test_a_limit_that_cannot_be_had_disarms_no_ladder(store: Store, where: str) -> None:
    """No helper, an older driver, managed memory, a MIG instance: the next step follows."""
    of = target(unit="whisper.service", key=MemoryKey("GPU-0", 100, 3)) if where == "machine" else OF_UNIT
    world = World(of)
    if where == "before":
        world.group_problem = NotPossibleHere("there is no helper")
    if where == "driver":
        world.limit_result = ActionResult(ok=False, detail="the driver counts 1 GiB; it is lifted", taken=False)
    outcome = run_ladder(world, plan(LIMIT, RESTART, of=of), store)
    assert (outcome.result, world.log[-1]) == (RunResult.RELEASED, ("restart_unit", 100))


@pytest.mark.parametrize("first", [True, False])
def test_a_limit_that_cannot_be_had_is_no_action(store: Store, first: bool) -> None:
    """As the last step it is refused: no turn, no cool-down, and nothing that the breaker counts."""
    world = World(OF_UNIT)
    if first:
        world.group_problem = NotPossibleHere("there is no helper")
    world.limit_result = ActionResult(ok=False, detail="managed memory; it is lifted", taken=False)
    outcome = run_ladder(world, plan(LIMIT, of=OF_UNIT), store)
    assert (outcome.result, outcome.acted, outcome.helped) == (RunResult.REFUSED, False, None)
    assert Audit(store, world.clock, BOOT).past(dry_run=False) == []


def test_a_limit_of_which_nobody_knows(store: Store) -> None:
    """A helper that does not answer may have set it: an act, after which no harder step follows, and nobody's fault."""
    world = World(OF_UNIT)
    world.limit_result = ActionResult(ok=False, detail="it is not known whether the limit was set: timed out")
    outcome = run_ladder(world, plan(LIMIT, TERMINATE, of=OF_UNIT), store)
    assert (outcome.result, outcome.acted, outcome.helped) == (RunResult.INTERRUPTED, True, None)
    assert world.log == [("limit", 100)]
    rows = Audit(store, world.clock, BOOT).events()
    assert [row.data["taken"] for row in rows if row.kind == RESULT] == [True]
    (past,) = Audit(store, world.clock, BOOT).past(dry_run=False)
    assert past.helped is None


@pytest.mark.parametrize(
    ("changes", "facts", "observed", "word"),
    [
        ({}, {}, {}, "no unit, container or job of root's making"),
        ({"unit": "user@1000.service/a.service"}, {}, {}, "run by a user's own manager"),
        ({**UNIT, "proven_names": frozenset()}, {}, {}, "it is not proven that root"),
        ({"container_id": "a1" * 32, "proven_names": frozenset({"unit"})}, {}, {}, "is not proven"),
        ({"slurm_job": "17", "proven_names": frozenset({"unit"})}, {}, {}, "job 17 is not proven"),
        ({"unit": "docker.service"}, {}, {}, "never-list"),
        ({**UNIT, "key": MemoryKey("GPU-0", 100, 3)}, {}, {}, "MIG instance"),
        (UNIT, {}, {"unified_memory": True}, "shares the machine's memory"),
        ({**UNIT, "kinds": "M"}, {}, {}, "client of MPS"),
        ({**UNIT, "user": "bob"}, {}, {}, "is not in remedies.allow.users"),
        ({**UNIT, "name": "sshd"}, {}, {}, "never-list"),
    ],
)
def test_whom_it_refuses(
    store: Store, changes: dict[str, Any], facts: dict[str, Any], observed: dict[str, Any], word: str
) -> None:
    """Who is in no cgroup of root's making is not capped, nor whom no other step may reach."""
    of = target(**changes)
    world = World(of)
    world.bodies[100].facts_changes, world.observation_changes = facts, observed
    outcome = run_ladder(world, plan(LIMIT, of=of), store)
    assert outcome.result is RunResult.REFUSED, outcome
    assert word in outcome.detail
    assert world.log == []


def test_a_client_of_mps_gets_no_limit_where_others_may_be_ended(store: Store) -> None:
    """What it holds is its server's: a permission to end clients is none to limit them for nothing."""
    of = target(unit="whisper.service", kinds="M")
    world = World(of)
    rules = replace(RULES, policy=replace(RULES.policy, mps_clients=True))
    outcome = run_ladder(world, plan(LIMIT, of=of), store, rules)
    assert (outcome.result, world.log) == (RunResult.REFUSED, [])
    assert "would not hold" in outcome.detail


def test_who_else_is_in_the_cgroup(store: Store) -> None:
    """Other people's work in the cgroup, a limit of another's, a driver that has none: it is not done."""
    world = World(OF_UNIT)
    world.group_problem = "whisper.service runs processes of other users: bob (1)"
    outcome = run_ladder(world, plan(LIMIT, of=OF_UNIT), store)
    assert (outcome.result, world.log) == (RunResult.REFUSED, [])


@pytest.mark.parametrize("state", ["T", "D"])
def test_a_process_that_no_signal_reaches(store: Store, state: str) -> None:
    """A limit needs nothing of the process: one that is stopped or sleeps in the kernel is capped too."""
    world = World(OF_UNIT)
    world.bodies[100].state = state
    assert run_ladder(world, plan(LIMIT, of=OF_UNIT), store).result is RunResult.LIMITED


class Ledger:
    """Sets nothing, and has what was set."""

    def __init__(self, *limits: MemoryLimit) -> None:
        self.rows = {each.key: each for each in limits}
        self.lifted: list[str] = []
        self.asked = 0
        self.gone: set[str] = set()
        self.problem = self.lift_problem = ""
        self.lift_tries = 0

    def refusal(self) -> str:
        return ""

    def set(
        self, gpu_uuid: str, cgroup: str, inode: int, hard_bytes: int, holder: LimitHolder, *, rehearse: bool = False
    ) -> SetLimit:
        raise LimitRefused("not here")

    def lift(self, gpu_uuid: str, cgroup: str, owner: str) -> str:
        self.lift_tries += 1
        if problem := self.problem or self.lift_problem:
            raise LimitRefused(problem)
        del self.rows[gpu_uuid, cgroup]
        self.lifted.append(cgroup)
        return "it is lifted"

    def is_there(self, limit: MemoryLimit) -> bool:
        return limit.cgroup not in self.gone

    def limits(self) -> tuple[MemoryLimit, ...]:
        self.asked += 1
        if self.problem:
            raise LimitRefused(self.problem)
        return tuple(self.rows.values())


def limit(cgroup: str = "/a.service", **holder: Any) -> MemoryLimit:
    """One that was set for an alert about pid 100."""
    made = LimitHolder(**{"run": "r", "alert": ALERT, "pid": 100, "start_ticks": 1000, "owner": OWNER, **holder})
    return MemoryLimit("GPU-0", cgroup, 5, 6 * GIB, BOOT, 1.0, made)


class Lifts:
    """Limits that are kept an eye on, by a clock that stands still."""

    def __init__(self, store: Store, *limits: MemoryLimit) -> None:
        self.world = World()
        self.ledger = Ledger(*limits)
        self.audit = Audit(store, self.world.clock, BOOT)
        self.lifts = self.anew()

    def anew(self) -> LimitLifts:
        """As an agent that has just been started."""
        return LimitLifts(self.ledger, self.world.clock, self.audit, self.world.is_alive, OWNER)

    def look(self, *firing: str, seconds: float = 10.0) -> list[str]:
        """Look after so many seconds; return what was lifted by then."""
        self.world.clock.advance(seconds)
        if self.lifts.is_due():
            asyncio.run(self.lifts.look(set(firing)))
        return self.ledger.lifted


def test_it_is_lifted_when_the_alert_has_ended(store: Store) -> None:
    """While it fires the limit stays, also over a gap of one evaluation; a minute after it has ended it goes."""
    one = Lifts(store, limit())
    assert one.look(ALERT) == []
    assert one.look() == []
    assert one.look(ALERT, seconds=ABSENT_SECONDS) == []
    assert one.look() == []
    assert one.look(seconds=ABSENT_SECONDS) == ["/a.service"]
    assert one.look(seconds=600) == ["/a.service"]


def test_it_is_lifted_when_the_process_has_ended(store: Store) -> None:
    """At once, though the alert goes on; a process with the same number is another one."""
    one = Lifts(store, limit())
    one.world.reuse(100)
    assert one.look(ALERT) == ["/a.service"]


def test_it_stays_for_as_long_as_the_process(store: Store) -> None:
    """Where no alert ends it, only the process does."""
    one = Lifts(store, limit(alert=""))
    assert one.look(seconds=3600) == []
    assert one.look(seconds=3600) == []
    one.world.end(100)
    assert one.look() == ["/a.service"]


def test_it_is_known_after_a_restart(store: Store) -> None:
    """An agent that was killed and started again lifts what the one before it has set."""
    one = Lifts(store, limit())
    assert one.look(ALERT) == []
    one.lifts = one.anew()
    assert one.look() == []
    assert one.look(seconds=ABSENT_SECONDS) == ["/a.service"]


def test_a_lift_is_on_record(store: Store) -> None:
    """With its reason, beside the run that has set it; it is no action, and starts no cool-down anew."""
    one = Lifts(store, limit())
    one.audit.write("r", BEGIN, {
        "pid": 1, "start_ticks": 2, "boot_id": BOOT, "gpu": 0, "gpu_uuid": "u", "name": "n", "dry_run": False,
        "ladder": ["limit"],
    })  # fmt: skip
    one.audit.write("r", INTENT, {"step": "limit", "disrupts": True})
    one.audit.write("r", END, {"result": "limited", "acted": True})
    one.world.end(100)
    one.look(seconds=500)
    (run,) = runs(one.audit.events())
    assert run["steps"][-1]["kind"] == LIFT
    assert run["steps"][-1]["detail"] == "it is lifted (pid 100 has ended)"
    (past,) = one.audit.past(dry_run=False)
    assert past.age_seconds == 500


def test_a_helper_that_fails_is_asked_again(store: Store) -> None:
    """What cannot be lifted now is tried again, and told once."""
    one = Lifts(store, limit())
    one.look(ALERT)
    one.world.end(100)
    one.ledger.problem = "the driver hangs"
    assert one.look() == []
    assert one.look() == []
    assert [row.kind for row in one.audit.events()] == [LIFT]
    one.ledger.problem = ""
    assert one.look(seconds=60) == ["/a.service"]


def test_nobody_is_asked_where_there_is_none(store: Store) -> None:
    """A helper that would be started by each question is asked once, and again when a limit was set."""
    one = Lifts(store)
    for _ in range(20):
        one.look(ALERT)
    assert one.ledger.asked == 1
    one.lifts.forget()
    one.look(ALERT)
    assert one.ledger.asked == 2


def test_a_person_lifts_all_of_this_agent(store: Store) -> None:
    """Those of another agent stay; one that cannot be lifted is told apart from those that were."""
    one = Lifts(store, limit(), limit("/b.service", owner="another"))
    assert asyncio.run(one.lifts.lift_all("alice")) == (["it is lifted (alice asked for it)"], [])
    assert list(one.ledger.rows) == [("GPU-0", "/b.service")]
    one.ledger.problem = "no helper"
    with pytest.raises(LimitRefused):
        asyncio.run(one.lifts.lift_all("alice"))


def test_another_agent_lifts_nothing(store: Store) -> None:
    """An agent with another state directory tells what limits there are, and leaves them."""
    one = Lifts(store, limit(owner="another"))
    one.world.end(100)
    assert one.look(seconds=3600) == []
    (told,) = one.lifts.documents()
    assert (told["is_own"], told["is_set"]) == (False, True)


def test_a_limit_that_cannot_be_lifted_is_tried_ever_less_often(store: Store) -> None:
    """Each try initializes NVML: after the first the next is a minute later, then two, up to a quarter of an hour."""
    one = Lifts(store, limit())
    one.look(ALERT)
    one.world.end(100)
    one.ledger.lift_problem = "the driver hangs"
    for _ in range(60):
        one.look(seconds=10.0)
    assert one.ledger.lift_tries == 4  # at 0, 60, 180 and 420 s


def test_the_ledger_is_read_again_now_and_then(store: Store) -> None:
    """A request that was given up may have set a limit after all: it is found, and lifted when its reason is gone."""
    one = Lifts(store)
    one.look(ALERT)
    late = limit()
    one.ledger.rows[late.key] = late
    one.world.end(100)
    assert one.look(seconds=100.0) == []
    assert one.look(seconds=300.0) == ["/a.service"]


def test_what_a_limited_process_is_told_of(store: Store) -> None:
    """A process of which a limit is known to hold; not one whose limit nobody has confirmed."""
    one = Lifts(store, limit(), replace(limit("/b.service", pid=101), is_set=False))
    one.look(ALERT)
    assert "/a.service is limited to 6.0 GiB since" in one.lifts.words(ProcessId(BOOT, 100, 1000))
    assert one.lifts.words(ProcessId(BOOT, 101, 1000)) == ""


@pytest.mark.parametrize(
    ("steps", "begins"),
    [((RELEASE, LIMIT), False), ((LIMIT,), False), ((TERMINATE, LIMIT), True), ((LIMIT, KILL), True)],
)
def test_a_ladder_that_ends_with_a_limit_that_holds(store: Store, steps: tuple[RemedyStep, ...], begins: bool) -> None:
    """It empties no cache again and again: while the limit holds it is not begun, and the reason is told."""
    world = World(OF_UNIT)

    async def story() -> tuple[bool, list[str]]:
        made = remedies(world, store, [])
        made.ladders = (replace(made.ladders[1], steps=steps),)
        made.context = replace(made.context, limited=lambda identity: f"/a is limited since 10:00 ({identity.pid})")
        made.consider([firing(world, 100)])
        began = bool(made.running)
        told = [str(each["reason"]) for each in made.withheld.documents(0.0)]
        await made.close()
        return began, told

    began, told = asyncio.run(story())
    assert began is begins
    assert ("is limited since" in "".join(told)) is not begins


def test_whose_process_it_is() -> None:
    """The end that lifts a limit is that of this very process, of this boot."""
    world = World()
    assert world.is_alive(ProcessId(BOOT, 100, 1000))
    assert not world.is_alive(ProcessId("another", 100, 1000))
