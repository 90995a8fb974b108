"""A number changes hands while the driver lists it on: whoever bears it next holds nothing."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

import pytest

from tests.attack.arena import Arena, ladder
from tests.attack.driver import Entry, ListedGpu, started
from tests.attack.processes import Living, a_tick_later

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

NAMED = ladder("TooMuch")
BY_NUMBER = ladder("ByNumber")
LARGEST = ladder("GpuFull", victim="largest")


def holding(arena: Arena, *ladders: Mapping[str, Any]) -> tuple[Living, int]:
    """Start the agent over a holder whom no allow list names; return the holder, and the user who is allowed.

    The holder's number is refused, so the agent has read it, decided and written it down.
    """
    allowed, other = next(arena.uids), next(arena.uids)
    holder = arena.crowd.start(other)
    arena.driver.hold(holder.pid, 45, lags=True)
    arena.start(ladders=ladders or (NAMED,), users=[str(allowed)])
    assert "is not in remedies.allow.users" in arena.refused(holder)
    return holder, allowed


def hand_over(arena: Arena, holder: Living, uid: int) -> Living:
    """End the holder of a number that the driver lists on, and give the number to an innocent process."""
    number = holder.pid
    holder.end()
    a_tick_later()
    return arena.innocent(arena.crowd.given(number, uid))


def end_a_holder(arena: Arena, uid: int) -> None:
    """Have another process hold memory for real, and judge."""
    guilty = arena.culprit(arena.crowd.start(uid))
    arena.driver.hold(guilty.pid, 30)
    arena.judge()


@pytest.mark.parametrize("chosen", [NAMED, BY_NUMBER, LARGEST], ids=["named", "by number", "largest"])
def test_the_driver_lags(arena: Arena, chosen: Mapping[str, Any]) -> None:
    """KILL-01: the holder ends, its number goes to a process that is on no GPU, and the driver lists it on."""
    holder, allowed = holding(arena, chosen)
    heir = hand_over(arena, holder, allowed)
    arena.let_decide()
    if chosen is LARGEST:  # what no process holds any more is the largest
        arena.driver.drop(heir.pid)
    end_a_holder(arena, allowed)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_over_a_restart_of_the_agent(arena: Arena, number: int) -> None:
    """KILL-01: the number changes hands while no agent runs, be it stopped or killed."""
    holder, allowed = holding(arena, NAMED, BY_NUMBER)
    arena.stop(number)
    heir = hand_over(arena, holder, allowed)
    arena.start_again()
    arena.sees(heir.pid)
    arena.let_decide()
    end_a_holder(arena, allowed)


@pytest.mark.parametrize("gap", ["empty", "failed", "reload", "reload without an address"])
def test_a_gap_in_the_lists(arena: Arena, gap: str) -> None:
    """KILL-01: one empty list, failed ones or a reload of the driver make nobody a holder of what was listed before."""
    holder, allowed = holding(arena, NAMED, BY_NUMBER)
    heir = hand_over(arena, holder, allowed)
    arena.let_decide()
    (gpu,) = arena.driver.gpus
    before = gpu.processes
    if gap == "empty":
        gpu.processes = []
        arena.driver.write()
        arena.let_decide(2)
        gpu.processes = before
        arena.driver.write()
    elif gap == "failed":
        gpu.fails = True
        arena.driver.write()
        arena.let_decide(2)
        gpu.fails = False
        arena.driver.write()
    else:
        without = {"kind": "error", "calls": ["nvmlDeviceGetPciInfo*"], "code": "unknown"}
        arena.reload_driver(*() if gap == "reload" else (without,))
    arena.sees(heir.pid)
    arena.let_decide()
    end_a_holder(arena, allowed)


def test_one_gpu_forgets_and_another_lists_on(arena: Arena) -> None:
    """KILL-01: a process that holds memory on one GPU is no holder of what its number is listed with on another."""
    arena.gpus(ListedGpu("GPU-one"), ListedGpu("GPU-other"))
    holder, allowed = holding(arena, NAMED, BY_NUMBER)
    heir = hand_over(arena, holder, allowed)
    arena.driver.gpus[1].processes.append(Entry(heir.pid, 2, started(heir.pid)))
    arena.driver.write()
    arena.let_decide()
    guilty = arena.culprit(arena.crowd.start(allowed))
    arena.driver.hold(guilty.pid, 30, gpu=1)
    arena.judge()
