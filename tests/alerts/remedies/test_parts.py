"""Budgets, permissions, and what the configuration becomes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.config.models import Config
from gpuagent.config.remedy_settings import budgets_of, ladders_of, rules_of, signal_number, step_of
from gpuagent.core.snapshot import ClientReading, ProcessReading, ProcessState, Snapshot
from gpuagent_alerts.remedies.candidates import budget_uses
from gpuagent_alerts.remedies.safeguards.victim import VictimPolicy
from gpuagent_alerts.remedies.snapshot_targets import relatives, target_of
from gpuagent_alerts.remedies.steps import StepKind
from tests.agent.config.loading import faults_of, load, write
from tests.fakes.snapshots import full_snapshot

GIB = 2**30


PROVEN = frozenset({"unit", "container", "job"})


def config(folder: Path, text: str) -> Config:
    """From a file."""
    return load(write(folder, text))


def known(snapshot: Snapshot) -> ProcessReading:
    """A process of which everything is known."""
    return next(each for each in snapshot.processes if each.info is not None and each.used_bytes)


def test_a_budget_sums_up_what_it_matches(tmp_path: Path) -> None:
    """On each GPU whose processes are known, 0 where nothing matches; an app by its client, and by no lie about it."""
    snapshot = replace(full_snapshot(), clients={})
    process = known(snapshot)
    assert process.info is not None
    text = (
        f"budgets: [{{match: {{user: {process.info.user}}}, memory: 1GiB}}, "
        f"{{name: whisper, match: {{app: whisper, user: {process.info.user}}}, memory: 1GiB}}]"
    )
    budgets = budgets_of(config(tmp_path, text).budgets)
    assert [budget.label for budget in budgets] == [process.info.user, "whisper"]
    found = {(use.budget, use.uuid): use.used_bytes for use in budget_uses(budgets, snapshot)}
    expected = sum(
        each.used_bytes or 0
        for each in snapshot.processes
        if each.gpu_uuid == process.gpu_uuid and each.info is not None and each.info.user == process.info.user
    )
    assert found[process.info.user, process.gpu_uuid] == expected > 0
    assert found["whisper", process.gpu_uuid] == 0
    client = ClientReading(process.info.id, "whisper")
    with_client = replace(snapshot, clients={process.pid: client})
    found = {(use.budget, use.uuid): use.used_bytes for use in budget_uses(budgets, with_client)}
    assert found["whisper", process.gpu_uuid] == process.used_bytes
    other = replace(client, id=client.id._replace(start_ticks=client.id.start_ticks + 1))
    found = {
        (use.budget, use.uuid): use.used_bytes
        for use in budget_uses(budgets, replace(snapshot, clients={process.pid: other}))
    }
    assert found["whisper", process.gpu_uuid] == 0
    stranger = process._replace(info=replace(process.info, user="mallory", uid=6666))
    found = {
        (use.budget, use.uuid): use.used_bytes
        for use in budget_uses(budgets, replace(with_client, processes=(stranger,)))
    }
    assert found["whisper", process.gpu_uuid] == 0, "another user's process that calls itself so counts for nobody"
    unproven = replace(with_client, processes=tuple(each._replace(holder_unproven=True) for each in snapshot.processes))
    assert not any(use.used_bytes for use in budget_uses(budgets, unproven)), "it may be a dead process's memory"


def test_a_ladder_by_index_is_refused(tmp_path: Path) -> None:
    """KILL-09: an index may come to mean another GPU while the agent runs; a UUID never does."""

    def told(*match: str) -> list[str]:
        ladder = {"match": ['alertname="Full"', *match], "steps": [{"notify": {}}]}
        return [str(fault) for fault in faults_of(write(tmp_path, json.dumps({"remedies": {"ladders": [ladder]}})))]

    for text in ('gpu="1"', 'gpu!="0"', 'gpu=~"0|1"'):
        (fault,) = told(text)
        assert "by its index" in fault
        assert "a uuid beside it" in fault
    config(
        tmp_path,
        json.dumps({"remedies": {"ladders": [{"match": ['gpu="1"', 'uuid="GPU-1"'], "steps": [{"notify": {}}]}]}}),
    )


def test_a_budget_of_an_app_alone_is_refused(tmp_path: Path) -> None:
    """A name that any process may give itself needs a fact beside it that the process cannot choose."""
    (fault,) = faults_of(write(tmp_path, "budgets: [{match: {app: whisper}, memory: 1GiB}]"))
    assert "any process may give itself" in str(fault)
    assert "a user, unit or container" in str(fault)


def test_names_of_programs_permit_nothing(tmp_path: Path) -> None:
    """A process chooses its own name: `allow.commands` is refused, with what to write in its place."""
    faults = faults_of(write(tmp_path, "remedies: {allow: {commands: [python3]}}"))
    assert any("a process chooses its own name" in str(fault) for fault in faults)


def test_a_budget_of_a_container(tmp_path: Path) -> None:
    """By the whole id or the 12 digits that runtimes show, by no shorter piece, and by no name that a user chose."""
    snapshot = full_snapshot()
    process = known(snapshot)
    assert process.info is not None
    container = "0123456789ab" + "c" * 52
    proven = frozenset({"container"})
    inside = process._replace(info=replace(process.info, container_id=container, proven_names=proven))
    claims = process._replace(info=replace(process.info, container_id=container, proven_names=frozenset()))
    budgets = budgets_of(config(tmp_path, f'budgets: [{{match: {{container: "{container}"}}, memory: 1GiB}}]').budgets)
    assert not any(use.used_bytes for use in budget_uses(budgets, replace(snapshot, processes=(claims,))))
    snapshot = replace(snapshot, processes=(inside,))
    for written, counted in ((container, True), (container[:12], True), (container[:6], False)):
        budget = f'budgets: [{{match: {{container: "{written}"}}, memory: 1GiB}}]'
        budgets = budgets_of(config(tmp_path, f"processes: {{container_socket: /d.sock}}\n{budget}").budgets)
        used = {use.uuid: use.used_bytes for use in budget_uses(budgets, snapshot)}
        assert bool(used[process.gpu_uuid]) == counted


def test_the_configuration_becomes_rules(tmp_path: Path) -> None:
    """Every key has its effect."""
    text = """
