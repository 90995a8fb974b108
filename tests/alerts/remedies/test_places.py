"""Units and containers that the allow list does not mean: who is passed over, who is not, and in which words."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

import pytest

from gpuagent_alerts.remedies.observation import Condition, Observation, RemedyRequest
from gpuagent_alerts.remedies.safeguards.policy import AllowList, Policy
from gpuagent_alerts.remedies.safeguards.refusals import NotAllowListed
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from gpuagent_alerts.remedies.target import Facts, Target
from tests.alerts.remedies.world import KILL, RESTART, _identity, target

ID = "3f4e1c9a7b20" + "0" * 52
OF_UNIT = AllowList(units=("whisper.service",))
USR1 = RemedyStep(StepKind.SIGNAL, 1.0, signal_number=signal.SIGUSR1)
INTO_A_CONTAINER = (
    USR1,
    KILL,
    RemedyStep(StepKind.EXEC, 1.0, command=("/bin/x", "{pid}")),
    RemedyStep(StepKind.RESET, 1.0),
)
IN_SESSION, OF_ITS_OWN = frozenset({"place"}), frozenset[str]()


def reasons(
    allow: AllowList,
    step: RemedyStep,
    of: Target,
    *,
    own_root: bool | None = False,
    scope: str = "process",
    **changes: Any,
) -> list[str]:
    """Why not."""
    facts = Facts(
        identity=_identity(of), state="S", threads=1, uids=(of.uid,) * 4, root_user_namespace=True, own_root=own_root,
        namespace_pids=(of.pid,), user=of.user,
    )  # fmt: skip
    observation = Observation(1.0, Condition.HOLDS, target=of, target_listed=True)
    order = RemedyRequest(alert="a", alertname="Full", labels={})
    return list(Policy(allow).refusals(step, order, observation, replace(facts, **changes), 1e6, frozenset(), scope))


def passed_over(found: list[str]) -> bool:
    """Whether the next of the ranking may follow."""
    return bool(found) and all(isinstance(reason, NotAllowListed) for reason in found)


@pytest.mark.parametrize("step", [KILL, RESTART])
@pytest.mark.parametrize(
    ("place", "changes", "follows"),
    [
        (IN_SESSION, {}, True),
        (OF_ITS_OWN, {}, False),
        (IN_SESSION, {"own_root": True}, False),
        (IN_SESSION, {"own_root": None}, False),
    ],
)
def test_in_no_unit(step: RemedyStep, place: frozenset[str], changes: dict[str, Any], follows: bool) -> None:
    """P3, P10: passed over where root's cgroups alone say so; in one of its user's making it may have left the unit."""
    found = reasons(OF_UNIT, step, target(proven_names=place), **changes)
    assert found[0] == "it runs in no unit, and remedies.allow.units names some"
    assert passed_over(found) == follows


@pytest.mark.parametrize("step", [KILL, RESTART])
@pytest.mark.parametrize("proven", [True, False])
def test_in_a_container(step: RemedyStep, proven: bool) -> None:
    """P3, P10: a container is passed over for a unit where its id is root's word."""
    names = frozenset({"container"}) if proven else IN_SESSION
    inside = target(container_id=ID, container_runtime="docker", proven_names=names)
    assert passed_over(reasons(OF_UNIT, step, inside, namespace_pids=(100, 1))) == proven


def test_whom_the_list_means_is_not_passed_over() -> None:
    """P3: that the culprit runs in no unit is no reason to restart the unit of its neighbor."""
    found = reasons(AllowList(users=("svc",)), RESTART, target(proven_names=IN_SESSION))
    assert found == ["no systemd unit runs it: there is nothing to restart"]
    assert not passed_over(found)


def test_a_container_that_its_unit_runs() -> None:
    """A quadlet: what stands below its unit is no proof of a container, and its unit may be restarted all the same."""
    inside = target(
        unit="whisper.service", container_id=f"unproven/{ID}", container_runtime="podman",
        proven_names=frozenset({"unit", "place"}),
    )  # fmt: skip
    assert not reasons(OF_UNIT, RESTART, inside, own_root=True)
    assert any("use restart_unit" in reason for reason in reasons(OF_UNIT, KILL, inside, own_root=True))
    for step in INTO_A_CONTAINER:
        assert reasons(OF_UNIT, step, inside, own_root=True)
    assert reasons(AllowList(units=("a.service",)), RESTART, inside, own_root=True)
    assert any(
        "is not proven" in reason for reason in reasons(AllowList(containers=(ID,)), KILL, inside, own_root=True)
    )


