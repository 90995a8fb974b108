"""Who ends along with a process that may be ended, and must not: it works, on another GPU, or for others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.attack.arena import Arena, ladder
from tests.attack.cgroups import container_id
from tests.attack.driver import ListedGpu
from tests.attack.processes import Living
from tests.attack.test_units import RESTART, Units
from tests.integration.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

KILL = {"kill": {"wait": "3s"}}
FULL = {"alert": "Full", "expr": "gpuagent_gpu_memory_used_ratio > 0.3"}
REST = {
    "alert": "Full", "for": "2s",
    "expr": "gpuagent_gpu_memory_used_ratio > 0.3 and on (gpu, uuid) gpuagent_gpu_utilization_ratio < 0.02",
}  # fmt: skip
FIRST_OF_A_NAMESPACE = """
subprocess.Popen(['/bin/sleep', '1000000'])
print('ready', flush=True)
signal.pause()
"""
Pair = Callable[[Arena], tuple[Living, Living, Mapping[str, Any], Mapping[str, Any]]]
"""Starts a process and one that ends along with it; with the step that ends them, and the allow list that means it."""


def in_one_unit(arena: Arena) -> tuple[Living, Living, Mapping[str, Any], Mapping[str, Any]]:
    """Start two processes of one unit, which is restarted as a whole."""
    uid, units = next(arena.uids), Units(arena)
    unit = units.add(f"both-{uid}.service", uid)
    return units.start(unit, uid), units.start(unit, uid), RESTART, {"units": [unit]}


def in_one_namespace(arena: Arena) -> tuple[Living, Living, Mapping[str, Any], Mapping[str, Any]]:
    """Start the first process of a pid namespace, with which the kernel ends all others of it."""
    uid, container = next(arena.uids), container_id()
    cgroup = arena.cgroups.make(f"system.slice/docker-{container}.scope")
    before = ("unshare", "--pid", "--fork", "--kill-child")
    first = arena.crowd.child_of(arena.crowd.python(FIRST_OF_A_NAMESPACE, uid, cgroup=cgroup, before=before), cgroup)
    return first, arena.crowd.child_of(first, cgroup), KILL, {"containers": [container]}


def in_one_container(arena: Arena) -> tuple[Living, Living, Mapping[str, Any], Mapping[str, Any]]:
    """Start a container with the host's pids (`--pid=host`), and one into it: its runtime ends all with the first."""
    uid, container = next(arena.uids), container_id()
    cgroup = arena.cgroups.make(f"system.slice/docker-{container}.scope")
    first = arena.crowd.start(uid, cgroup=cgroup)
    return first, arena.crowd.start(uid, cgroup=cgroup), KILL, {"containers": [container]}


TOGETHER = (in_one_unit, in_one_namespace, in_one_container)


def twice(arena: Arena) -> tuple[Living, Living, Mapping[str, Any], Mapping[str, Any]]:
    """Start one process, which is on both GPUs."""
    uid = next(arena.uids)
    one = arena.crowd.start(uid)
    return one, one, KILL, {"users": [str(uid)]}


@pytest.mark.parametrize(
    ("words", "entry", "more"),
    [
        ("client of MPS", {"kind": "M"}, {}),
        ("is not in remedies.allow.gpus", {}, {"gpus": ["GPU-0"]}),
        ("idle", {"sm": 90}, {"victim": "idle"}),
        ("about idleness", {"sm": 90}, {"rule": REST}),
    ],
    ids=["for others", "on another GPU", "it works", "it works while its GPU rests"],
)
@pytest.mark.parametrize(
    "pair", [in_one_unit, in_one_namespace, in_one_container, twice], ids=lambda each: each.__name__
)
def test_what_ends_along_with_it(
    arena: Arena, pair: Pair, words: str, entry: Mapping[str, Any], more: Mapping[str, Any]
) -> None:
    """KILL-03: each place that it has on a GPU is judged, of everybody who would end; one that is alone is ended."""
    arena.gpus(ListedGpu("GPU-0"), ListedGpu("GPU-1"))
    first, other, step, allow = pair(arena)
    arena.innocent(first)
    arena.innocent(other)
    arena.driver.hold(first.pid, 30)
    arena.driver.hold(other.pid, 20, gpu=1, **entry)
    alone, permitted = arena.crowd.start(uid := next(arena.uids)), dict(allow)
    if "users" in permitted:
        permitted["users"] = [*permitted["users"], str(uid)]
    victim = more.get("victim", "largest")
    arena.start(
        rules=[more.get("rule", FULL)], ladders=[ladder("Full", step, victim=victim)], remedies={"idle_for": "2s"},
        **permitted,
        **({"gpus": more["gpus"]} if "gpus" in more else {}),
    )  # fmt: skip
    arena.sees(first.pid, other.pid)
    if first is not other or victim != "idle":  # who works somewhere is no idle victim, and not even chosen
        assert words in arena.refused(first)
    arena.judge()
    if "users" in permitted:
        arena.culprit(alone)
        arena.driver.drop(first.pid)
        arena.driver.hold(alone.pid, 30)
        arena.judge()


