"""Real processes, held by real pidfds."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.core.identity import ProcessId
from gpuagent.procfs.files import RealProc, parse_stat
from gpuagent_alerts.remedies.execution.pidfd import PidfdProcess, ancestors
from gpuagent_alerts.remedies.observation import NotPermitted, ProcessEnded
from gpuagent_alerts.remedies.target import Facts, differences, mismatches
from tests.alerts.remedies.processes import IGNORES_TERM, PLAIN, ZOMBIE_LEADER, as_target, reader, running
from tests.fakes.nobody import run_as_nobody
from tests.torture import times


def hold(pid: int) -> PidfdProcess:
    """As the ladder does."""
    return PidfdProcess(as_target(pid), RealProc(), reader())


def facts(held: PidfdProcess) -> Facts:
    """Read them once."""
    return asyncio.run(held.facts())


def wait_for_end(pid: int) -> None:
    """By a pidfd of our own: has_ended is what is tested."""
    descriptor = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        assert poll.poll(10_000)
    finally:
        os.close(descriptor)


def wait_for_state(pid: int, state: str) -> None:
    """Until /proc shows it."""
    for _ in range(1000):
        if parse_stat(RealProc().read(pid, "stat")).state == state:
            return
        select.select([], [], [], 0.005)
    pytest.fail(f"pid {pid} never reached state {state}")


def test_a_process_like_any_other() -> None:
    """What is read twice is the same, and SIGTERM ends it."""
    with running(PLAIN) as process:
        held = hold(process.pid)
        first, second = facts(held), facts(held)
        assert list(mismatches(as_target(process.pid), first.identity)) == []
        assert list(differences(first.identity, second.identity)) == []
        assert first.identity.executable == os.path.realpath(sys.executable)
        assert not first.kernel_thread
        assert not first.is_dead
        held.send(signal.SIGTERM)
        wait_for_end(process.pid)
        assert held.has_ended()
        held.close()


def test_another_process_group() -> None:
    """KILL-03: a process that has left its process group is in doubt: those that fall together are known by it."""
    moves = "import os, sys; print('ready', flush=True); sys.stdin.readline(); os.setpgid(0, 0)\n"
    with running(f"{moves}print('done', flush=True); sys.stdin.readline()", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        held, target = hold(process.pid), as_target(process.pid)
        before = facts(held)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        after = facts(held)
        assert list(differences(before.identity, after.identity)) == ["its process group has changed"]
        assert list(mismatches(target, after.identity)) == ["its process group has changed"]
        held.close()


def test_a_zombie_is_dead() -> None:
    """PROC-02: it takes signals and does nothing with them: said to be dead."""
    with running(PLAIN) as process:
        held = hold(process.pid)
        held.send(signal.SIGKILL)
        wait_for_end(process.pid)
        assert held.has_ended()
        assert facts(held).is_dead
        held.close()


def test_a_zombie_leader_is_alive() -> None:
    """PROC-02: its threads live and hold everything; SIGKILL ends them."""
    with running(ZOMBIE_LEADER) as process:
        wait_for_state(process.pid, "Z")
        held = hold(process.pid)
        seen = facts(held)
        assert (seen.state, seen.threads) == ("Z", 2)
        assert not seen.is_dead
        assert not held.has_ended()
        held.send(signal.SIGKILL)
        wait_for_end(process.pid)
        assert held.has_ended()
        held.close()


def test_who_ignores_sigterm() -> None:
    """It can be seen beforehand."""
    with running(IGNORES_TERM) as process:
        held = hold(process.pid)
        seen = facts(held)
        assert seen.ignores(signal.SIGTERM)
        assert not seen.ignores(signal.SIGKILL)
        held.close()


def test_reaped_is_gone() -> None:
    """The process was reaped after it was held: gone, whoever has the number."""
    with running(PLAIN) as process:
        held = hold(process.pid)
        process.kill()
        process.wait()
        with pytest.raises(ProcessEnded):
            facts(held)
        with pytest.raises(ProcessEnded):
            held.send(signal.SIGTERM)
        held.close()


def test_nobody_has_this_pid() -> None:
    """A pid of a scenario, or none: refused at once."""
    with running(PLAIN) as process:
        made_up = replace(as_target(process.pid), id=ProcessId("boot", 2**22 + 7, 1))
    with pytest.raises(NotPermitted, match="made it up"):
        PidfdProcess(made_up, RealProc(), reader())


def test_exec_after_the_choice() -> None:
    """Same pid, same start time, another program: seen."""
    shell = "print('ready', flush=True); import os, sys; sys.stdin.readline(); os.execvp('sleep', ['sleep', '1000'])"
    process = subprocess.Popen([sys.executable, "-c", shell], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        held = hold(process.pid)
        chosen = facts(held)
        process.stdin.write("go\n")
        process.stdin.flush()
        for _ in range(1000):
            if Path(f"/proc/{process.pid}/comm").read_text().strip() == "sleep":
                break
            select.select([], [], [], 0.005)
        now = facts(held)
        assert now.identity.id == chosen.identity.id
        assert any("another program" in each for each in differences(chosen.identity, now.identity))
        held.close()
    finally:
        process.kill()
        process.communicate()


def test_another_users_process() -> None:
    """EPERM is told as such, by signal 0 already."""
    with running(PLAIN) as process:
        code = textwrap.dedent(f"""
            import sys
            from gpuagent_alerts.remedies.execution.pidfd import PidfdProcess
            from gpuagent.procfs.files import RealProc
            from gpuagent_alerts.remedies.observation import NotPermitted
            from tests.alerts.remedies.processes import as_target, reader
            held = PidfdProcess(as_target({process.pid}), RealProc(), reader())
            try:
                held.send(0)
            except NotPermitted:
                print("refused")
        """)
        result = run_as_nobody(code)
        assert result.stdout.strip() == "refused", result.stderr
        assert process.poll() is None


def test_own_ancestors() -> None:
    """KILL-03: the agent and all above it."""
    files = RealProc()
    found = ancestors(files, os.getpid(), lambda pid: parse_stat(files.read(pid, "stat")).parent_pid)
    assert {1, os.getpid(), os.getppid()} <= found


REUSE = """
import asyncio, os, signal, subprocess, sys
from gpuagent_alerts.remedies.execution.pidfd import PidfdProcess
from gpuagent.procfs.files import RealProc
from gpuagent_alerts.remedies.target import mismatches
from gpuagent_alerts.remedies.observation import ProcessEnded
from tests.alerts.remedies.processes import as_target, reader

