"""What cools down is a unit, a container, or one command of one user: never the interpreter that all jobs share."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from gpuagent_alerts.remedies.audit import Audit
from gpuagent_alerts.remedies.audit_rows import BEGIN, INTENT, runs
from gpuagent_alerts.remedies.outcome import RunResult
from gpuagent_alerts.remedies.safeguards.limits import cooldown_key
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.world import BOOT, RESTART, RULES, TERMINATE, World, plan, run_ladder, target
from tests.alerts.store.damage import BEGUN

COOLS = replace(RULES, limits=replace(RULES.limits, cooldown=900.0))
ID = "c0ffee" + "0" * 58


def acted(store: Store, digest: str = "digest", **changes: Any) -> RunResult:
    """What a rule comes to on a process like this."""
    of = target(**changes)
    world = World(of)
    world.bodies[100].identity = replace(world.bodies[100].identity, command_digest=digest)
    policy = replace(
        COOLS.policy, allow=replace(COOLS.policy.allow, containers=("c0ffee000000",) if of.container_id else ())
    )
    step = RESTART if of.unit else TERMINATE
    return run_ladder(world, plan(step, of=of), store, replace(COOLS, policy=policy)).result


@pytest.mark.parametrize(
    "other",
    [{"digest": "another"}, {"uid": 2000}, {"unit": "a.service"}, {"container_id": ID}],
    ids=["another command", "another user", "a unit", "a container"],
)
def test_another_job_of_the_same_interpreter_is_not_cooling(store: Store, other: dict[str, Any]) -> None:
    """Two Python jobs have /usr/bin/python3 in common, and nothing else."""
    assert acted(store) is RunResult.RELEASED
    assert acted(store, **other) is RunResult.RELEASED


@pytest.mark.parametrize(
    "same",
    [{}, {"unit": "a.service"}, {"container_id": ID}],
    ids=["command", "unit", "container"],
)
def test_the_same_job_cools_down(store: Store, same: dict[str, Any]) -> None:
    """The same command of the same user; a unit or a container whatever runs in it."""
    assert acted(store, **same) is RunResult.RELEASED
    assert acted(store, digest="digest" if not same else "another", **same) is RunResult.REFUSED


def test_the_key() -> None:
    """The unit before the container, that before the command: who restarts a container gives it another id."""
    assert cooldown_key(target(unit="a.service", container_id=ID), "d") == "unit:a.service"
    assert cooldown_key(target(container_id=ID), "d") == f"container:{ID}"
    assert cooldown_key(target(uid=7), "d") == "user:7:d"


def test_digests_by_another_key_cool_the_user_down(store: Store) -> None:
    """A key that was lost, or a digest of an older version: nobody knows which command it was, so it may be any."""
    assert acted(store, digest="old") is RunResult.RELEASED
    assert acted(store, digest="k1-aa", uid=2000) is RunResult.RELEASED
    assert acted(store, digest="k1-aa") is RunResult.REFUSED
    assert acted(store, digest="k1-bb", uid=2000) is RunResult.RELEASED
    assert acted(store, digest="k2-bb", uid=2000) is RunResult.REFUSED


def test_a_plain_digest_of_an_older_version_is_not_shown(store: Store) -> None:
    """It can be guessed back: it is left out of what people and programs are shown, and still cools down."""
    assert acted(store, digest="0123456789abcdef") is RunResult.RELEASED
    assert acted(store, digest="k1-aa", uid=2000) is RunResult.RELEASED
    old, new = runs(Audit(store, World().clock, BOOT).events())
    assert "cooldown_key" not in old
    assert new["cooldown_key"] == "user:2000:k1-aa"


def test_rows_of_an_older_version(store: Store) -> None:
    """They have a program in the place of the key: they still count for the hour, and cool nobody down."""
    audit = Audit(store, World().clock, BOOT)
    run = audit.begin({**BEGUN, "gpu_uuid": "GPU-0", "unit": "", "program": "/usr/bin/python3", "dry_run": False})
    audit.write(run, INTENT, {"step": "SIGKILL", "disrupts": True, "dry_run": False})
    (past,) = audit.past(dry_run=False)
    assert past.cooldown_key == ""
    assert acted(store) is RunResult.RELEASED
    hourly = replace(COOLS, limits=replace(COOLS.limits, per_hour=1))
    assert run_ladder(World(), plan(TERMINATE), store, hourly).result is RunResult.REFUSED


def test_the_record_has_the_key_and_not_the_command(store: Store) -> None:
    """A digest: the raw command line may hold secrets."""
    assert acted(store) is RunResult.RELEASED
    (begin,) = [event for event in Audit(store, World().clock, BOOT).events() if event.kind == BEGIN]
    assert begin.data["cooldown_key"] == "user:1000:digest"
    assert "program" not in begin.data


def test_a_dry_run_says_that_nothing_was_done(store: Store) -> None:
    """A cool-down after a dry run tells of what would have been done: nobody reads of an action that never was."""
    assert run_ladder(World(), plan(TERMINATE, dry_run=True), store, COOLS).result is RunResult.DRY_RUN
    outcome = run_ladder(World(), plan(TERMINATE, dry_run=True), store, COOLS)
    assert outcome.result is RunResult.REFUSED
    assert re.match(r"this command of uid 1000 would have been acted on \d+ s ago \(dry run\): ", outcome.detail)
    assert run_ladder(World(), plan(TERMINATE), store, COOLS).result is RunResult.RELEASED
    assert " was acted on " in run_ladder(World(), plan(TERMINATE), store, COOLS).detail
