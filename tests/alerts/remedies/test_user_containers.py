"""Containers of users, which have no name: whose they are, and who lets a rule reach into them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuagent.procfs.cgroup_owner import Name
from gpuagent_alerts.remedies.facts.user_containers import is_in_users_container
from gpuagent_alerts.remedies.safeguards.policy import AllowList
from tests.alerts.remedies.test_places import reasons
from tests.alerts.remedies.world import KILL, target
from tests.fakes.cgroups import HOST_ROOT, OWN_ROOT, START_TICKS, CgroupTree
from tests.fakes.proc import stat_text

ALICE, BOB, ROOT = (1001,) * 4, (1002,) * 4, (0,) * 4
SLICE = "/user.slice/user-1001.slice/session-3.scope"
JOB = "/system.slice/slurmstepd.scope/job_7/step_0/user/task_0"
DOCKER = f"/system.slice/docker-{'a' * 64}.scope"
HOST, USERS = b"0 0 4294967295\n", b"0 1001 1\n"
Row = tuple[int, int, tuple[int, ...], tuple[int, ...], str, bytes]
SHELL: Row = (50, 1, ALICE, (50,), SLICE, HOST)
UNSHARE: Row = (55, 50, ALICE, (55,), SLICE, USERS)
FIRST: Row = (60, 55, ALICE, (60, 1), SLICE, USERS)
WORK: Row = (70, 60, ALICE, (70, 2), SLICE, USERS)
STEP: Row = (50, 1, ROOT, (50,), JOB, HOST)
CONTAINERS: dict[str, tuple[list[Row], str, bool]] = {
    "none": ([SHELL, (70, 50, ALICE, (70,), SLICE, HOST)], "", True),
    "a root directory of its own": ([SHELL, (70, 50, ALICE, (70,), SLICE, USERS)], "root", True),
    "a pid namespace": ([SHELL, UNSHARE, FIRST, WORK], "", True),
    "a pid namespace, and a root directory": ([SHELL, UNSHARE, FIRST, WORK], "root", True),
    "its first process": ([SHELL, UNSHARE, (70, 55, ALICE, (70, 1), SLICE, USERS)], "", True),
    "one in another": (
        [SHELL, UNSHARE, FIRST, (65, 60, ALICE, (65, 2, 1), SLICE, USERS), (70, 65, ALICE, (70, 3, 2), SLICE, USERS)],
        "", True,
    ),
    "a Slurm job": ([(50, 1, ALICE, (50,), JOB, HOST), (70, 50, ALICE, (70,), JOB, USERS)], "job", True),
    "a Slurm job, begun as root": ([STEP, (70, 50, ALICE, (70,), JOB, USERS)], "job", False),
    "a Slurm job, begun as root in the user's": ([STEP, (70, 50, ALICE, (70,), JOB, USERS)], "job made", True),
    "a job that is not proven": ([SHELL, (70, 50, ALICE, (70,), JOB, USERS)], "made", False),
    "of docker, with the user's number": (
        [SHELL, (60, 50, ALICE, (60, 1), DOCKER, USERS), (70, 60, ALICE, (70, 2), DOCKER, USERS)], "made", False
    ),
    "of docker, in a Slurm job's name": (
        [SHELL, (70, 50, ALICE, (70,), f"{JOB}/docker-{'a' * 64}.scope", USERS)], "job made", False
    ),
    "of a runtime without known cgroups": (
        [SHELL, UNSHARE, FIRST, (70, 60, ALICE, (70, 2), "/default/web", USERS)], "made", False
    ),
    "in the slice of another": ([(50, 1, BOB, (50,), SLICE, HOST), (70, 50, BOB, (70,), SLICE, USERS)], "", False),
    "begun by root": ([SHELL, (60, 50, ROOT, (60, 1), SLICE, USERS), WORK], "made", False),
    "begun by another": ([SHELL, (60, 50, BOB, (60, 1), SLICE, USERS), WORK], "made", False),
    "entered from outside": ([SHELL, (70, 50, ALICE, (70, 2), SLICE, USERS)], "made", False),
    "root's pid namespace": (
        [SHELL, (60, 50, ALICE, (60, 1), SLICE, HOST), (70, 60, ALICE, (70, 2), SLICE, HOST)], "made", False
    ),
    "the user's in root's pid namespace": ([SHELL, (60, 50, ALICE, (60, 1), SLICE, HOST), WORK], "made", False),
    "root's root directory": ([SHELL, (70, 50, ALICE, (70,), SLICE, HOST)], "root", False),
    "the user's in root's root directory": (
        [SHELL, (60, 50, ALICE, (60,), SLICE, HOST), (70, 60, ALICE, (70,), SLICE, USERS)], "root made", False
    ),
    "root's user namespace": (
        [(50, 1, ROOT, (50,), SLICE, HOST), (70, 50, ALICE, (70, 1), SLICE, USERS)], "", False
    ),
    "its user namespace is hidden": ([SHELL, (70, 50, ALICE, (70,), SLICE, b"")], "made", False),
    "two users": ([SHELL, (70, 50, (1001, 0, 0, 0), (70,), SLICE, USERS)], "made", False),
    "of root": ([SHELL, (70, 50, ROOT, (70,), SLICE.replace("1001", "0"), USERS)], "made", False),
    "an ancestor is hidden": ([WORK], "made", False),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "facts", "own"), CONTAINERS.values(), ids=CONTAINERS)
def test_whose_container_it_is(tmp_path: Path, rows: list[Row], facts: str, own: bool) -> None:
    """A user's own by root's cgroups and by who made its namespaces; never one of root's, whatever its user id is."""
    tree = CgroupTree(tmp_path)
    tree.add(1, "/init.scope", uids=(0, 0, 0, 0))
    tree.proc.files[1]["uid_map"] = HOST
    for pid, parent, uids, namespace_pids, cgroup, uid_map in rows:
        mounts = OWN_ROOT if "root" in facts and pid >= FIRST[0] else HOST_ROOT
        tree.add(pid, cgroup, uids=uids, namespace_pids=namespace_pids, mountinfo=mounts)  # type: ignore[arg-type]
        tree.proc.files[pid]["stat"] = stat_text(pid, parent_pid=parent)
        if uid_map:
            tree.proc.files[pid]["uid_map"] = uid_map
    uids = next(each[2] for each in rows if each[0] == 70)
    maker = 1001 if "made" in facts else None
    names = {Name.JOB} if "job" in facts else set()
    assert is_in_users_container(tree.proc, 70, uids, names, lambda _: maker) is own


def test_a_process_that_has_the_number_now(tmp_path: Path) -> None:
    """What the kernel says of another process, which has been given the number meanwhile, proves nothing."""
    tree = CgroupTree(tmp_path)
    tree.proc.files[1]["uid_map"] = HOST
    tree.add(70, JOB, uids=ALICE)
    tree.proc.files[70]["uid_map"] = USERS

    def maker(pid: int) -> int:
        tree.proc.files[pid]["stat"] = stat_text(pid, parent_pid=1, start_ticks=START_TICKS + 1)
        return 1001

    tree.proc.files[70]["stat"] = stat_text(70, parent_pid=1, start_ticks=START_TICKS)
    assert is_in_users_container(tree.proc, 70, ALICE, {Name.JOB}, lambda _: 1001)
    assert not is_in_users_container(tree.proc, 70, ALICE, {Name.JOB}, maker)


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
