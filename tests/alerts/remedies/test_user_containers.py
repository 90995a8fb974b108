"""Containers of users, which have no name: whose they are, and who lets a rule reach into them."""

from __future__ import annotations

from typing import Any

import pytest

from gpuagent.procfs.cgroup_owner import Name
from gpuagent_alerts.remedies.facts.user_containers import is_in_users_container
from gpuagent_alerts.remedies.safeguards.policy import AllowList
from tests.alerts.remedies.test_places import reasons
from tests.alerts.remedies.world import KILL, target
from tests.fakes.cgroups import CgroupTree
from tests.fakes.proc import stat_text

ALICE, BOB, ROOT = (1001,) * 4, (1002,) * 4, (0,) * 4
SLICE = "/user.slice/user-1001.slice/session-3.scope"
JOB = "/system.slice/slurmstepd.scope/job_7/step_0/user/task_0"
DOCKER = f"/system.slice/docker-{'a' * 64}.scope"
SHELL = (50, 1, ALICE, (50,), SLICE)
FIRST = (60, 50, ALICE, (60, 1), SLICE)
WORK = (70, 60, ALICE, (70, 2), SLICE)
Row = tuple[int, int, tuple[int, ...], tuple[int, ...], str]
CONTAINERS: dict[str, tuple[list[Row], bool, bool]] = {
    "a root directory of its own": ([(70, 1, ALICE, (70,), SLICE)], False, True),
    "a pid namespace": ([SHELL, FIRST, WORK], False, True),
    "its first process": ([SHELL, (70, 50, ALICE, (70, 1), SLICE)], False, True),
    "one in another": ([SHELL, FIRST, (65, 60, ALICE, (65, 2, 1), SLICE), (70, 65, ALICE, (70, 3, 2), SLICE)],
                       False, True),
    "a Slurm job": ([(70, 1, ALICE, (70,), JOB)], True, True),
    "a job that is not proven": ([(70, 1, ALICE, (70,), JOB)], False, False),
    "of docker, with the user's number": ([(60, 50, ALICE, (60, 1), DOCKER), (70, 60, ALICE, (70, 2), DOCKER), SHELL],
                                          False, False),
    "of docker, in a Slurm job's name": ([(70, 1, ALICE, (70,), f"{JOB}/docker-{'a' * 64}.scope")], True, False),
    "of a runtime without known cgroups": ([SHELL, FIRST, (70, 60, ALICE, (70, 2), "/default/web")], False, False),
    "in the slice of another": ([(70, 1, BOB, (70,), SLICE)], False, False),
    "begun by root": ([SHELL, (60, 50, ROOT, (60, 1), SLICE), WORK], False, False),
    "begun by another": ([SHELL, (60, 50, BOB, (60, 1), SLICE), WORK], False, False),
    "entered from outside": ([SHELL, (70, 50, ALICE, (70, 2), SLICE)], False, False),
    "two users": ([(70, 1, (1001, 0, 0, 0), (70,), SLICE)], False, False),
    "of root": ([(70, 1, ROOT, (70,), SLICE.replace("1001", "0"))], False, False),
    "an ancestor is hidden": ([WORK], False, False),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "job", "own"), CONTAINERS.values(), ids=CONTAINERS)
def test_whose_container_it_is(tmp_path: Any, rows: list[Row], job: bool, own: bool) -> None:
    """A user's own by root's cgroups and its first processes; never one of a runtime, whatever its user id is."""
    tree = CgroupTree(tmp_path)
    for pid, parent, uids, namespace_pids, cgroup in rows:
        tree.add(pid, cgroup, uids=uids, namespace_pids=namespace_pids)  # type: ignore[arg-type]
        tree.proc.files[pid]["stat"] = stat_text(pid, parent_pid=parent)
    uids = next(each[2] for each in rows if each[0] == 70)
    assert is_in_users_container(tree.proc, 70, uids, {Name.JOB} if job else set()) is own


OWN = AllowList(users=("svc",), unnamed_containers=True)


@pytest.mark.parametrize("inside", [{"own_root": True}, {"namespace_pids": (100, 7)}])
def test_the_key_of_root(inside: dict[str, Any]) -> None:
    """Without the key users end at a container; with it they reach into their own, and into no container of others."""
    (said,) = reasons(AllowList(users=("svc",)), KILL, target(), users_container=True, **inside)
    assert "remedies.allow.unnamed_containers permits it" in said
    assert reasons(OWN, KILL, target(), users_container=True, **inside) == []
    (said,) = reasons(OWN, KILL, target(), **inside)
    assert "unnamed_containers" not in said
    named = target(container_id="a1" * 32, proven_names=frozenset({"container"}))
    assert reasons(OWN, KILL, named, users_container=True, **inside)
    assert reasons(AllowList(users=("bob",), unnamed_containers=True), KILL, target(), users_container=True, **inside)
    assert reasons(AllowList(units=("a.service",), unnamed_containers=True), KILL, target(), users_container=True)