remedies:
  dry_run: false
  allow: {users: [svc], units: [a.service], shared_units: [b.service], gpus: ["0"], min_age: 5m, min_memory: 1GiB}
  never: [important*]
  evidence: [balanced]
  mps_clients: true
  restored_processes: true
  limits: {pause: 1s, per_hour: 3, per_day: 4, unit_per_hour: 2, cooldown: 7s, breaker: 9}
  ladders:
    - match: ['alertname="Full"']
      victim: idle
      scope: job
      dry_run: true
      steps: [{notify: {wait: 1s}}, {signal: {name: usr1}}, {exec: {command: [scancel, "{slurm_job}"]}}, {kill: {}}]
"""
    remedies = config(tmp_path, text).remedies
    (ladder,) = ladders_of(remedies)
    assert ladder.matches({"alertname": "Full"})
    assert not ladder.matches({"alertname": "Other"})
    assert (ladder.victim, ladder.scope, ladder.dry_run) == (VictimPolicy.IDLE, "job", True)
    assert [step.kind for step in ladder.steps] == [StepKind.NOTIFY, StepKind.SIGNAL, StepKind.EXEC, StepKind.KILL]
    assert ladder.steps[1].signal_number == 10
    rules = rules_of(remedies)
    assert rules.policy.allow.gpus == ("0",)
    assert (rules.policy.allow.units, rules.policy.allow.shared_units) == (("a.service",), ("b.service",))
    assert rules.policy.allow.min_age == 300
    assert rules.policy.allow.min_memory == GIB
    assert (rules.policy.never, rules.policy.evidence, rules.policy.mps_clients) == (
        ("important*",),
        ("balanced",),
        True,
    )
    assert rules.policy.restored_processes is True
    limits = rules.limits
    assert (limits.pause, limits.per_hour, limits.per_day) == (1, 3, 4)
    assert (limits.unit_per_hour, limits.cooldown, limits.breaker) == (2, 7, 9)


def test_all_steps_are_known(tmp_path: Path) -> None:
    """Each key of a step is one kind of step."""
    steps = "[{release_cache: {}}, {reset: {}}, {terminate: {}}, {restart_unit: {}}]"
    ladder = config(tmp_path, f"remedies: {{ladders: [{{match: ['a=\"b\"'], steps: {steps}}}]}}").remedies.ladders[0]
    assert [step_of(step).kind for step in ladder.steps] == [
        StepKind.RELEASE_CACHE, StepKind.RESET, StepKind.TERMINATE, StepKind.RESTART_UNIT,
    ]  # fmt: skip


def test_a_signal_that_is_none(tmp_path: Path) -> None:
    """Told when the file is read, with its place."""
    text = "remedies:\n  ladders:\n    - match: ['a=\"b\"']\n      steps: [{signal: {name: USR9}}]\n"
    (fault,) = faults_of(write(tmp_path, text))
    assert (fault.line, "USR9" in fault.problem) == (4, True)
    with pytest.raises(ValueError, match="no signal"):
        signal_number("USR9")


def test_for_real_needs_an_allow_list(tmp_path: Path) -> None:
    """Also where only one ladder is for real."""
    text = "remedies:\n  ladders:\n    - match: ['a=\"b\"']\n      dry_run: false\n      steps: [{kill: {}}]\n"
    (fault,) = faults_of(write(tmp_path, text))
    assert "nothing may be acted on" in fault.problem


def test_who_is_no_target() -> None:
    """KILL-02, KILL-05: a process whose memory, start or /proc is not known is nobody's target; others still are."""
    process = known(full_snapshot())
    assert target_of(process, None) is not None
    assert target_of(process._replace(used_bytes=None), None) is None
    assert target_of(process._replace(info=None, state=ProcessState.DEAD), None) is None
    assert process.info is not None
    hidden = replace(process.info, id=process.info.id._replace(start_ticks=-1))
    assert target_of(process._replace(info=hidden), None) is None


