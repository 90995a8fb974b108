"""Units and containers that the allow list does not mean: who is passed over, who is not, and in which words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuagent_alerts.remedies.policy import Allow, NotMeant, Policy
from gpuagent_alerts.remedies.steps import Kind, Step
from gpuagent_alerts.remedies.target import Facts, Target
from gpuagent_alerts.remedies.world import Condition, Order, Sight
from tests.alerts.remedies.world import KILL, RESTART, _identity, target

ID = "3f4e1c9a7b20" + "0" * 52
OF_UNIT = Allow(units=("whisper.service",))
IN_SESSION, OF_ITS_OWN = frozenset({"place"}), frozenset[str]()


def reasons(
    allow: Allow, step: Step, of: Target, *, own_root: bool | None = False, scope: str = "process", **changes: Any
) -> list[str]:
    """Why not."""
    facts = Facts(
        identity=_identity(of), state="S", threads=1, uids=(of.uid,) * 4, root_user_namespace=True, own_root=own_root,
        namespace_pids=(of.pid,), user=of.user,
    )  # fmt: skip
    sight = Sight(1.0, Condition.HOLDS, target=of, target_listed=True)
    order = Order(alert="a", alertname="Full", labels={})
    return list(Policy(allow).refusals(step, order, sight, replace(facts, **changes), 1e6, frozenset(), scope))


def passed_over(found: list[str]) -> bool:
    """Whether the next of the ranking may follow."""
    return bool(found) and all(isinstance(reason, NotMeant) for reason in found)


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
def test_in_no_unit(step: Step, place: frozenset[str], changes: dict[str, Any], follows: bool) -> None:
    """P3, P10: passed over where root's cgroups alone say so; in one of its user's making it may have left the unit."""
    found = reasons(OF_UNIT, step, target(proven_names=place), **changes)
    assert found[0] == "it runs in no unit, and remedies.allow.units names some"
    assert passed_over(found) == follows


@pytest.mark.parametrize("step", [KILL, RESTART])
@pytest.mark.parametrize("proven", [True, False])
def test_in_a_container(step: Step, proven: bool) -> None:
    """P3, P10: a container is passed over for a unit where its id is root's word."""
    names = frozenset({"container"}) if proven else IN_SESSION
    inside = target(container_id=ID, container_runtime="docker", proven_names=names)
    assert passed_over(reasons(OF_UNIT, step, inside, namespace_pids=(100, 1))) == proven


def test_whom_the_list_means_is_not_passed_over() -> None:
    """P3: that the culprit runs in no unit is no reason to restart the unit of its neighbor."""
    found = reasons(Allow(users=("svc",)), RESTART, target(proven_names=IN_SESSION))
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
    assert reasons(Allow(units=("a.service",)), RESTART, inside, own_root=True)
    assert any("is not proven" in reason for reason in reasons(Allow(containers=(ID,)), KILL, inside, own_root=True))


@pytest.mark.parametrize("scope", ["process", "container"])
def test_why_a_container_is_not_proven(scope: str) -> None:
    """P10: the words hold for a path that is not known as well as for one that others may write to, and show it."""
    inside = target(container_id=f"unproven/{ID}", cgroup=f"/ecs/4711/{ID}", proven_names=IN_SESSION)
    (*_, said) = reasons(Allow(containers=(ID,)), Step(Kind.KILL, 1.0), inside, scope=scope)
    assert said.startswith(f"container unproven/{ID[:12]} is not proven: its cgroup /ecs/4711/{ID} ")
    assert "processes.container_cgroups" in said
    assert not isinstance(said, NotMeant)
