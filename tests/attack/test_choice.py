"""Whom an alert about a GPU falls on: who hides must not be the cause of an act on a neighbor."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.attack.arena import Arena, ladder
from tests.attack.driver import ListedGpu
from tests.attack.processes import Living
from tests.attack.test_containers import in_a_pid_namespace
from tests.integration.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

LARGEST = ladder("GpuFull", victim="largest")


def called_sshd(arena: Arena, uid: int) -> Living:
    """Start one that calls itself like a program of the never-list."""
    return arena.crowd.start(uid, name="sshd")


def in_a_container(arena: Arena, uid: int) -> Living:
    """Start one that is in a pid namespace, as everybody with a user namespace may be."""
    return in_a_pid_namespace(arena, uid, None)


def setuid(arena: Arena, uid: int) -> Living:
    """Start a program that gives its user the rights of another."""
    program = arena.folder / "privileged"
    shutil.copy("/bin/sleep", program)
    other = next(arena.uids)
    os.chown(program, other, other)
    program.chmod(0o4755)
    return arena.crowd.start(uid, name="privileged")


def ended_but_listed(arena: Arena, uid: int) -> Living:
    """End one whose memory the driver counts on."""
    holder = arena.crowd.start(uid)
    arena.driver.hold(holder.pid, 40, lags=True)
    holder.end()
    return holder


def memory_not_told(arena: Arena, uid: int) -> Living:
    """Start one whose memory the driver does not tell."""
    return arena.crowd.start(uid)


HIDERS = (called_sshd, in_a_container, setuid, ended_but_listed, memory_not_told)


@pytest.mark.parametrize("hide", HIDERS, ids=lambda each: each.__name__.replace("_", " "))
def test_the_largest_hides(arena: Arena, hide: Any) -> None:
    """KILL-01: where the largest is not to be had, the next one is no answer: it did not fill the GPU."""
    uid = next(arena.uids)
    hider = hide(arena, uid)
    if hide is memory_not_told:
        arena.driver.gpus[0].used_gib = 50
        arena.driver.hold(hider.pid, None)
    elif hide is not ended_but_listed:
        arena.driver.hold(hider.pid, 40)
    innocent = arena.innocent(arena.crowd.start(uid))
    arena.driver.hold(innocent.pid, 10)
    arena.start(ladders=[LARGEST], users=[str(uid)])
    arena.sees(hider.pid, innocent.pid)
    arena.fires("GpuFull")
    arena.let_decide()
    arena.driver.gpus[0].used_gib = None
    hider.end()
    arena.driver.drop(hider.pid)
    guilty = arena.culprit(arena.crowd.start(uid))
    arena.driver.hold(guilty.pid, 35)
    arena.judge()


INSTANCE_FULL = {
    "alert": "InstanceFull", "expr": "gpuagent_mig_memory_used_bytes / gpuagent_mig_memory_total_bytes > 0.7"
}  # fmt: skip


@pytest.mark.parametrize("victim", ["largest", "newest"])
@pytest.mark.parametrize("listed", [False, True], ids=["on no list", "listed without its instance"])
def test_the_largest_of_an_instance_hides(arena: Arena, victim: str, listed: bool) -> None:
    """PROC-09: what nobody is listed for in a MIG instance is a reason to end nobody there."""
    arena.gpus(ListedGpu("GPU-split", used_gib=28.5, instances={"1": 19.5, "2": 9}))
    uid = next(arena.uids)
    neighbor, innocent = (arena.innocent(arena.crowd.start(uid)) for _ in range(2))
    arena.driver.hold(neighbor.pid, 9, instance=2)
    hider = arena.crowd.start(uid)
    if listed:
        arena.driver.hold(hider.pid, 16)
    arena.driver.hold(innocent.pid, 3, instance=1)
    arena.start(ladders=[ladder("InstanceFull", victim=victim)], rules=[INSTANCE_FULL], users=[str(uid)])
    arena.sees(innocent.pid)
    arena.fires("InstanceFull")
    arena.let_decide()
    assert arena.tally().innocents_hit == 0
    arena.driver.gpus[0].instances["1"] = arena.driver.gpus[0].used_gib = None
    hider.end()
    arena.driver.drop(hider.pid)
    guilty = arena.culprit(arena.crowd.start(uid))
    arena.driver.hold(guilty.pid, 16, instance=1)
    arena.judge()


_USED = "gpuagent_process_memory_used_bytes"
_WITH = "sum by (gpu, uuid, {label}) ({used} * on (pid, uuid) group_left ({label}) gpuagent_process_info) > 20e9"


@pytest.mark.parametrize("label", ["pod_uid", "container_runtime", "command"])
def test_an_alert_about_others(arena: Arena, label: str) -> None:
    """KILL-01: an alert about one pod's memory is not about the processes of another that is allowed."""
    uid = next(arena.uids)
    pods = [f"{number}f0b5bf5-1d6f-4a0e-9d6a-0d2b4c6d8e0f" for number in range(3)]
    ids = [f"{number}" * 64 for number in range(3)]

    def start(number: int) -> Living:
        pod = pods[number].replace("-", "_")
        runtime = "cri-containerd" if number == 0 else "crio"
        path = f"kubepods.slice/kubepods-pod{pod}.slice/{runtime}-{ids[number]}.scope"
        return arena.crowd.start(uid, name=f"worker{number}", cgroup=arena.cgroups.make(path))

    greedy, innocent = start(0), arena.innocent(start(1))
    arena.driver.hold(greedy.pid, 40)
    arena.driver.hold(innocent.pid, 10)
    rules = (
        {"alert": "ByOwner", "expr": _WITH.format(label=label, used=_USED)},
        {"alert": "TooMuch", "expr": f"{_USED} > 20e9"},
    )
    ladders = (ladder("ByOwner", victim="largest"), ladder("TooMuch"))
    arena.start(ladders=ladders, rules=rules, containers=ids[1:])
    assert "is not in remedies.allow.containers" in arena.refused(greedy)
    arena.fires("ByOwner")
    arena.let_decide(10)
    guilty = arena.culprit(start(2))
    arena.driver.hold(guilty.pid, 22)
    arena.judge()


