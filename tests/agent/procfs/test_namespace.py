"""PROC-04: whether the pids that the driver lists mean anything to the agent."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent.procfs.files import RealProc
from gpuagent.procfs.machine import HOST_PID_NAMESPACE, in_host_pid_namespace, namespace_inode, own_namespace
from gpuagent.procfs.table import ProcessTable
from tests.agent.procfs.children import running
from tests.fakes.proc import FakeProc, FakeWatcher

NAMESPACE = ["unshare", "--user", "--map-root-user", "--fork", "--pid", "--mount-proc"]
"""A pid namespace without the rights of root, where the kernel lets users have one."""

WHO_AM_I = """
import os
from gpuagent.core.clock import SystemClock
from gpuagent.procfs.files import RealProc
from gpuagent.procfs.table import PidfdWatcher, ProcessTable
table = ProcessTable(RealProc(), SystemClock(), watch=PidfdWatcher())
print(table.host_pid_namespace, table.resolve([os.getpid()])[os.getpid()])
"""

REUSE = """
import subprocess
from gpuagent.core.clock import SystemClock
from gpuagent.procfs.files import RealProc
from gpuagent.procfs.table import PidfdWatcher, ProcessTable

def start(*command):
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdin.write(b"x")
    process.stdin.flush()
    process.stdout.read(1)
    return process

table = ProcessTable(RealProc(), SystemClock(), watch=PidfdWatcher(), host_pid_namespace=True)
first = start("cat", "-u")
before = table.resolve([first.pid])[first.pid]
first.communicate()
with open("/proc/sys/kernel/ns_last_pid", "w") as last:
    last.write(str(first.pid - 1))
second = start("cat", "-")
after = table.resolve([second.pid])[second.pid]
second.communicate()
print(first.pid == second.pid, before.command, after.command, sep="|")
"""


def need_namespaces() -> None:
    """Skip where the machine has no pid namespaces for us."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare on the PATH: it is in Debian's util-linux")
    if subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel or container does not let the tests make a pid namespace")


def unshared(program: str) -> str:
    """Run a Python program in a pid namespace of its own, and return its output."""
    need_namespaces()
    command = [*NAMESPACE, sys.executable, "-c", program]
    environment = {"PYTHONPATH": ":".join(sys.path)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_the_inode_is_read_from_the_link(tmp_path: Path) -> None:
    """The host's namespace has one fixed inode; anything else is another one, or unknown."""
    (tmp_path / "self/ns").mkdir(parents=True)
    link = tmp_path / "self/ns/pid"
    assert not in_host_pid_namespace(str(tmp_path))

    link.symlink_to(f"pid:[{HOST_PID_NAMESPACE}]")
    assert in_host_pid_namespace(str(tmp_path))
    link.unlink()
    link.symlink_to("pid:[4026532001]")
    assert not in_host_pid_namespace(str(tmp_path))
    assert own_namespace(str(tmp_path)) == 4026532001
    assert namespace_inode("/some/file") == 0


def test_outside_of_the_hosts_namespace_nothing_is_resolved() -> None:
    """PROC-05: a process with the number of a listed pid is not taken for it: nothing is read."""
    proc = FakeProc()
    proc.put(7)
    table = ProcessTable(proc, ManualClock(), watch=FakeWatcher(), boot_id="b", host_pid_namespace=False)

    assert table.resolve([7, 8]) == {7: None, 8: None}
    table.refresh()
    assert proc.reads == []
    assert table.processes_seen == 0


def test_the_agent_sees_that_its_namespace_is_not_the_hosts() -> None:
    """PROC-04: really in another pid namespace, the table says so and resolves not even itself."""
    assert unshared(WHO_AM_I) == "False None"


def test_a_pid_that_is_really_used_again_is_read_again() -> None:
    """KILL-01: within one tick the kernel gives the number to another program."""
    same_pid, *commands = unshared(REUSE).split("|")
    if same_pid != "True":
        pytest.skip("the kernel gave out another pid, it cannot be told to use one again here")

    assert commands == ["cat -u", "cat -"]


def test_a_process_in_a_container_has_another_namespace() -> None:
    """A child namespace is seen by its inode, from outside of it."""
    need_namespaces()
    with running(*NAMESPACE, "cat") as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        inside = int(children[0])
        table = ProcessTable(RealProc(), ManualClock(), watch=FakeWatcher(able=False), host_pid_namespace=True)

        info = table.resolve([inside])[inside]

    assert info is not None
    assert info.pid_namespace not in {0, own_namespace()}