@pytest.mark.parametrize(
    "pair", [in_one_unit, in_one_namespace, in_one_container, twice], ids=lambda each: each.__name__
)
def test_what_was_last_read_of_a_gpu(arena: Arena, pair: Pair) -> None:
    """KILL-03: a list that fails tells nobody that a client of MPS has gone: the last good one counts."""
    arena.gpus(ListedGpu("GPU-0"), ListedGpu("GPU-1"))
    first, other, step, allow = pair(arena)
    arena.innocent(first)
    arena.innocent(other)
    arena.driver.hold(first.pid, 2)
    arena.driver.hold(other.pid, 20, gpu=1, kind="M")
    rule = {"alert": "Full", "expr": 'gpuagent_gpu_memory_used_ratio{uuid="GPU-0"} > 0.3'}
    arena.start(rules=[rule], ladders=[ladder("Full", step, victim="largest")], **allow)
    arena.sees(first.pid, other.pid)
    arena.driver.gpus[1].fails = True
    arena.driver.write()
    arena.let_decide()
    arena.driver.hold(first.pid, 30)
    assert "client of MPS" in arena.refused(first)
    arena.judge()


@pytest.mark.parametrize("pair", TOGETHER, ids=lambda each: each.__name__)
def test_a_gpu_that_was_never_listed(arena: Arena, pair: Pair) -> None:
    """KILL-03: nobody knows whether a client of MPS is on it; who ends alone is ended meanwhile."""
    arena.gpus(ListedGpu("GPU-0"), ListedGpu("GPU-1", fails=True))
    first, other, step, allow = pair(arena)
    arena.innocent(first)
    arena.innocent(other)
    arena.driver.hold(first.pid, 30)
    arena.driver.hold(other.pid, 20, gpu=1, kind="M")
    alone = arena.culprit(arena.crowd.start(uid := next(arena.uids)))
    rules = [
        {"alert": "Full", "expr": "gpuagent_process_memory_used_bytes > 25e9"},
        {"alert": "Much", "expr": "gpuagent_process_memory_used_bytes > 15e9"},
    ]
    arena.start(rules=rules, ladders=[ladder("Full", step)], **allow)
    arena.sees(first.pid)
    assert "nobody knows whose processes are on it" in arena.refused(first)
    arena.let_decide()
    assert arena.tally().innocents_hit == 0
    arena.stop()
    arena.start(rules=rules, ladders=[ladder("Much", KILL)], users=[str(uid)])
    arena.driver.hold(alone.pid, 20)
    arena.judge()


def test_a_member_that_comes_during_the_notice(arena: Arena) -> None:
    """KILL-03: all of a container fall, or none: who has joined it was not judged; without them it is ended."""
    uid, container = next(arena.uids), container_id()
    cgroup = arena.cgroups.make(f"system.slice/docker-{container}.scope")
    first = arena.innocent(arena.crowd.start(uid, cgroup=cgroup))
    newcomer = arena.innocent(arena.crowd.start(uid, cgroup=arena.cgroups.make(f"elsewhere-{uid}")))
    arena.driver.hold(first.pid, 30)
    arena.driver.hold(newcomer.pid, 5)
    chosen = ladder("TooMuch", {"notify": {"wait": "10s"}}, KILL, scope="container")
    arena.start(ladders=[chosen], containers=[container])
    arena.step_of(first.pid)
    (cgroup / "cgroup.procs").write_text(str(newcomer.pid))
    until(lambda: any("end" in each for each in arena.runs(first.pid)), "the run has ended")
    assert "joined it meanwhile" in str(arena.runs(first.pid))
    assert arena.tally().innocents_hit == 0
