"""Processes of the story that are real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent_simulator.node import SimulatedNode
from tests.simulator.conftest import OpenNode

GIB = 1024**3
BOUND = """
gpus:
  - model: h100
    count: 2
    processes:
      - {name: leaker, bind: leaker, memory: {shape: ramp, start: 1GiB, rate: 1GiB}}
      - {name: other, memory: 1GiB, pid: 4194305}
"""
HOLDING = BOUND.replace("bind: leaker,", "bind: leaker, holds_after_death: true,")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A real process that lives until it is ended."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_bound_process_has_its_real_pid(open_node: OpenNode, child: subprocess.Popen[bytes]) -> None:
    """Unknown until it is bound; then it is on every GPU that declares it, and its time begins."""
    stage = open_node(BOUND)
    assert stage.pids() == [4194305]
    stage.clock.advance(30)

    stage.node.bind("leaker", child.pid)
    stage.clock.advance(2)

    assert stage.pids(0) == stage.pids(1) == [child.pid, 4194305]
    assert stage.used_bytes(0) == 4 * GIB


@pytest.mark.parametrize("reaped", [False, True])
def test_its_memory_goes_with_it(open_node: OpenNode, child: subprocess.Popen[bytes], reaped: bool) -> None:
    """A process that has ended vanishes by itself, a zombie as well, though the clock stands still."""
    stage = open_node(BOUND)
    stage.node.bind("leaker", child.pid)
    assert stage.used_bytes() == 2 * GIB

    child.kill()
    _wait_for_end(child, reaped=reaped)

    assert stage.pids() == [4194305]
    assert stage.used_bytes() == GIB


def test_memory_may_stay_after_death(open_node: OpenNode, child: subprocess.Popen[bytes]) -> None:
    """PROC-01: with `holds_after_death` the driver keeps listing it, and its memory stands still."""
    stage = open_node(HOLDING)
    stage.node.bind("leaker", child.pid)
    stage.clock.advance(2)
    assert stage.used_bytes() == 4 * GIB

    child.kill()
    _wait_for_end(child, reaped=True)
    assert stage.pids() == [child.pid, 4194305]
    stage.clock.advance(60)
    assert stage.used_bytes() == 4 * GIB

    stage.node.unbind("leaker")
    assert stage.used_bytes() == GIB


def test_a_key_can_be_bound_again(open_node: OpenNode, child: subprocess.Popen[bytes]) -> None:
    """A restarted process begins with fresh memory."""
    stage = open_node(BOUND)
    stage.node.bind("leaker", child.pid)
    stage.clock.advance(20)
    stage.node.unbind("leaker")
    assert stage.pids() == [4194305]

    stage.node.bind("leaker", child.pid)

    assert stage.used_bytes() == 2 * GIB


def test_what_cannot_be_bound(open_node: OpenNode, child: subprocess.Popen[bytes]) -> None:
    """A key that the scenario lacks is told with those it has; a pid that has gone is an error."""
    node = open_node(BOUND).node
    child.kill()
    child.wait()

    with pytest.raises(KeyError, match="it has leaker"):
        node.bind("leeker", child.pid)
    with pytest.raises(KeyError, match="leeker"):
        node.unbind("leeker")
    with pytest.raises(ProcessLookupError):
        node.bind("leaker", child.pid)


def test_a_bound_pid_is_the_real_procs(child: subprocess.Popen[bytes], open_node: OpenNode) -> None:
    """The made-up /proc keeps out: what it says of a bound pid comes from the fallback."""
    node: SimulatedNode = open_node(BOUND).node
    node.bind("leaker", child.pid)

    assert not node.proc.exists(child.pid)
    assert isinstance(node.scenario_clock.clock, ManualClock)


def _wait_for_end(child: subprocess.Popen[bytes], *, reaped: bool) -> None:
    """Until the process has ended; not reaped it is a zombie."""
    if reaped:
        child.wait()
    else:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