@pytest.mark.parametrize("scope", ["process", "container"])
def test_why_a_container_is_not_proven(scope: str) -> None:
    """P10: the words hold for a path that is not known as well as for one that others may write to, and show it."""
    inside = target(container_id=f"unproven/{ID}", cgroup=f"/ecs/4711/{ID}", proven_names=IN_SESSION)
    (*_, said) = reasons(AllowList(containers=(ID,)), RemedyStep(StepKind.KILL, 1.0), inside, scope=scope)
    assert said.startswith(f"container unproven/{ID[:12]} is not proven: its cgroup /ecs/4711/{ID} ")
    assert "processes.container_cgroups" in said
    assert not isinstance(said, NotAllowListed)


@pytest.mark.parametrize("step", INTO_A_CONTAINER, ids=str)
@pytest.mark.parametrize("signs", [{"own_root": True}, {"namespace_pids": (100, 7)}], ids=["root", "pids"])
def test_a_unit_does_not_permit_what_reaches_into_a_container(step: RemedyStep, signs: dict[str, Any]) -> None:
    """P10: what reaches one process in a container needs the container's name, also below a unit that is allowed."""
    inside = target(unit="whisper.service", proven_names=frozenset({"unit", "place"}))
    assert any("not known by name: remedies" in reason for reason in reasons(OF_UNIT, step, inside, **signs))
    named = replace(inside, container_id=ID, proven_names=frozenset({"unit", "container"}))
    (said,) = [reason for reason in reasons(OF_UNIT, step, named, **signs) if "needs remedies" in reason]
    assert not isinstance(said, NotAllowListed)
    both = AllowList(units=("whisper.service",), containers=(ID,))
    assert not reasons(both, step, named, **signs)


@pytest.mark.parametrize("kind", [StepKind.NOTIFY, StepKind.RELEASE_CACHE, StepKind.RESTART_UNIT])
def test_what_a_unit_permits_in_a_container(kind: StepKind) -> None:
    """P10: what is done to the unit as a whole, and what disrupts nobody, goes by the unit's name alone."""
    inside = target(unit="whisper.service", proven_names=frozenset({"unit", "place"}))
    assert not reasons(OF_UNIT, RemedyStep(kind, 1.0), inside, own_root=True)


def test_a_signal_that_a_handler_catches_may_end_a_service() -> None:
    """P10: a handler is the process's own, and may be gone by then: SIGUSR1 ends whoever has none."""
    service = target(unit="whisper.service")
    (said,) = reasons(OF_UNIT, USR1, service, caught_signals=1 << (signal.SIGUSR1 - 1))
    assert said.startswith("systemd supervises it (whisper.service): a bare signal SIGUSR1 could leave it down")
    assert not reasons(OF_UNIT, replace(USR1, signal_number=signal.SIGWINCH), service)


def test_a_unit_of_a_users_own_manager() -> None:
    """P10: the system's systemd does not supervise it: a signal goes by its user, and no restart is advised for it."""
    own = target(unit="user@1000.service/jupyter.service", proven_names=frozenset())
    assert not reasons(AllowList(users=("svc",)), KILL, own)
    assert any("remedies.allow.users" in reason for reason in reasons(AllowList(users=("bob",)), KILL, own))
    assert reasons(AllowList(units=(own.unit,)), KILL, own)
    (said,) = reasons(AllowList(users=("svc",)), RESTART, own)
    assert said.endswith("only that user may command: terminate or kill its process instead")
    claimed = replace(own, unit=f"unproven/{own.unit}")
    assert any("systemd supervises it" in reason for reason in reasons(AllowList(users=("svc",)), KILL, claimed))


def test_a_container_whose_name_is_not_known() -> None:
    """P3: it may be the one that the list names: that is said, with what tells names, and nobody else is chosen."""
    unnamed = target(container_id=ID, container_runtime="docker", proven_names=frozenset({"container"}))
    (said,) = reasons(AllowList(containers=("trainer",)), KILL, unnamed)
    assert said == (
        f"container {ID[:12]} is not in remedies.allow.containers by its id, and its name is not known"
        " (processes.container_socket tells names)"
    )
    assert not isinstance(said, NotAllowListed)
    other = replace(unnamed, container_name="web")
    assert passed_over(reasons(AllowList(containers=("trainer",)), KILL, other))
    assert passed_over(reasons(AllowList(containers=("b2" * 32,)), KILL, unnamed))


def test_a_place_that_is_unknown() -> None:
    """P10: whose cgroup cannot be read may be in any unit or container: it is left alone, and nobody else is chosen."""
    (said,) = reasons(AllowList(users=("svc",)), KILL, target(cgroup="", proven_names=frozenset()))
    assert said.startswith("its cgroup cannot be read")
    assert not isinstance(said, NotAllowListed)
