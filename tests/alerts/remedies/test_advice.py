"""Every refusal that a person can meet names its way out: the option, or the key and its file."""

from __future__ import annotations

import ast
import asyncio
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from gpuagent_alerts.remedies import manager, observer, pinned_processes, run
from gpuagent_alerts.remedies import target as target_module
from gpuagent_alerts.remedies.execution import executor, units
from gpuagent_alerts.remedies.facts import container_processes, unit_processes
from gpuagent_alerts.remedies.observation import RemedyRequest
from gpuagent_alerts.remedies.plan import Plan
from gpuagent_alerts.remedies.rehearsal import accepted_advice, objections
from gpuagent_alerts.remedies.safeguards import policy, step_prerequisites
from gpuagent_alerts.remedies.safeguards import refusals as refusal_module
from gpuagent_alerts.remedies.safeguards.never_list import is_supervised
from gpuagent_alerts.remedies.safeguards.policy import AllowList, Policy
from gpuagent_alerts.remedies.safeguards.refusals import advice_on, unproven_job
from tests.alerts.remedies.world import KILL, TERMINATE, World, target

FILE = "/etc/gpuagent/gpuagent.yaml"
RULES_ONLY = "x needs x, and the process has none"
"""What a person cannot ask for: a program of the configuration."""
NO_ENTRY = (
    "No option of gpuagent lifts this. If all of it may end, an administrator can end it with what started it:"
    " systemctl, its job manager, its container runtime."
)
ELSEWHERE = (
    "GPU 0 cannot be read (blind)", "systemd has no unit a.service", "a.service refuses to be restarted by hand",
    "systemd cannot be asked about a.service: no answer", "'a' is not the name of a service",
    "a.service was started up to 4 times within its start limit of 5: one more could leave it down",
    "a.service has Wants=x.timer, which is inactive, and would be started: only a .service may be; start x.timer first",
    "a.service has BindsTo=x.service, which is inactive: a.service could stay down; see to x.service first",
    "a.service has ExecCondition=, and whether that holds now cannot be known; run systemctl yourself",
    "a.service has ConditionUser=, and only systemd can tell whether that holds: its environment is not the agent's",
    "a.service has NeedDaemonReload=yes: systemd goes by what it has loaded; run systemctl daemon-reload",
    "a.service cannot be restarted: it has RuntimeDirectory=ml, which b.service has as well, and its end removes that",
    "restarting a.service also restarts b.socket: only a .service or a .target may be",
    "starting a.service stops b.service", "restarting a.service stops, for good, b.service",
    "it cannot be seen what a restart of a.service starts and stops: systemd does not answer",
    "remedies are off: there is no state directory to record them in",
    "remedies are off: others may have written the state: x is writable by everybody: x; then restart gpuagent",
    "not recorded, so not done: disk full",
    "not recorded, so not done: database is locked",
    "the configuration has changed since it was decided",
)  # fmt: skip
"""What the observer, systemd's unit and the store add."""


def words(node: ast.expr) -> str:
    """A text of the code, with an x in each place that is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(words(each) if isinstance(each, ast.Constant) else "x" for each in node.values)
    return ""


def refusals(module: ModuleType) -> Iterator[str]:
    """Every text that a function of this module yields, or refuses or doubts with."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Yield) and node.value is not None:
            yield words(node.value)
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in {"_refused", "ActionRefused", "TemporaryRefusal"}:
                yield from (words(each) for each in node.args)
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.JoinedStr) and module in RETURNING:
            yield words(node.value)


RETURNING = (manager, observer, executor, units, container_processes, unit_processes)
"""Modules of which a function returns a refusal as a text."""
PARTS = (
    "it has left the GPU and come back",
    "comes from a login", "is in a pid namespace of its own", "is in container x", "xx", "x times within",
    "x was started up to x", "x was restarted, and is", "x (GPU x", "org.freedesktop",
    "pid x of x", "GPU x", "x at", "has held the memory", "pid x (x): x", " (x of x",
)  # fmt: skip
"""Beginnings of returned texts that are a part of a refusal, or no refusal; of a rule alone the last."""
FOUND = sorted(
    text
    for text in {
        text
        for module in (policy, step_prerequisites, refusal_module, run, pinned_processes, target_module, *RETURNING)
        for text in refusals(module)
    }
    if text and not (text.startswith(PARTS) or text.count(" ") < 2)
)


