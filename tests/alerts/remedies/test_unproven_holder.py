"""A process that has not been shown to hold its memory is shown, and never acted on without a person's word."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuagent.collector.join import Joiner
from gpuagent.collector.listings import Holders
from gpuagent.core.snapshot import ProcessState
from gpuagent_alerts.remedies.observation import Condition, Observation, RemedyRequest
from gpuagent_alerts.remedies.safeguards.policy import AllowList, Policy
from gpuagent_alerts.remedies.safeguards.refusals import NotAllowListed
from gpuagent_alerts.remedies.snapshot_targets import target_of
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from gpuagent_alerts.remedies.target import Facts, Identity
from tests.agent.collector.test_listings import HELD, PID, STRANGER, UNPROVEN, answer, process
from tests.alerts.remedies.world import target

BY_RULE = RemedyRequest(alert="a1", alertname="GpuMemoryHigh")


@pytest.mark.parametrize(
    ("holders", "state", "proven"),
    [(Holders(), ProcessState.LIVE, True), (UNPROVEN, ProcessState.LIVE, False), (STRANGER, ProcessState.DEAD, None)],
)
def test_how_each_is_shown(holders: Holders, state: ProcessState, proven: bool | None) -> None:
    """Unproven ones are live, and their targets say so; strangers are no targets at all."""
    (reading,) = Joiner(host_pid_namespace=True).join(answer(100.0, {PID: HELD}), {PID: process(9.0)}, holders).readings
    found = target_of(reading, None)
    assert reading.state is state
    assert (None if found is None else found.holder_proven) is proven


def test_a_change_of_the_holders_is_seen_at_once() -> None:
    """What was joined before is not shown on when a process turns out to be the holder."""
    joiner, listed, infos = Joiner(host_pid_namespace=True), answer(100.0, {PID: HELD}), {PID: process(9.0)}
    assert joiner.join(listed, infos, UNPROVEN).readings[0].holder_unproven
    assert not joiner.join(listed, infos, Holders()).readings[0].holder_unproven


@pytest.mark.parametrize("kind", list(StepKind))
@pytest.mark.parametrize(
    ("order", "lifted"),
    [
        (BY_RULE, False),
        (replace(BY_RULE, forced=True), False),
        (RemedyRequest(), False),
        (RemedyRequest(forced=True), True),
    ],
)
def test_only_a_person_who_forces_it_answers_for_the_holder(kind: StepKind, order: RemedyRequest, lifted: bool) -> None:
    """No rule acts on it with any step, nor passes on to its neighbor; `--force` by hand lifts it."""
    of = replace(target(100), holder_proven=False)
    facts = Facts(Identity(of.id, of.uid, "program", "d", ""), "S", 1, uids=(1000,) * 4, own_root=False,
        namespace_pids=(100,))  # fmt: skip
    observation = Observation(
        1e6, Condition.HOLDS, target=of, target_listed=True, trusted=True, host_pid_namespace=True
    )
    policy = Policy(AllowList(users=(of.user,)))
    against = policy.refusals(RemedyStep(kind, 1.0, signal_number=10), order, observation, facts, 1e6, frozenset())
    found = [reason for reason in against if "not been shown to hold" in reason]
    assert len(found) == (0 if lifted else 1)
    assert not any(isinstance(reason, NotAllowListed) for reason in found)
