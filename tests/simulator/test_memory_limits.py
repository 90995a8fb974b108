"""Memory limits of cgroups: what is beyond one is refused to the processes in it alone."""

from __future__ import annotations

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent_simulator.curves import Constant
from gpuagent_simulator.memory_limits import NO_LIMIT_BYTES, CgroupLimit, CgroupLimits
from gpuagent_simulator.process import Process
from gpuagent_simulator.spec import ProcessSpec
from tests.simulator.conftest import OpenNode, Stage

GIB = 2**30
ROOT = "/sys/fs/cgroup"
NODE = """
driver: 615.36.01
gpus:
  - model: h100
    memory: {total: 80GiB, reserved: 0, base_used: 0}
    processes:
      - {name: leaker, cgroup: /system.slice/a.service, memory: {shape: ramp, start: 4GiB, rate: 1GiB}}
      - {name: neighbor, cgroup: /system.slice/b.service, memory: {shape: ramp, start: 8GiB, rate: 64MiB}}
"""


def limit(stage: Stage, cgroup: str, hard_bytes: int) -> None:
    """Set a hard limit, as NVML's caller does."""
    given = pynvml.c_nvmlSetMemoryLimits_v1_t()
    given.nameSpace, given.softLimit, given.hardLimit = f"{ROOT}{cgroup}".encode(), 0, hard_bytes
    pynvml.nvmlDeviceSetMemoryLimits_v1(stage.handle(), given)


def held(stage: Stage) -> list[tuple[int, int]]:
    """What each process holds, and what it was refused."""
    return [(row.used_bytes or 0, row.denied_bytes) for row in stage.node.session.gpus[0].moment().rows]


def test_what_is_beyond_the_limit_is_refused_to_that_process_only(open_node: OpenNode) -> None:
    """The limited one stays at its limit, its neighbor grows on and is refused nothing; lifted, it grows again."""
    stage = open_node(NODE)
    limit(stage, "/system.slice/a.service", 6 * GIB)
    stage.clock.advance(100)
    (leaker, denied), (neighbor, nothing) = held(stage)
    assert (leaker, nothing) == (6 * GIB, 0)
    assert denied == 98 * GIB
    assert neighbor == 8 * GIB + 100 * 64 * 2**20
    limit(stage, "/system.slice/a.service", NO_LIMIT_BYTES)
    assert held(stage)[0][0] > 6 * GIB


def test_without_a_limit_the_neighbor_meets_the_end_of_the_memory(open_node: OpenNode) -> None:
    """What the limit is for: a leak takes all there is, and whoever comes then is refused."""
    stage = open_node(NODE)
    stage.clock.advance(100)
    assert held(stage)[1][1] > 0


def test_what_is_held_already_stays(open_node: OpenNode) -> None:
    """A limit below the use takes nothing away: only what would come after it is refused."""
    stage = open_node(NODE)
    stage.clock.advance(10)
    before = held(stage)[0][0]
    limit(stage, "/system.slice/a.service", 1 * GIB)
    stage.clock.advance(10)
    assert held(stage)[0][0] == before


SIZES = st.integers(0, 2**36)


@given(
    hard=st.integers(0, 2**36),
    wanted=st.lists(st.tuples(SIZES, SIZES, st.sampled_from(["/a", "/a/b", "/c"])), max_size=6),
)
def test_a_limit_holds_for_all_in_it_and_nobody_else(hard: int, wanted: list[tuple[int, int, str]]) -> None:
    """Outside all get what they want; inside no sum is beyond the limit, or what was held before it."""
    processes = [
        Process(ProcessSpec(name=str(number), cgroup=cgroup, memory=Constant(0)), 0, 0, number)
        for number, (_, _, cgroup) in enumerate(wanted)
    ]
    limits = CgroupLimits(root="")
    limits.set("/a", CgroupLimit(0, hard), [(each, row[0]) for each, row in zip(processes, wanted, strict=True)])
    give = limits.rooms(processes)
    got = [give(each, row[1]) for each, row in zip(processes, wanted, strict=True)]
    inside = [index for index, row in enumerate(wanted) if row[2] != "/c"]
    assert all(got[index] == row[1] for index, row in enumerate(wanted) if index not in inside)
    assert all(got[index] >= min(wanted[index][0], wanted[index][1]) for index in inside)
    assert sum(got[index] for index in inside) <= max(hard, sum(wanted[index][0] for index in inside))


@pytest.mark.parametrize("driver", ["580.95.05", "610.10.01"])
def test_an_older_driver_has_no_limits(open_node: OpenNode, driver: str) -> None:
    """Before 615 the library lacks the call."""
    stage = open_node(NODE.replace("615.36.01", driver))
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        limit(stage, "/system.slice/a.service", GIB)