def test_there_are_refusals() -> None:
    """The search finds those of every module: a search that finds nothing shows nothing."""
    for part in (
        "allow.users",
        "systemd supervises it",
        "fresh reading",
        "cannot be held",
        "under way",
        "has changed",
        "according to systemd",
        "container runtime",
        "have the same UUID",
    ):
        assert any(part in text.replace("allow.x", "allow.users") for text in FOUND), part


@pytest.mark.parametrize("text", [text for text in (*FOUND, *ELSEWHERE) if text != RULES_ONLY])
def test_every_refusal_has_a_way_out(text: str) -> None:
    """One text, with nothing left to fill in."""
    (advice,) = advice_on([text], target(unit="a.service", parent_pid=7), FILE)
    assert advice.endswith(".")
    assert "{" not in advice
    assert advice != NO_ENTRY


@pytest.mark.parametrize("unit", ["sshd.service", "docker.service", "gpuagent.service"])
def test_no_restart_is_advised_that_would_be_refused(unit: str) -> None:
    """A signal to a process of a unit on the never-list: `--restart-unit` would be refused in its turn."""
    reason = f"systemd supervises it ({unit}): a bare SIGTERM could leave it down; use restart_unit"
    (advice,) = advice_on([reason], target(unit=unit), FILE)
    assert "--restart-unit" not in advice
    assert "sudo kill 100" in advice


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("svc is not in remedies.allow.users", f"Say --force, or add it to remedies.allow.users in {FILE}."),
        ("it is 3 s old, younger than remedies.allow.min_age",
         f"Say --force, or lower remedies.allow.min_age in {FILE}."),
        ("systemd supervises it (a.service): a bare SIGTERM could leave it down; use restart_unit",
         "Say --restart-unit, or stop the unit yourself: systemctl stop a.service."),
        ("it is a client of MPS: ending one can harm the others (remedies.mps_clients permits it)",
         f"Set remedies.mps_clients: true in {FILE}; --force does not lift this."),
        ("it has ended and is a zombie: its parent has to reap it, and no signal helps",
         "End or restart its parent, pid 7: only the parent can reap it."),
        ("its name has changed from 'python' to 'ray::train'",
         ("Look again with `gpuagent ps`, and ask again if it is still meant. A program that renames itself all the"
          " time (Ray's workers, setproctitle) cannot be told from another one: end it with what started it (ray stop),"
          " or restart its unit.")),
        ("container 0a1b is not proven: its cgroup /system.slice/a.service/libpod-payload-0a1b may be one that others",
         ("Podman made it below a.service (a quadlet): restart the unit. Name a.service in remedies.allow.units"
          f" in {FILE} and take gpuagent kill --restart-unit 100, or restart it yourself: systemctl restart"
          " a.service.")),
        ("it runs with the rights of more than one user (uids 1000, 0)", "Say --force if you know what it is."),
        ("SIGTERM: not permitted: Operation not permitted",
         "Give the agent the right to signal: systemd/gpuagent-kill.conf as a drop-in (CAP_KILL)."),
    ],
)  # fmt: skip
def test_the_way_out(reason: str, advice: str) -> None:
    """By name: what a person types or writes next."""
    assert advice_on([reason], target(unit="a.service", parent_pid=7), FILE) == [advice]


def test_each_is_said_once() -> None:
    """Two reasons with one way out, and a name that looks like a place to fill in."""
    of = target(unit="{file}.service")
    both = ["container x is not in remedies.allow.containers", "and remedies.allow.containers names none"]
    assert len(advice_on(both, of, FILE)) == 1
    assert "{file}.service" in advice_on(["systemd supervises it (x): ..."], of, FILE)[0]
    assert advice_on(["something that nobody knows"], of, FILE) == [NO_ENTRY]


