"""Who looks idle and is not: it works in another engine, its memory moves, or it cannot move as it is frozen."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuagent_alerts.rules.file import load_rule_file
from gpuagent_alerts.rules.model import AlertRule
from gpuagent_alerts.shipped import RULES_FILE
from tests.attack.arena import Arena, ladder
from tests.attack.cgroups import container_id
from tests.integration.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

KILL = {"kill": {"wait": "3s"}}
SM_ALONE = (
    "gpuagent_process_memory_used_bytes > 1e9 and on (job, instance, gpu, uuid, pid, gpu_instance_id,"
    " compute_instance_id) gpuagent_process_sm_utilization_ratio == 0"
)
NOT_BUSY = "gpuagent_process_sm_utilization_ratio < 0.05"
IDLE_FOR = 2.0


def shipped() -> str:
    """Return the expression of the shipped rule on idle processes."""
    rules = (rule for group in load_rule_file(RULES_FILE) for rule in group.rules)
    (found,) = (each for each in rules if isinstance(each, AlertRule) and each.name == "GpuProcessIdleHoldingMemory")
    return found.expression.text


@contextmanager
def frozen(cgroup: Path) -> Iterator[None]:
    """Freeze a cgroup for a while."""
    freeze = cgroup / "cgroup.freeze"
    if not freeze.exists():
        pytest.skip("this kernel has no freezer of cgroups of version 2")
    freeze.write_text("1", encoding="ascii")
    try:
        until(lambda: "frozen 1" in (cgroup / "cgroup.events").read_text(encoding="ascii"), "it is frozen")
        yield
    finally:
        freeze.write_text("0", encoding="ascii")


@pytest.mark.parametrize("chosen_by", ["the shipped rule", SM_ALONE, NOT_BUSY, "victim"])
def test_who_works_elsewhere(arena: Arena, chosen_by: str) -> None:
    """KILL-08: who transcodes, or loads a model, is at 0 % of the multiprocessors; who rests is ended."""
    uid = next(arena.uids)
    transcodes, loads = (arena.innocent(arena.crowd.start(uid)) for _ in range(2))
    idle = arena.culprit(arena.crowd.start(uid))
    arena.driver.hold(transcodes.pid, 22, encoder=60)
    arena.driver.hold(loads.pid, 26)
    arena.driver.hold(idle.pid, 4)
    if chosen_by == "victim":
        chosen = ladder("Full", KILL, victim="idle")
        rule = {"alert": "Full", "expr": "gpuagent_gpu_memory_used_ratio > 0.3"}
    else:
        chosen = ladder("Idle", KILL)
        rule = {"alert": "Idle", "expr": shipped() if chosen_by == "the shipped rule" else chosen_by, "for": "2s"}
    arena.start(ladders=[chosen], rules=[rule], remedies={"idle_for": f"{IDLE_FOR:g}s"}, users=[str(uid)])
    (loading,) = (each for each in arena.driver.gpus[0].processes if each.pid == loads.pid)
    end = time.monotonic() + 5 * IDLE_FOR
    while time.monotonic() < end or not idle.has_ended:
        assert time.monotonic() < end + 60, arena.runs()
        assert loading.gib is not None
        loading.gib = 26 + (loading.gib - 26 + 0.25) % 8
        arena.driver.write()
        time.sleep(0.2)  # as fast as the agent reads
    arena.judge()


@pytest.mark.parametrize(
    "idle", ["gpuagent_gpu_utilization_ratio == 0", "gpuagent_gpu_power_watts < 500"], ids=["utilization", "power"]
)
def test_a_gpu_that_looks_idle(arena: Arena, idle: str) -> None:
    """KILL-08: at 0 % of its kernels a GPU encodes: `victim: largest` ends nobody there, however short `for` is."""
    uid = next(arena.uids)
    transcodes, other = (arena.innocent(arena.crowd.start(uid)) for _ in range(2))
    arena.driver.hold(transcodes.pid, 44, encoder=60)
    arena.driver.hold(other.pid, 4)
    rule = {"alert": "Idle", "expr": f"gpuagent_gpu_memory_used_ratio > 0.3 and on (gpu, uuid) {idle}", "for": "0s"}
    arena.start(
        ladders=[ladder("Idle", KILL, victim="largest")], rules=[rule], remedies={"idle_for": "2s"}, users=[str(uid)]
    )
    assert "its rule is about idleness" in arena.refused(transcodes)
    arena.let_decide()
    arena.judge()


def test_a_paused_container(arena: Arena) -> None:
    """PROC-02: what a cgroup freezes gets no signal that would end it when it goes on; SIGKILL reaches it."""
    ids = [container_id(), container_id()]
    places = [arena.cgroups.make(f"system.slice/docker-{each}.scope") for each in ids]
    paused = arena.innocent(arena.crowd.start(next(arena.uids), cgroup=places[0]))
    with frozen(places[0]), frozen(places[1]):
        arena.driver.hold(paused.pid, 30)
        arena.start(ladders=[ladder("TooMuch")], containers=ids)
        assert "it is frozen by its cgroup" in arena.refused(paused)
        arena.let_decide()
    arena.judge()
