"""Names on a cgroup path that a user has chosen: ids of others' containers and jobs below a cgroup of one's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.attack.arena import Arena, ladder
from tests.attack.cgroups import Cgroups, container_id
from tests.attack.processes import Living
from tests.integration.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

Place = Callable[[Cgroups, int, str], Path]
"""Makes a cgroup with somebody else's name on it, as a user may."""
JOB = "4711"
OTHER_JOB = "4712"
RESTART: Mapping[str, Any] = {"wait": "20s"}


def below_the_users_manager(cgroups: Cgroups, uid: int, name: str) -> Path:
    """As a user below the slice for apps of their own manager."""
    return cgroups.make_as(uid, cgroups.users_own(uid) / "app.slice" / name)


def right_below_the_manager(cgroups: Cgroups, uid: int, name: str) -> Path:
    """As a user, one level higher."""
    return cgroups.make_as(uid, cgroups.users_own(uid) / name)


def below_a_delegated_unit(cgroups: Cgroups, uid: int, name: str) -> Path:
    """As the user of a service with `Delegate=yes`."""
    unit = cgroups.make(f"system.slice/attacked-{uid}.service", owner=uid)
    return cgroups.make_as(uid, unit / name)


def below_a_slice_of_ones_own(cgroups: Cgroups, uid: int, name: str) -> Path:
    """As a user, with slices that look like those of the system."""
    return cgroups.make_as(uid, cgroups.users_own(uid) / "system.slice" / "docker.slice" / name)


def inside_another_container(cgroups: Cgroups, uid: int, name: str) -> Path:
    """As root inside a container that may write to its cgroup: the owner is root's uid."""
    assert uid
    return cgroups.make(f"system.slice/docker-{container_id()}.scope/{name}")


def below_a_cgroup_that_all_may_write(cgroups: Cgroups, uid: int, name: str) -> Path:
    """As a user below a cgroup of root that others may write."""
    shared = cgroups.make(f"attacked-{uid}.slice")
    shared.chmod(0o777)
    (shared / "cgroup.procs").chmod(0o666)
    return cgroups.make_as(uid, shared / name)


def in_another_hierarchy(cgroups: Cgroups, uid: int, name: str) -> Path:
    """As a user in a hierarchy of version 1 that is mounted beside version 2."""
    return cgroups.make_as(uid, cgroups.legacy(uid) / name)


PLACES = (
    below_the_users_manager, right_below_the_manager, below_a_delegated_unit, below_a_slice_of_ones_own,
    inside_another_container, below_a_cgroup_that_all_may_write, in_another_hierarchy,
)  # fmt: skip
in_each_place = pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__.replace("_", " "))


def in_container(arena: Arena, identity: str, uid: int) -> Living:
    """Start a process in a container, as docker makes it with systemd."""
    return arena.crowd.start(uid, cgroup=arena.cgroups.make(f"system.slice/docker-{identity}.scope"))


def in_job(arena: Arena, job: str, uid: int) -> Living:
    """Start a process in a Slurm job, as slurmstepd makes it."""
    return arena.crowd.start(uid, cgroup=arena.cgroups.make(f"system.slice/slurmstepd.scope/job_{job}/step_0/user"))


@in_each_place
def test_the_documented_restart_of_a_container(arena: Arena, place: Place) -> None:
    """KILL-03: `docker restart {container_id}` never gets the id of a container that the process is not in."""
    attacker, owner = next(arena.uids), next(arena.uids)
    attacked, guilty = container_id(), container_id()
    innocent = arena.innocent(in_container(arena, attacked, owner))
    liar = arena.crowd.start(attacker, cgroup=place(arena.cgroups, attacker, f"docker-{attacked}.scope"))
    program = arena.stand_in("docker")
    step = {"exec": {"command": [str(program), "restart", "{container_id}"], **RESTART}}
    arena.driver.hold(innocent.pid, 2)
    arena.driver.hold(liar.pid, 30)
    arena.start(ladders=[ladder("TooMuch", step, scope="container")], containers=[attacked[:12], guilty[:12]])
    assert arena.refused(liar)
    culprit = arena.culprit(in_container(arena, guilty, owner))
    arena.driver.hold(culprit.pid, 25)
    (line,) = until(lambda: arena.executed("docker"), "the program was run")
    assert line == f"restart {guilty}"
    culprit.end()  # as docker would
    arena.judge()
    assert arena.executed("docker") == [line]


def only_the_guilty_falls(
    arena: Arena, innocent: Living, liar: Living, containers: tuple[str, str], owner: int
) -> None:
    """Act on containers: that of the innocent, which the liar claims to be in, and that of two guilty ones."""
    arena.driver.hold(innocent.pid, 2)
    arena.driver.hold(liar.pid, 30)
    arena.start(ladders=[ladder("TooMuch", scope="container")], containers=list(containers))
    assert arena.refused(liar)
    for gib in (1, 25):  # the larger one last: it is ended as soon as it is seen
        arena.driver.hold(arena.culprit(in_container(arena, containers[1], owner)).pid, gib)
    arena.judge()