@pytest.mark.parametrize(
    ("reason", "part"),
    [
        ("database is locked", "Another program has the agent's state file open"),
        ("another program is using the state file", "Another program has the agent's state file open"),
        (
            "the audit log is not on the disk: /s/state.db is not the file that was opened (it was removed); x",
            "removed",
        ),
        ("the audit log is not on the disk: /s/state.db is damaged (x); x", "gpuagent status"),
        ("the audit log is not on the disk: /s/state.db cannot be used (Is a directory); x", "gpuagent status"),
        ("the audit log is not on the disk: writing to /s/state.db failed (database or disk is full); x", "has room"),
        ("database or disk is full", "has room"),
    ],
)
def test_a_record_that_cannot_be_written_has_the_way_out_that_fits(reason: str, part: str) -> None:
    """Nobody looks for room on the disk because another program has locked the file, or somebody has removed it."""
    (advice,) = advice_on([f"not recorded, so not done: {reason}"], target(7), FILE)
    assert part in advice


def test_nobody_is_sent_to_try_force_again() -> None:
    """Where --force was given it is no advice: what is left is said in its place."""
    of = target(unit="a.service")
    others = "it is the first process of a pid namespace: ending it also ends pid 7 (sleep of bob)"
    for reason in (*FOUND, others):
        assert not any("ay --force" in each for each in advice_on([reason], of, FILE, forced=True)), reason
    (asked,) = advice_on([others], of, FILE)
    (again,) = advice_on([others], of, FILE, forced=True)
    assert asked.startswith("Say --force")
    assert again.startswith("Ask again: ")


SUPERVISED = "systemd supervises it ({unit}): a bare SIGTERM could leave it down; use restart_unit"


@pytest.mark.parametrize(
    ("unit", "policy_keys", "changes", "says"),
    [
        ("a.service", {}, {}, ["Say --restart-unit, or stop the unit yourself: systemctl stop a.service."]),
        ("docker.service", {}, {}, ["on the never-list", "sudo kill 100"]),
        ("gitlab-runner.service", {}, {},
         ["With --restart-unit it would be refused too: gitlab-runner.service runs other people's work",
          "Name gitlab-runner.service in remedies.allow.shared_units", "sudo kill 100"]),
        ("a.service", {"never": ("a",)}, {},
         ["With --restart-unit it would be refused too: a.service is on the never-list", "sudo kill 100"]),
        ("a.service", {}, {"unit_sharing": "a.service runs processes of other users: pid 9 (x of bob)"},
         ["With --restart-unit it would be refused too: a.service runs processes of other users",
          "--force ends it alone"]),
    ],
)  # fmt: skip
def test_only_what_would_be_accepted_is_advised(
    unit: str, policy_keys: dict[str, Any], changes: dict[str, Any], says: list[str]
) -> None:
    """An option that the same safeguards would refuse is no advice: an administrator is told what is left to do."""
    of = target(unit=unit)
    world = World(of)
    for name, value in changes.items():
        setattr(world, name, value)
    asked = Plan(RemedyRequest(asked_by="root (uid 0)"), of, (TERMINATE, KILL), dry_run=False)
    found = asyncio.run(
        accepted_advice(
            asked, [SUPERVISED.format(unit=unit)], FILE, policy=Policy(**policy_keys), observer=world, executor=world,
            now_seconds=world.clock.now(),
        )
    )  # fmt: skip
    text = " ".join(found)
    for part in says:
        assert part in text
    assert ("Say --restart-unit" in text) is (len(says) == 1)
    assert not world.log