def start(): return subprocess.Popen(["sleep", "1000"])

reused = 0
for _ in range(int(sys.argv[1])):
    victim = start()
    chosen = as_target(victim.pid)
    early = PidfdProcess(chosen, RealProc(), reader())
    victim.kill(); victim.wait()
    with open("/proc/sys/kernel/ns_last_pid", "w") as last:
        last.write(str(victim.pid - 1))
    innocent = start()
    if innocent.pid == victim.pid:
        reused += 1
        try:
            early.send(signal.SIGKILL)
            print("the old handle reached the innocent")
        except ProcessEnded:
            pass
        late = PidfdProcess(chosen, RealProc(), reader())
        facts = asyncio.run(late.facts())
        # Start times are 10 ms apart: two within one tick are told apart by the pidfd's inode, or by nothing
        # that the late handle can know: the ladder opens its handle before it trusts a choice that old.
        if facts.identity.id != chosen.id and not list(mismatches(chosen, facts.identity)):
            print("the innocent was taken for the victim")
        late.close()
    early.close()
    assert innocent.poll() is None, "the innocent is dead"
    innocent.kill(); innocent.wait()
print("reused", reused)
"""


@pytest.mark.slow
@pytest.mark.timeout(660)
def test_pid_reuse() -> None:
    """KILL-01: the number is given to an innocent process, again and again: it is never hit, and never mistaken."""
    tries = times(500, 10_000)
    namespace = ["unshare", "--user", "--map-root-user", "--fork", "--pid", "--mount-proc"]
    if subprocess.run([*namespace, "true"], check=False, capture_output=True).returncode:
        pytest.skip("unprivileged user namespaces are not permitted here")
    path = os.pathsep.join(["agent", "exporters", "alerts", "simulator", *sys.path])
    result = subprocess.run(
        [*namespace, sys.executable, "-c", REUSE, str(tries)],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path}, timeout=600,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[:-1] == []
    assert int(result.stdout.split()[-1]) >= tries // 2
