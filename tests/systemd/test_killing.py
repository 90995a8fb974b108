"""Killing by the installed service, as an operator asks for it: with the drop-in for the right, and without."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.systemd.machine import Machine
from tests.systemd.test_service import DROP_INS, adjusted

pytestmark = [pytest.mark.slow, pytest.mark.extended, pytest.mark.timeout(300), pytest.mark.needs("systemd-nspawn")]

KILL = Path(__file__).parents[2] / "systemd" / "gpuagent-kill.conf"
SCENARIO = """
gpus:
  - model: h100
    processes: [{name: holder, bind: holder, memory: {shape: constant, value: 40GiB}}]
"""
CONFIG = """
remedies:
  dry_run: false
  allow: {users: [alice]}
  limits: {pause: 0s, cooldown: 0s, per_hour: 99, per_day: 99}
  proof: 20s
"""


@contextmanager
def holder(machine: Machine) -> Iterator[str]:
    """The pid of a process of alice's, in a scope: no service of systemd's, which is not for bare signals."""
    start = "setsid systemd-run --quiet --scope --uid=alice sleep 1000 </dev/null >/dev/null 2>&1 & echo $!"
    pid = machine.run("sh", "-c", start)
    machine.until("sleep", "cat", f"/proc/{pid}/comm")
    try:
        yield pid
    finally:
        machine.try_run("kill", "-KILL", pid)


def test_with_the_right(machine: Machine) -> None:
    """KILL-06: with kill.conf a member of the group ends another user's process, and the record has its name."""
    machine.write(f"{DROP_INS}/kill.conf", KILL.read_text())
    with holder(machine) as pid, adjusted(machine, arguments=f"--bind holder={pid}", config=CONFIG, scenario=SCENARIO):
        machine.until(f'"pid": {pid}', "gpuagent", "ps", "--json")
        done = machine.try_run("gpuagent", "kill", pid, "--yes", user="oper")
        assert (done.returncode, "released, 40.0 GiB came back" in done.stdout) == (0, True), done
        assert machine.try_run("test", "-d", f"/proc/{pid}").returncode == 1
        (run,) = json.loads(machine.run("gpuagent", "remedies", "--json"))["remedies"]
        assert run["asked_by"].startswith("oper (uid ")
        denied = machine.try_run("gpuagent", "kill", pid, "--yes", user="stranger")
        assert denied.returncode == 1


def test_without_the_right(machine: Machine) -> None:
    """The unit as it is shipped: the kernel refuses, it is said and recorded, rules are stopped, and all live."""
    with holder(machine) as pid, adjusted(machine, arguments=f"--bind holder={pid}", config=CONFIG, scenario=SCENARIO):
        machine.until(f'"pid": {pid}', "gpuagent", "ps", "--json")
        done = machine.try_run("gpuagent", "kill", pid, "--yes", user="oper")
        assert (done.returncode, "not permitted" in done.stdout) == (1, True), done
        again = machine.try_run("gpuagent", "kill", pid, "--yes", user="oper")
        assert (again.returncode, "kill.conf" in again.stdout) == (1, True), again
        assert "Remedies are stopped" in machine.try_run("gpuagent", "remedies").stderr  # rules are, people are not
        machine.run("test", "-d", f"/proc/{pid}")
        machine.run("gpuagent", "remedies", "reset")