@pytest.mark.parametrize(("name", "accepted"), [("python", True), ("sshd", False)])
def test_force_is_advised_where_it_is_the_only_obstacle(name: str, accepted: bool) -> None:
    """Beside a refusal that --force does not lift, nobody is sent to try it."""
    of = target(name=name)
    world = World(of)
    lists = Policy(AllowList(users=("bob",)))
    asked = Plan(RemedyRequest(asked_by="root (uid 0)"), of, (KILL,), dry_run=False)
    reasons = asyncio.run(objections(asked, lists, world, world, world.clock.now()))
    found = asyncio.run(
        accepted_advice(asked, reasons, FILE, policy=lists, observer=world, executor=world, now_seconds=1e6)
    )
    assert any("Say --force" in each for each in found) is accepted
    assert any(each.startswith("With --force it would be refused too") for each in found) is not accepted
    assert not world.log


def test_an_entry_that_cannot_be_looked_up() -> None:
    """The entry is what has to be mended: neither an option nor the owner of the process lifts it."""
    (advice,) = advice_on(["it cannot be told whether it is on the never-list (/srv/*): x"], target(), FILE)
    assert FILE in advice


@pytest.mark.parametrize(
    ("cgroup", "words"),
    [
        ("/system.slice/n1_slurmstepd.scope/job_7/step_0", "its slurmd has a name of its own"),
        ("/slurm_n1/uid_1000/job_7", "its slurmd has a name of its own"),
        ("/system.slice/slurmstepd.scope/job_7", "others than root may have made the cgroup"),
        ("/user.slice/slurm/job_7", "others than root may have made the cgroup"),
    ],
)
def test_why_a_job_is_not_proven(cgroup: str, words: str) -> None:
    """A slurmd with a name is root's too: what is wrong is that its numbers may be another's as well."""
    assert words in unproven_job(target(cgroup=cgroup, slurm_job="7"))


@pytest.mark.parametrize(
    ("changes", "supervised"),
    [
        ({"uid": 0, "parent_pid": 1}, True),
        ({"uid": 0, "parent_pid": 0}, True),
        ({"uid": 0, "parent_pid": 7}, False),
        ({"uid": 1000, "parent_pid": 1}, False),
        ({"uid": 1000, "parent_pid": 7}, False),
    ],
)
@pytest.mark.parametrize("unit", ["cron.service", "crond.service", "atd.service"])
def test_the_daemon_of_jobs_is_supervised_and_its_jobs_are_not(
    unit: str, changes: dict[str, int], *, supervised: bool
) -> None:
    """KILL-03: the daemon runs as root and is systemd's own child; a name alone makes no process one of its jobs."""
    assert is_supervised(target(unit=unit, **changes)) is supervised
    assert is_supervised(target(unit="a.service", **changes))
    assert not is_supervised(target(unit=f"user@1000.service/{unit}", **changes))


@pytest.mark.parametrize("unit", ["jupyterhub.service", "rstudio-server.service", "gitlab-runner.service"])
def test_what_a_daemon_runs_for_others_is_not_supervised(unit: str) -> None:
    """Each job or session is a child of the daemon, which may run as any user, and goes on when one ends."""
    assert not is_supervised(target(unit=unit, uid=1000, parent_pid=7))
    assert is_supervised(target(unit=unit, uid=1000, parent_pid=1))
    assert is_supervised(target(unit=unit, uid=0, parent_pid=7))


@pytest.mark.parametrize(
    ("named", "changes", "supervised"),
    [
        ("a.service", {}, False),
        ("a.service", {"uid": 0}, False),
        ("a.service", {"parent_pid": 1}, True),  # the main process, or one that nobody waits for
        ("a.service", {"proven_names": frozenset()}, True),
        ("a", {}, True),
        ("b.service", {}, True),
    ],
)
def test_what_a_unit_that_root_names_has_started(named: str, changes: dict[str, Any], *, supervised: bool) -> None:
    """KILL-03: root's word holds for that very unit, by its proven name, and not for its main process."""
    of = {"unit": "a.service", "uid": 1000, "parent_pid": 7, "proven_names": frozenset({"unit"}), **changes}
    assert is_supervised(target(**of), (named,)) is supervised
