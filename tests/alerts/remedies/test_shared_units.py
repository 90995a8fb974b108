"""Units that run other people's work: who may have them restarted, and on what condition."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuagent_alerts.remedies.audit import Audit
from gpuagent_alerts.remedies.audit_rows import RESULT
from gpuagent_alerts.remedies.observation import RemedyRequest, UnitPermission
from gpuagent_alerts.remedies.outcome import RunResult
from gpuagent_alerts.remedies.plan import Plan
from gpuagent_alerts.remedies.safeguards.never_list import NEVER_UNITS, SHARED_UNITS
from gpuagent_alerts.remedies.safeguards.policy import AllowList, Policy
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.world import BOOT, ORDER, RELEASE, RESTART, RULES, World, plan, run_ladder, target

UNIT = "whisper.service"
SHARING = "whisper.service runs processes of other users: alice (2); name it in remedies.allow.shared_units"
NAMED = replace(RULES, policy=Policy(AllowList(shared_units=(UNIT,))))
FORCED = RemedyRequest(asked_by="alice (uid 1000)", forced=True)
BY_HAND = RemedyRequest(asked_by="alice (uid 1000)")


def world(unit: str = UNIT) -> World:
    """One process on the GPU, of a unit in which others work."""
    made = World(target(unit=unit))
    made.unit_sharing = SHARING
    return made


def restart(unit: str = UNIT, request: RemedyRequest = ORDER, *, dry_run: bool = False) -> Plan:
    """For real, unless said otherwise."""
    return plan(RESTART, of=target(unit=unit), request=request, dry_run=dry_run)


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("order", [ORDER, BY_HAND])
def test_it_is_left_alone(store: Store, order: RemedyRequest, dry_run: bool) -> None:
    """Neither a rule nor a person's plain word ends others' work, and a dry run says the same."""
    made = world()
    outcome = run_ladder(made, restart(request=order, dry_run=dry_run), store)
    assert (outcome.result, outcome.detail, made.log) == (RunResult.REFUSED, SHARING, [])


def test_one_that_is_named(store: Store) -> None:
    """`shared_units` permits it, and needs no second entry in `units`."""
    made = world()
    assert run_ladder(made, restart(), store, NAMED).result is RunResult.RELEASED
    assert made.log == [("restart_unit", 100)]


def test_force_answers_for_nobody_in_a_unit(store: Store) -> None:
    """KILL-01: who else is in the unit a person is not shown: `--force` lifts the allow list, and nothing of this."""
    made = world()
    for order in (FORCED, replace(ORDER, forced=True)):
        refused = run_ladder(made, restart(request=order), store)
        assert (refused.result, refused.detail) == (RunResult.REFUSED, SHARING)
    assert made.log == []


def test_what_nothing_lifts(store: Store) -> None:
    """The never-list and systemd's start limit stand against `shared_units` and `--force`."""
    made = world()
    made.unit_problem = "one more could leave it down"
    assert run_ladder(made, restart(request=FORCED), store, NAMED).result is RunResult.REFUSED
    docker = replace(RULES, policy=Policy(AllowList(shared_units=("docker.service",))))
    assert "never-list" in run_ladder(world("docker.service"), restart("docker.service", FORCED), store, docker).detail
    own = replace(NAMED, policy=replace(NAMED.policy, never=("whisper*",)))
    assert "never-list" in run_ladder(world(), restart(request=FORCED), store, own).detail
    assert made.log == []


def test_others_begin_between_the_decision_and_the_restart(store: Store) -> None:
    """The look right before the restart ends it, and the record says that nothing was done."""
    made = world()
    made.unit_sharing = ""

    def somebody_logs_in(world: World) -> None:
        world.unit_sharing = SHARING

    made.before_restart = somebody_logs_in
    outcome = run_ladder(made, restart(), store)
    assert (outcome.result, outcome.detail, made.log) == (RunResult.REFUSED, SHARING, [])
    (result,) = [event.data for event in Audit(store, made.clock, BOOT).events() if event.kind == RESULT]
    assert (result["ok"], result["detail"]) == (False, f"not done: {SHARING}")


def test_nobody_is_warned_of_what_will_be_refused(store: Store) -> None:
    """A notice of a restart is refused as the restart is."""
    made = world()
    steps = (RemedyStep(StepKind.NOTIFY, 30.0), RESTART)
    assert run_ladder(made, plan(*steps, of=target(unit=UNIT)), store).result is RunResult.REFUSED
    assert made.log == []


def test_other_steps_do_not_ask(store: Store) -> None:
    """Emptying the cache of one's own process in a shared unit harms nobody."""
    made = world()
    run_ladder(made, plan(RELEASE, of=target(unit=UNIT)), store)
    assert made.log == [("release_cache", 100)]


@pytest.mark.parametrize(
    "unit", ["jupyterhub.service", "gitlab-runner-a100.service", "actions.runner.org-repo.h1.service"]
)
def test_known_to_run_the_work_of_others(store: Store, unit: str) -> None:
    """Jobs of many under one user cannot be told from the unit's own: such units need permission by their name."""
    made = world(unit)
    made.unit_sharing = ""
    refused = run_ladder(made, restart(unit), store)
    assert refused.result is RunResult.REFUSED
    assert "name it in remedies.allow.shared_units" in refused.detail
    assert "run systemctl yourself" in refused.detail
    assert made.log == []
    named = replace(RULES, policy=Policy(AllowList(shared_units=(unit,))))
    assert run_ladder(made, restart(unit), store, named).result is RunResult.RELEASED


def test_shared_units_narrow_as_units_do(store: Store) -> None:
    """All keys given must hold: a unit in neither list is not permitted by its user alone."""
    rules = replace(RULES, policy=Policy(AllowList(users=("svc",), shared_units=("other.service",))))
    made = world()
    made.unit_sharing = ""
    assert "not in remedies.allow.units" in run_ladder(made, restart(), store, rules).detail
    assert AllowList(shared_units=("a.service",)).names_nobody is False


def test_permission_by_all_names() -> None:
    """One name on a list is enough, whichever it is; a pattern that permission lifts does not hide the other list."""
    permission = UnitPermission(never=NEVER_UNITS, known_shared=SHARED_UNITS)
    assert permission.against({"a.service", "b.service"}) == ""
    assert "dbus.service is on the never-list" in permission.against({"a.service", "dbus.service"})
    shared = replace(permission, shared=True)
    assert shared.against({"jupyterhub.service"}) == ""
    assert "never-list" in shared.against({"jupyterhub.service", "slurmd.service"})
