"""Whose account memory is counted to: nobody pays for what another holds, and nobody is ended in another's place."""

from __future__ import annotations

import json
import pwd
from collections.abc import Callable
from typing import Any

import pytest

from tests.attack.arena import Arena, ladder
from tests.attack.cgroups import container_id
from tests.attack.processes import Living
from tests.attack.test_containers import KILL, in_a_mount_namespace, in_a_pid_namespace, in_a_root
from tests.integration.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

_USED = "gpuagent_process_memory_used_bytes"
_BY = "on (uuid, pid)"
_JOINED = f"{_USED} * on (gpu, uuid, pid) group_left (container_id, unit) gpuagent_process_info"


def in_a_docker_container(arena: Arena, uid: int) -> Living:
    """Start one in the cgroup of a container, with the pids and the root directory of the host."""
    cgroup = arena.cgroups.make(f"system.slice/docker-{container_id()}.scope")
    return arena.crowd.start(uid, cgroup=cgroup)


def in_an_unknown_pid_namespace(arena: Arena, uid: int) -> Living:
    """Start one in a pid namespace that no name tells of."""
    return in_a_pid_namespace(arena, uid, None)


def in_an_unknown_root(arena: Arena, uid: int) -> Living:
    """Start one with a root directory of its own."""
    return in_a_root(arena, uid, None)


def in_an_unknown_mount_namespace(arena: Arena, uid: int) -> Living:
    """Start one as container runtimes do, with the pids of the host."""
    return in_a_mount_namespace(arena, uid, None)


CONTAINERS = (
    in_a_docker_container, in_an_unknown_pid_namespace, in_an_unknown_root, in_an_unknown_mount_namespace
)  # fmt: skip


OVER_BUDGET = {
    "alert": "OverBudget", "expr": "gpuagent_budget_used_bytes > gpuagent_budget_limit_bytes", "for": "1s",
}  # fmt: skip
"""As the shipped GpuBudgetExceeded, which holds for half a minute."""


@pytest.mark.parametrize("contained", CONTAINERS, ids=lambda each: each.__name__.replace("_", " "))
def test_a_container_with_the_users_number(arena: Arena, contained: Any) -> None:
    """KILL-04: a container takes the user id of somebody on the host: its memory is not on that user's account."""
    uid = next(arena.uids)
    greedy = contained(arena, uid)
    arena.driver.hold(greedy.pid, 40)
    innocent = arena.innocent(arena.crowd.start(uid))
    arena.driver.hold(innocent.pid, 10)
    budget = {"name": "theirs", "match": {"user": str(uid)}, "memory": "20GiB"}
    arena.start(
        ladders=[ladder("OverBudget", KILL, victim="largest")], rules=[OVER_BUDGET],
        remedies={"top": {"budgets": [budget]}}, users=[str(uid)],
    )  # fmt: skip
    arena.sees(greedy.pid, innocent.pid)
    arena.let_decide()
    assert arena.runs() == []
    guilty = arena.culprit(arena.crowd.start(uid))
    arena.driver.hold(guilty.pid, 18)
    arena.judge()


SUMS = (
    f"sum by (gpu, uuid, user) ({_USED}) > 20e9",
    f"max by (gpu, uuid, user, uid) ({_USED} * {_BY} group_left (uid) gpuagent_process_info) > 20e9",
    f"sum by (gpu, uuid, container_id) ({_JOINED}) > 20e9",
    f"sum by (gpu, uuid, unit) ({_JOINED}) > 20e9",
    f"sum by (gpu, uuid) ({_USED}) > 20e9",
    f'sum by (gpu, uuid) ({_USED} and {_BY} gpuagent_process_info{{command=~".*greedy.*"}}) > 20e9',
    f'gpuagent_gpu_memory_used_ratio > 0.3 and on (gpu, uuid) {_USED}{{process="greedy"}}',
    f"sum by (gpu, uuid) (topk by (process) (1, {_USED})) > 20e9",
    f"bottomk by (gpu, uuid) (1, {_USED}) > 5e9",
    f"{_USED} > 5e9 unless on (gpu, uuid) gpuagent_gpu_profile_sm_active_ratio > 0.05",
    "gpuagent_gpu_memory_processes_bytes > 20e9",
    'gpuagent_gpu_memory_used_ratio{gpu="0"} > 0.3',
    f"{_USED} > 5e9 and on () gpuagent_gpu_memory_used_ratio > 0.3",
    "time() - gpuagent_process_start_time_seconds > 0",
)


