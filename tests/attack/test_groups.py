"""`scancel {slurm_job}` and `docker restart {container_id}` act on everybody in there, on a GPU or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.attack.arena import Arena, ladder
from tests.attack.cgroups import container_id
from tests.attack.processes import Living
from tests.integration.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

JOB = "system.slice/slurmstepd.scope/job_{}/step_0/user"
CONTAINER = "system.slice/docker-{}.scope"


def another_users(arena: Arena, place: str, uid: int) -> Living:
    """Start a process of another user there."""
    assert uid
    return arena.crowd.start(next(arena.uids), cgroup=arena.cgroups.make(place))


def of_the_never_list(arena: Arena, place: str, uid: int) -> Living:
    """Start one of the same user that no remedy may end."""
    return arena.crowd.start(uid, name="sshd", cgroup=arena.cgroups.make(place))


def in_a_nested_container(arena: Arena, place: str, uid: int) -> Living:
    """Start one in a container inside of it."""
    return arena.crowd.start(uid, cgroup=arena.cgroups.make(f"{place}/docker/{container_id()}"))


Other = Callable[[Arena, str, int], Living]
OTHERS = (another_users, of_the_never_list, in_a_nested_container)


@pytest.mark.parametrize("other", OTHERS, ids=lambda each: each.__name__.replace("_", " "))
@pytest.mark.parametrize("group", ["job", "container"])
def test_who_else_is_in_there(arena: Arena, other: Other, group: str) -> None:
    """KILL-03: a job or container in which others are is not handed to a program; one of its user's alone is."""
    uid = next(arena.uids)
    ids = [container_id(), container_id()] if group == "container" else ["81", "82"]
    places = [{"job": JOB, "container": CONTAINER}[group].format(each) for each in ids]
    arena.innocent(other(arena, places[0], uid))
    greedy = arena.innocent(arena.crowd.start(uid, cgroup=arena.cgroups.make(places[0])))  # not the first in there
    placeholder = {"job": "{slurm_job}", "container": "{container_id}"}[group]
    step = {"exec": {"command": [str(arena.stand_in("program")), placeholder], "wait": "5s"}}
    allow: dict[str, Any] = {"job": {"users": [str(uid)]}, "container": {"containers": [each[:12] for each in ids]}}[
        group
    ]
    arena.slurm(*(f"{each}|{each}|{uid}|RUNNING" for each in ids))
    arena.driver.hold(greedy.pid, 30)
    arena.start(ladders=[ladder("TooMuch", step, scope=group)], **allow)
    reason = arena.refused(greedy)  # both may have started in one tick of the clock: then either may be the first
    assert ids[0][:12] in reason or f"in the container of pid {greedy.pid}" in reason
    culprit = arena.culprit(arena.crowd.start(uid, cgroup=arena.cgroups.make(places[1])))
    arena.driver.hold(culprit.pid, 25)
    (line,) = until(lambda: arena.executed("program"), "the program was run")
    assert line == ids[1]
    culprit.end()  # as the program would
    arena.judge()
    assert arena.executed("program") == [line]


def test_what_slurm_does_not_say(arena: Arena) -> None:
    """KILL-03: a component of a heterogeneous job is not cancelled, as others may end too; a task of an array is."""
    uid = next(arena.uids)
    greedy = arena.innocent(arena.crowd.start(uid, cgroup=arena.cgroups.make(JOB.format(84))))
    step = {"exec": {"command": [str(arena.stand_in("scancel")), "{slurm_job}"], "wait": "5s"}}
    arena.slurm(f"84|84+0|{uid}|RUNNING", f"86|86_7|{uid}|RUNNING", f"87|86_6|{uid}|RUNNING")
    arena.driver.hold(greedy.pid, 30)
    arena.start(ladders=[ladder("TooMuch", step, scope="job")], users=[str(uid)])
    assert "job 84 is a component of a heterogeneous job" in arena.refused(greedy)
    culprit = arena.culprit(arena.crowd.start(uid, cgroup=arena.cgroups.make(JOB.format(86))))
    arena.driver.hold(culprit.pid, 25)
    (line,) = until(lambda: arena.executed("scancel"), "the program was run")
    assert line == "86_7"
    culprit.end()  # as Slurm would
    arena.judge()
    assert arena.executed("scancel") == [line]


@pytest.mark.parametrize("kind", ["program", "signal"])
def test_who_uses_the_network_of_a_container(arena: Arena, kind: str) -> None:
    """KILL-03: a container whose network another one uses is neither restarted nor is its first process ended."""
    uid = next(arena.uids)
    ids = [container_id() for _ in range(3)]
    shared, other, own = (arena.cgroups.make(CONTAINER.format(each)) for each in ids)
    wait = "print('ready', flush=True)\nsignal.pause()"
    apart = ("unshare", "--net")
    greedy = arena.innocent(arena.crowd.python(wait, uid, cgroup=shared, before=apart))
    enters = ("nsenter", "--target", str(greedy.pid), "--net")
    other_user = arena.innocent(arena.crowd.python(wait, next(arena.uids), cgroup=other, before=enters))
    program = {"exec": {"command": [str(arena.stand_in("program")), "{container_id}"], "wait": "5s"}}
    step = program if kind == "program" else {"kill": {"wait": "5s"}}
    arena.driver.hold(greedy.pid, 30)
    arena.start(ladders=[ladder("TooMuch", step, scope="container")], containers=ids)
    refused = arena.refused(greedy)
    assert "network namespace" in refused
    assert f"pid {other_user.pid} " in refused
    culprit = arena.culprit(arena.crowd.python(wait, uid, cgroup=own, before=apart))
    arena.driver.hold(culprit.pid, 25)
    if kind == "signal":
        arena.judge()
        guest = arena.culprit(other_user)  # its own end takes nothing down
        arena.innocents.remove(other_user)
        arena.driver.hold(guest.pid, 25)
        arena.judge()
        return
    (line,) = until(lambda: arena.executed("program"), "the program was run")
    assert line == ids[2]
    culprit.end()  # as the program would
    arena.judge()