def test_relatives() -> None:
    """Children, and what shares a proven container, unit or job; the same user, or a claimed name, makes nobody one."""
    process = known(full_snapshot())
    target = target_of(process, None)
    assert target is not None
    target = replace(target, container_id="", unit="", slurm_job="", parent_pid=1, proven_names=PROVEN)
    other = replace(target, id=target.id._replace(pid=target.pid + 1))
    assert relatives(target, [target, other]) == ()
    child = replace(other, parent_pid=target.pid)
    assert relatives(target, [target, child]) == (child,)
    for names in ({"container_id": "c1"}, {"slurm_job": "7"}, {"unit": "a.service"}):
        inside, beside = (replace(each, **names) for each in (target, other))  # type: ignore[arg-type]
        assert relatives(inside, [inside, beside]) == (beside,)
        claims = replace(beside, proven_names=frozenset())
        assert relatives(inside, [claims]) == relatives(claims, [inside]) == ()


@pytest.mark.parametrize("name", ["STOP", "SIGTSTP", "TTIN", "ttou", "CHLD", "CONT", "URG", "SEGV", "ALRM", "PWR"])
def test_a_signal_that_asks_for_nothing(tmp_path: Path, name: str) -> None:
    """CFG-01: a signal that stops a process for good, or asks it for nothing, is refused with those that do."""
    text = f"remedies:\n  ladders:\n    - match: ['a=\"b\"']\n      steps: [{{signal: {{name: {name}}}}}]\n"
    (fault,) = faults_of(write(tmp_path, text))
    assert fault.line == 4
    assert "one of ABRT, HUP, INT" in f"{fault.problem} {fault}"