@in_each_place
def test_what_falls_with_a_container(arena: Arena, place: Place) -> None:
    """KILL-03: with `scope: container` nobody falls with a process that only claims to be in their container."""
    attacker, owner = next(arena.uids), next(arena.uids)
    attacked, guilty = container_id(), container_id()
    innocent = arena.innocent(in_container(arena, attacked, owner))
    liar = arena.crowd.start(attacker, cgroup=place(arena.cgroups, attacker, f"docker-{attacked}.scope"))
    only_the_guilty_falls(arena, innocent, liar, (attacked, guilty), owner)


@in_each_place
def test_what_falls_with_a_job(arena: Arena, place: Place) -> None:
    """KILL-03: with `scope: job` nobody falls with a process that only claims to be in their job."""
    attacker, owner = next(arena.uids), next(arena.uids)
    innocent = arena.innocent(in_job(arena, JOB, owner))
    liar = arena.crowd.start(attacker, cgroup=place(arena.cgroups, attacker, f"slurm/job_{JOB}"))
    arena.driver.hold(innocent.pid, 2)
    arena.driver.hold(liar.pid, 30)
    arena.start(ladders=[ladder("TooMuch", scope="job")], users=[str(attacker), str(owner)])
    assert arena.refused(liar)
    arena.driver.hold(arena.culprit(in_job(arena, OTHER_JOB, owner)).pid, 1)
    arena.driver.hold(arena.culprit(in_job(arena, OTHER_JOB, owner)).pid, 25)
    arena.judge()


@in_each_place
def test_a_job_is_cancelled_by_its_number(arena: Arena, place: Place) -> None:
    """KILL-03: `scancel {slurm_job}` never gets the number of a job that the process is not in."""
    attacker, owner = next(arena.uids), next(arena.uids)
    innocent = arena.innocent(in_job(arena, JOB, owner))
    liar = arena.crowd.start(attacker, cgroup=place(arena.cgroups, attacker, f"slurm/job_{JOB}"))
    step = {"exec": {"command": [str(arena.stand_in("scancel")), "{slurm_job}"], **RESTART}}
    arena.slurm(f"{JOB}|{JOB}|{owner}|RUNNING", f"{OTHER_JOB}|{JOB}_4|{owner}|RUNNING")
    arena.driver.hold(innocent.pid, 2)
    arena.driver.hold(liar.pid, 30)
    arena.start(ladders=[ladder("TooMuch", step, scope="job")], users=[str(attacker), str(owner)])
    assert arena.refused(liar)
    culprit = arena.culprit(in_job(arena, OTHER_JOB, owner))
    arena.driver.hold(culprit.pid, 25)
    (line,) = until(lambda: arena.executed("scancel"), "the program was run")
    assert line == f"{JOB}_4"  # a task of an array: its raw id may be that of the whole array
    culprit.end()  # as Slurm would
    arena.judge()
    assert arena.executed("scancel") == [line]


@pytest.mark.parametrize("digits", [12, 64])
@pytest.mark.parametrize("path", ["lxc.payload.{}", "lxc/{}", "machine.slice/machine-{}.scope"])
def test_a_container_whose_name_is_another_ones_id(arena: Arena, path: str, digits: int) -> None:
    """KILL-03: a container that is called like the id of another (LXC, nspawn) is not that one."""
    owner = next(arena.uids)
    attacked, guilty = container_id(), container_id()
    innocent = arena.innocent(in_container(arena, attacked, owner))
    liar = arena.crowd.start(owner, cgroup=arena.cgroups.make(path.format(attacked[:digits])))
    step = {"exec": {"command": [str(arena.stand_in("docker")), "restart", "{container_id}"], **RESTART}}
    arena.driver.hold(innocent.pid, 2)
    arena.driver.hold(liar.pid, 30)
    arena.start(ladders=[ladder("TooMuch", step, scope="container")], containers=[attacked[:12], guilty[:12]])
    until(lambda: arena.executed("docker") or arena.withheld() or arena.runs(liar.pid), "something was decided")
    culprit = arena.culprit(in_container(arena, guilty, owner))
    arena.driver.hold(culprit.pid, 25)
    until(lambda: f"restart {guilty}" in arena.executed("docker"), "the program was run")
    culprit.end()
    hit = [line for line in arena.executed("docker") if line != f"restart {guilty}"]
    if hit:
        innocent.end()  # as docker would: it takes the first digits of an id for the whole
    arena.judge()


@pytest.mark.parametrize(
    "path", ["lxc.payload.{}", "machine.slice/machine-{}.scope", "system.slice/x.service/libpod-{}.scope"]
)
def test_who_falls_with_a_container_that_is_called_like_another(arena: Arena, path: str) -> None:
    """KILL-03: with `scope: container` nobody falls with one that has the whole id of their container for a name."""
    owner, attacked, guilty = next(arena.uids), container_id(), container_id()
    innocent = arena.innocent(in_container(arena, attacked, owner))
    liar = arena.crowd.start(owner, cgroup=arena.cgroups.make(path.format(attacked)))
    only_the_guilty_falls(arena, innocent, liar, (attacked, guilty), owner)
