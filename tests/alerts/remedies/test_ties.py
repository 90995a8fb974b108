"""Whoever ends, or is hung up, together with the process: the policy on them, and the last look before a step."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpuagent_alerts.remedies.observation import Condition, Observation, RemedyRequest
from gpuagent_alerts.remedies.outcome import RunResult
from gpuagent_alerts.remedies.safeguards.policy import AllowList, Policy
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from gpuagent_alerts.remedies.target import MAX_TIED, Facts, Identity, TiedProcess, Ties
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.world import KILL, TERMINATE, World, plan, run_ladder, target

WHY = "in the pid namespace of pid 100"
BOB = (TiedProcess(7, 70, ("sleep",), "bob", belongs=False, why=WHY),)
OWN = (TiedProcess(8, 80, ("sleep",), "svc", belongs=True),)
NEVER_LISTED = (TiedProcess(9, 90, ("worker", "sshd"), "svc", belongs=True),)
LINKED = (TiedProcess(9, 90, ("worker",), "svc", belongs=True, never_listed="a link leads to it"),)
SPARED = (TiedProcess(9, 90, ("worker",), "svc", belongs=True, oom_score_adjust=-1000),)
OF_THE_AGENT = (TiedProcess(1, 10, ("worker",), "svc", belongs=True),)
RULE = RemedyRequest(alert="a1", alertname="GpuMemoryHigh")
FORCED = RemedyRequest(alert="", alertname="by hand", asked_by="root (uid 0)", forced=True, shown=frozenset({(7, 70)}))
ENDING = (
    RemedyStep(StepKind.TERMINATE, 1.0), RemedyStep(StepKind.KILL, 1.0),
    RemedyStep(StepKind.SIGNAL, 1.0, signal.SIGUSR1),
    RemedyStep(StepKind.RESTART_UNIT, 1.0), RemedyStep(StepKind.EXEC, 1.0, command=("/bin/x", "{pid}")),
)  # fmt: skip


def reasons(
    step: RemedyStep, order: RemedyRequest, others: Sequence[TiedProcess] | None, shared: tuple[str, ...] = ()
) -> list[str]:
    """Return the refusals that speak of others; None is not to be seen."""
    of = replace(target(100), unit="a.service", proven_names=frozenset({"unit"}))
    identity = Identity(of.id, of.uid, of.name, "d", of.cgroup, proven_names=of.proven_names)
    facts = Facts(
        identity, "S", 1, uids=(of.uid,) * 4, own_root=False, namespace_pids=(100,),
        ties=Ties(unseen="hidden") if others is None else Ties(tuple(others)),
    )  # fmt: skip
    observation = Observation(
        1e6, Condition.HOLDS, target=of, target_listed=True, trusted=True, host_pid_namespace=True
    )
    policy = Policy(AllowList(users=(of.user,), units=("a.service",), shared_units=shared))
    found = policy.refusals(step, order, observation, facts, 1e6, frozenset({1}))
    return [each for each in found if "its end" in each or "ending it" in each or "ends with it" in each]


@pytest.mark.parametrize("step", ENDING, ids=str)
def test_what_ends_it_ends_them(step: RemedyStep) -> None:
    """Every step that may end the process is refused for others who end with it, and where they cannot be seen."""
    (others,) = reasons(step, RULE, BOB)
    assert others == f"ending it also ends, or hangs up, pid 7 (sleep of bob, {WHY})"
    (unseen,) = reasons(step, RULE, None)
    assert "cannot be told" in unseen
    for own in ((), OWN):
        assert reasons(step, RULE, own) == []


@pytest.mark.parametrize("step", ENDING, ids=str)
def test_a_person_answers_for_them(step: RemedyStep) -> None:
    """--force lifts it for those that the person was shown, by hand alone: a rule that is forced is no person."""
    assert reasons(step, FORCED, BOB) == []
    for order in (
        replace(FORCED, forced=False), replace(RULE, forced=True, shown=FORCED.shown),
        replace(FORCED, shown=frozenset()), replace(FORCED, shown=frozenset({(7, 71)})),
    ):  # fmt: skip
        assert len(reasons(step, order, BOB)) == 1


@pytest.mark.parametrize("order", [RULE, FORCED, replace(FORCED, forced=False)])
@pytest.mark.parametrize("tied", [None, NEVER_LISTED, LINKED, SPARED, OF_THE_AGENT, OWN * (MAX_TIED + 1)])
@pytest.mark.parametrize("step", ENDING, ids=str)
def test_what_nothing_lifts(step: RemedyStep, tied: Sequence[TiedProcess] | None, order: RemedyRequest) -> None:
    """The never-list stands for each that ends with it, also forced; and so does not knowing who they are."""
    shown = replace(order, shown=frozenset(each.key for each in tied or ()))
    assert len(reasons(step, shown, tied)) == 1


def test_root_answers_for_those_of_a_unit() -> None:
    """A unit that root has named as shared may be restarted, but with nobody of the never-list; no signal is sent."""
    restart, shared = RemedyStep(StepKind.RESTART_UNIT, 1.0), ("a.service",)
    assert reasons(restart, RULE, BOB, shared) == []
    for tied in (None, NEVER_LISTED, LINKED, SPARED, OF_THE_AGENT):
        assert len(reasons(restart, RULE, tied, shared)) == 1
    assert len(reasons(RemedyStep(StepKind.KILL, 1.0), RULE, BOB, shared)) == 1


def test_what_ends_nobody() -> None:
    """A step that leaves the process alone is not refused for others."""
    assert reasons(RemedyStep(StepKind.RELEASE_CACHE, 1.0), RULE, BOB) == []
    assert reasons(RemedyStep(StepKind.SIGNAL, 1.0, signal.SIGWINCH), RULE, BOB) == []


@pytest.mark.parametrize("looks", [0, 1], ids=["at the judgment", "right before the step"])
def test_somebody_is_tied_to_it_meanwhile(store: Store, looks: int) -> None:
    """It is asked at each judgment and once more right before each step: who came in between withholds it."""
    world = World()

    def comes(world: World) -> None:
        world.ties = Ties(BOB)

    world.inner = [lambda _: None] * looks + [comes]
    outcome = run_ladder(world, plan(TERMINATE, KILL), store)
    assert outcome.result is RunResult.REFUSED
    assert "pid 7 (sleep of bob" in outcome.detail
    assert world.bodies[100].signals == []