def test_a_gpu_that_moves_up(arena: Arena) -> None:
    """KILL-01: where one GPU vanishes, the others get other indices: `allow.gpus` means those that root meant."""
    arena.gpus(*(ListedGpu(f"GPU-{number}") for number in range(3)))
    uid = next(arena.uids)
    innocent, guilty = arena.innocent(arena.crowd.start(uid)), arena.culprit(arena.crowd.start(uid))
    arena.driver.hold(innocent.pid, 30, gpu=2)
    arena.driver.hold(guilty.pid, 30, gpu=1)
    arena.start(users=[str(uid)], gpus=["1"])
    assert "GPU 2 is not in remedies.allow.gpus" in arena.refused(innocent)
    assert guilty.ends_within()
    arena.lose_gpu(0)
    until(lambda: 'gpuagent_process_memory_used_bytes{gpu="1",uuid="GPU-2"' in arena.metrics(), "GPU 2 has moved up")
    arena.let_decide(10)
    arena.judge()


def test_a_program_is_exchanged_between_two_steps(arena: Arena) -> None:
    """KILL-04: a process that runs another program since it was warned is left alone."""
    uid = next(arena.uids)
    code = "print('ready', flush=True); sys.stdin.readline(); os.execv('/bin/sleep', ['sleep', '1000000'])"
    innocent = arena.innocent(arena.crowd.python(code, uid))
    arena.driver.hold(innocent.pid, 30)
    steps: tuple[Mapping[str, Any], ...] = ({"notify": {"wait": "3s"}}, {"terminate": {"wait": "5s"}})
    arena.start(ladders=[ladder("ByNumber", *steps)], users=[str(uid)])
    arena.step_of(innocent.pid)
    innocent.say()
    assert "changed" in arena.refused(innocent)
    guilty = arena.culprit(arena.crowd.start(uid))
    arena.driver.hold(guilty.pid, 25)
    arena.judge()


NAMED: Sequence[Mapping[str, Any]] = (
    {"alert": "TooMuch", "expr": f"{_USED} > 25e9"},
    {"alert": "Much", "expr": f"{_USED} > 20e9 < 25e9"},
)


@pytest.mark.parametrize("name", ["{pid}{pid}", "$(kill 1)", "%s%n", "{{ 1 }}", "a b) R 1 ("])
def test_a_name_that_is_more_than_a_name(arena: Arena, name: str) -> None:
    """PROC-05: what a process calls itself is never a format, a command or a field: it is meant, and nobody else."""
    uid = next(arena.uids)
    innocent = arena.innocent(arena.crowd.start(uid))
    guilty, told = arena.culprit(arena.crowd.start(uid, name=name)), arena.crowd.start(uid, name=name)
    for each, gib in ((innocent, 5), (guilty, 30), (told, 20)):
        arena.driver.hold(each.pid, gib)
    step = {"exec": {"command": [str(arena.stand_in("record")), "{pid}"], "wait": "60s"}}
    arena.start(ladders=[ladder("TooMuch"), ladder("Much", step)], rules=NAMED, users=[str(uid)])
    until(lambda: arena.executed("record"), "the program has run")
    told.end()
    arena.judge()
    assert arena.executed("record") == [str(told.pid)]
