"""The policy on whoever ends together with the first process of a pid namespace."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpuagent_alerts.remedies.policy import Allow, Policy
from gpuagent_alerts.remedies.steps import Kind, Step
from gpuagent_alerts.remedies.target import MAX_NAMESPACE_MEMBERS, Facts, Identity, NamespaceMember
from gpuagent_alerts.remedies.world import Condition, Order, Sight
from tests.alerts.remedies.world import target

BOB = (NamespaceMember(7, 70, ("sleep",), "bob", belongs=False),)
OWN = (NamespaceMember(8, 80, ("sleep",), "svc", belongs=True),)
NEVER_LISTED = (NamespaceMember(9, 90, ("worker", "sshd"), "svc", belongs=True),)
SPARED = (NamespaceMember(9, 90, ("worker",), "svc", belongs=True, oom_score_adjust=-1000),)
OF_THE_AGENT = (NamespaceMember(1, 10, ("worker",), "svc", belongs=True),)
RULE = Order(alert="a1", alertname="GpuMemoryHigh")
FORCED = Order(alert="", alertname="by hand", asked_by="root (uid 0)", forced=True, shown=frozenset({(7, 70)}))
ENDING = (
    Step(Kind.TERMINATE, 1.0), Step(Kind.KILL, 1.0), Step(Kind.SIGNAL, 1.0, signal.SIGUSR1),
    Step(Kind.RESTART_UNIT, 1.0),
)  # fmt: skip


def reasons(
    step: Step, order: Order, others: Sequence[NamespaceMember] | None, namespace_pids: tuple[int, ...]
) -> list[str]:
    """Return the refusals that speak of a namespace."""
    of = replace(target(100), unit="a.service", proven_names=frozenset({"unit"}))
    identity = Identity(of.id, of.uid, of.name, "d", of.cgroup, proven_names=of.proven_names)
    facts = Facts(
        identity, "S", 1, uids=(of.uid,) * 4, own_root=False, namespace_pids=namespace_pids,
        namespace_members=None if others is None else tuple(others),
    )  # fmt: skip
    sight = Sight(1e6, Condition.HOLDS, target=of, target_listed=True, trusted=True, host_pid_namespace=True)
    policy = Policy(Allow(users=(of.user,), units=("a.service",)))
    found = policy.refusals(step, order, sight, facts, 1e6, frozenset({1}))
    return [each for each in found if "pid namespace" in each or "ends with it" in each]


@pytest.mark.parametrize("step", ENDING, ids=str)
def test_what_ends_it_ends_them(step: Step) -> None:
    """Every step that ends the process is refused for others in its namespace, and where they cannot be seen."""
    (others,) = reasons(step, RULE, BOB, (100, 1))
    assert others.endswith("ending it also ends pid 7 (sleep of bob)")
    (unseen,) = reasons(step, RULE, None, (100, 1))
    assert "cannot be told" in unseen
    for own in ((), OWN):
        assert reasons(step, RULE, own, (100, 1)) == []


@pytest.mark.parametrize("step", ENDING, ids=str)
def test_a_person_answers_for_them(step: Step) -> None:
    """--force lifts it for those that the person was shown, by hand alone: a rule that is forced is no person."""
    assert reasons(step, FORCED, BOB, (100, 1)) == []
    for order in (
        replace(FORCED, forced=False), replace(RULE, forced=True, shown=FORCED.shown),
        replace(FORCED, shown=frozenset()), replace(FORCED, shown=frozenset({(7, 71)})),
    ):  # fmt: skip
        assert len(reasons(step, order, BOB, (100, 1))) == 1


@pytest.mark.parametrize("order", [RULE, FORCED, replace(FORCED, forced=False)])
@pytest.mark.parametrize("members", [None, NEVER_LISTED, SPARED, OF_THE_AGENT, OWN * (MAX_NAMESPACE_MEMBERS + 1)])
@pytest.mark.parametrize("step", ENDING, ids=str)
def test_what_nothing_lifts(step: Step, members: Sequence[NamespaceMember] | None, order: Order) -> None:
    """The never-list stands for each that ends with it, also forced; and so does not knowing who they are."""
    shown = replace(order, shown=frozenset(each.key for each in members or ()))
    assert len(reasons(step, shown, members, (100, 1))) == 1


def test_what_ends_nobody() -> None:
    """A step that leaves the process alone is not refused for others, nor is the end of another than the first one."""
    assert reasons(Step(Kind.RELEASE_CACHE, 1.0), RULE, BOB, (100, 1)) == []
    for pids in ((100, 7), (100,)):
        assert reasons(Step(Kind.KILL, 1.0), RULE, BOB, pids) == []