def test_a_sum_accuses_nobody(arena: Arena) -> None:
    """KILL-01: sums, ranks, missing figures, indices, other GPUs and the wall clock are no reason to end a process."""
    uid, other = next(arena.uids), next(arena.uids)
    greedy = arena.crowd.start(other, name="greedy")
    arena.driver.hold(greedy.pid, 40)
    innocent = arena.innocent(arena.crowd.start(uid))
    arena.driver.hold(innocent.pid, 10)
    rules = [{"alert": f"Sum{number}", "expr": expression} for number, expression in enumerate(SUMS)]
    ladders = [ladder(rule["alert"], victim="largest") for rule in rules]
    process = {"alert": "TooMuch", "expr": f"{_USED} > 50e9"}
    arena.start(ladders=[*ladders, ladder("TooMuch")], rules=[*rules, process], users=[str(uid)])
    arena.sees(greedy.pid, innocent.pid)
    for rule in rules:
        arena.fires(rule["alert"])
    arena.let_decide()
    assert arena.runs() == []
    greedy.end()
    arena.driver.drop(greedy.pid)
    guilty = arena.culprit(arena.crowd.start(uid))
    arena.driver.hold(guilty.pid, 55)
    arena.judge()


def test_who_was_refused_is_permitted_by_a_reload(arena: Arena) -> None:
    """KILL-09: the largest was another user's; now it is permitted, and nobody is ended in its place."""
    uid, account = next(arena.uids), pwd.getpwnam("daemon")
    guilty = arena.culprit(arena.crowd.start(account.pw_uid))
    arena.driver.hold(guilty.pid, 40)
    # Until the reload the next one is rightly chosen: the notice lasts longer than a reload on a busy machine.
    steps = ({"notify": {"wait": "20s"}}, {"terminate": {"wait": "5s"}})
    arena.start(ladders=[ladder("GpuFull", *steps, victim="largest")], users=[str(uid)])
    assert "is not in remedies.allow.users" in arena.refused(guilty)
    innocent = arena.innocent(arena.crowd.start(uid))
    arena.driver.hold(innocent.pid, 10)
    arena.step_of(innocent.pid)

    def permit(config: dict[str, Any]) -> None:
        config["remedies"]["allow"]["users"].append(account.pw_name)

    reload(arena, permit)
    assert "whom it passes over is decided anew" in arena.refused(innocent)
    arena.judge()
    assert len(arena.runs(innocent.pid)) == 1


def test_a_budget_comes_to_mean_others(arena: Arena) -> None:
    """KILL-02: after a reload the budget is another user's, who has exceeded it since then, and not since before."""
    before, uid = next(arena.uids), next(arena.uids)
    greedy = arena.crowd.start(before)
    arena.driver.hold(greedy.pid, 30)
    innocent = arena.innocent(arena.crowd.start(uid))
    arena.driver.hold(innocent.pid, 22)
    budget = {"name": "team", "match": {"user": str(before)}, "memory": "20GiB"}
    arena.start(
        ladders=[ladder("OverBudget", victim="largest")], rules=[OVER_BUDGET | {"for": "8s"}],
        remedies={"top": {"budgets": [budget]}}, users=[str(uid)],
    )  # fmt: skip
    assert "is not in remedies.allow.users" in arena.refused(greedy)

    def rededicate(config: dict[str, Any]) -> None:
        config["budgets"][0]["match"]["user"] = str(uid)

    reload(arena, rededicate)
    until(lambda: any("without a break" in each for each in arena.withheld()), "the clock begins anew", 60.0)
    arena.let_decide(8)
    assert not innocent.has_ended
    arena.driver.hold(innocent.pid, 10)
    guilty = arena.culprit(arena.crowd.start(uid))
    arena.driver.hold(guilty.pid, 25)
    arena.judge()


def reload(arena: Arena, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the agent's configuration, and have it read again."""
    path = arena.folder / "gpuagent.yaml"
    config = json.loads(path.read_text(encoding="utf-8"))
    change(config)
    path.write_text(json.dumps(config), encoding="utf-8")
    assert arena.agent is not None
    reloaded = arena.agent.command("config", "reload")
    assert reloaded.returncode == 0, reloaded
