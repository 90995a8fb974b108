"""Processes that have ended, that are ending, and that sleep where SIGKILL alone may reach them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuagent_alerts.remedies.audit import Audit
from gpuagent_alerts.remedies.audit_rows import runs
from gpuagent_alerts.remedies.observation import RemedyRequest
from gpuagent_alerts.remedies.outcome import RunResult
from gpuagent_alerts.remedies.safeguards.refusals import advice_on
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.world import BOOT, KILL, RELEASE, TERMINATE, World, plan, run_ladder, target

NOTIFY = RemedyStep(StepKind.NOTIFY, 30.0)


def asleep() -> World:
    """A process in state D since before it was held: its command line cannot be read."""
    world = World()
    body = world.bodies[100]
    body.state, body.identity = "D", replace(body.identity, command_digest="")
    body.facts_changes = {"switches": 5, "wait_channel": "kernel_clone"}
    return world


def test_a_zombie_gets_no_signal(store: Store) -> None:
    """PROC-02: no signal to a zombie; that it has ended is the one reason, whatever else has changed with that."""
    world = World()
    world.bodies[100].state = "Z"
    world.bodies[100].identity = replace(world.bodies[100].identity, cgroup="", command_digest="")
    outcome = run_ladder(world, plan(KILL), store)
    assert outcome.result is RunResult.REFUSED
    assert outcome.detail == "it has ended and is a zombie: its parent has to reap it, and no signal helps"
    assert world.log == []


def test_state_d_is_called_by_its_name(store: Store) -> None:
    """PROC-02: the command line of one in state D cannot be read: where nothing else tells of an exec, that is said."""
    world = World()
    body = world.bodies[100]

    def sleeps(_: World) -> None:
        body.state = "D"
        body.identity = replace(body.identity, command_digest="")

    world.events = [sleeps]
    outcome = run_ladder(world, plan(KILL), store)
    assert outcome.detail == "its command line has changed, or cannot be read: it may run another program"
    assert world.log == []


@pytest.mark.parametrize("state", ["T", "t"])
def test_a_stopped_process_gets_sigkill_alone(store: Store, state: str) -> None:
    """PROC-02: a signal to one that is stopped would end it when it goes on, and the reason has long gone."""
    world = World()
    world.bodies[100].state = state
    outcome = run_ladder(world, plan(TERMINATE), store)
    assert outcome.detail == f"it is stopped (state {state}): only SIGKILL reaches it now, and not SIGTERM"
    assert world.log == []
    world.bodies[100].facts_changes = {"switches": 5}
    assert run_ladder(world, plan(TERMINATE, KILL), store).result is RunResult.RELEASED
    assert [each for each in world.log if "SIGTERM" in each] == []


def test_what_ends_in_the_middle_of_a_ladder(store: Store) -> None:
    """PROC-02: a process that has ended between two steps is said to have ended, and not to be another program."""
    world = World()

    def ends(world: World) -> None:
        world.bodies[100].facts_changes = {"ending": True}
        world.bodies[100].identity = replace(world.bodies[100].identity, cgroup="", command_digest="")

    world.events = [ends]
    outcome = run_ladder(world, plan(TERMINATE, KILL), store)
    assert outcome.detail.startswith("it is ending: ")
    assert ";" not in outcome.detail
    assert world.log == []


def test_a_leader_that_is_a_zombie_is_alive(store: Store) -> None:
    """PROC-02: a zombie with living threads holds everything, and ends by SIGKILL."""
    world = World()
    world.bodies[100].state, world.bodies[100].threads = "Z", 2
    assert run_ladder(world, plan(KILL), store).result is RunResult.RELEASED


def test_only_sigkill_reaches_state_d(store: Store) -> None:
    """PROC-02: gentler signals are passed over, their time is waited all the same, and the record says why."""
    world = asleep()
    assert run_ladder(world, plan(NOTIFY, RELEASE, TERMINATE, KILL), store).result is RunResult.RELEASED
    assert world.log == [("notify", 100), ("release_cache", 100), ("SIGKILL", 100)]
    (run,) = runs(Audit(store, world.clock, BOOT).events())
    passed_over, done = [each for each in run["steps"] if each["step"] == "SIGTERM"]
    assert (done["kind"], passed_over["disrupts"]) == ("result", False)
    assert passed_over["note"] == (
        "passed over: it is in uninterruptible sleep (state D) in kernel_clone: only SIGKILL may reach it now,"
        " and not SIGTERM"
    )
    assert not Audit(store, world.clock, BOOT).past(dry_run=True)
    killed = next(each for each in run["steps"] if each["step"] == "SIGKILL")
    assert killed["time_seconds"] - passed_over["time_seconds"] >= TERMINATE.wait_seconds


def test_who_has_run_meanwhile_is_asked_first(store: Store) -> None:
    """PROC-02: a process that waits for a disk at each look is not stuck: no SIGKILL before it could end by itself."""
    world = asleep()
    world.events = [lambda _: None] * 10
    world.events.append(lambda world: world.bodies[100].facts_changes.update(switches=6))
    outcome = run_ladder(world, plan(TERMINATE, KILL), store)
    assert outcome.result is RunResult.REFUSED
    assert outcome.detail.startswith("it has run since only SIGKILL could have reached it")
    assert world.log == []


def test_a_sleep_that_cannot_be_told_from_another(store: Store) -> None:
    """PROC-02: where the kernel does not tell how often it ran, it may have: nothing is killed unasked."""
    world = asleep()
    world.bodies[100].facts_changes = {}
    assert run_ladder(world, plan(TERMINATE, KILL), store).result is RunResult.REFUSED
    assert run_ladder(world, plan(KILL), store).result is RunResult.RELEASED


@pytest.mark.parametrize(
    "step", [TERMINATE, RemedyStep(StepKind.SIGNAL, 1.0, signal_number=10), RemedyStep(StepKind.RESET, 1.0)], ids=str
)
def test_nothing_else_is_done_in_state_d(store: Store, step: RemedyStep) -> None:
    """PROC-02: without a `kill` step it is refused, and the refusal names what may reach it."""
    world = asleep()
    outcome = run_ladder(world, plan(step), store)
    assert outcome.result is RunResult.REFUSED
    assert f"only SIGKILL may reach it now, and not {step}" in outcome.detail
    assert world.log == []


def test_a_dry_run_by_hand_of_state_d(store: Store) -> None:
    """PROC-02: it shows the same steps, passed over or taken, at once, and reaches nobody."""
    world = asleep()
    began = world.clock.now()
    order = RemedyRequest(asked_by="root (uid 0)")
    outcome = run_ladder(world, plan(TERMINATE, KILL, request=order, dry_run=True), store)
    assert outcome.result is RunResult.DRY_RUN
    assert "; SIGTERM would be passed over: it is in uninterruptible sleep (state D)" in outcome.detail
    (run,) = runs(Audit(store, world.clock, BOOT).events())
    assert [each["step"] for each in run["steps"] if each["kind"] == "intent"] == ["SIGTERM", "SIGKILL"]
    assert "only SIGKILL may reach it now" in run["steps"][0]["note"]
    assert world.clock.now() - began < TERMINATE.wait_seconds
    assert world.log == []


@pytest.mark.parametrize(
    "step", [TERMINATE, RemedyStep(StepKind.SIGNAL, 1.0, signal_number=10), RemedyStep(StepKind.RESET, 1.0)], ids=str
)
def test_a_frozen_process_gets_sigkill_alone(store: Store, step: RemedyStep) -> None:
    """PROC-02: a step would reach a paused container when it goes on, and the reason has long gone."""
    world = World()
    world.bodies[100].facts_changes = {"frozen_by": "/docker/1", "switches": 5}
    outcome = run_ladder(world, plan(step), store)
    assert outcome.result is RunResult.REFUSED
    assert f"only SIGKILL reaches it now, and not {step}" in outcome.detail
    assert world.log == []
    assert run_ladder(world, plan(step, KILL), store).result is RunResult.RELEASED
    assert world.log == [("SIGKILL", 100)]


@pytest.mark.parametrize("steps", [(TERMINATE,), (KILL,), (TERMINATE, KILL)], ids=str)
def test_a_process_that_a_freezer_of_version_1_holds(store: Store, steps: tuple[RemedyStep, ...]) -> None:
    """PROC-02: SIGKILL too would reach it at the thaw alone, when the reason may have gone: nothing is sent."""
    world = World()
    world.bodies[100].facts_changes = {"held_by": "/docker/1", "state": "D", "switches": 5}
    outcome = run_ladder(world, plan(*steps), store)
    assert outcome.result is RunResult.REFUSED
    assert "no signal reaches it, not even SIGKILL, until it is thawed" in outcome.detail
    assert any("Thaw it" in each for each in advice_on(outcome.reasons, target(), "/etc/gpuagent.yaml"))
    assert world.log == []
