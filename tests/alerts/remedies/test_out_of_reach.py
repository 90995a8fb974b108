"""Real processes that seem to be out of reach: without a first thread, or asleep where one signal alone ends them."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuagent_alerts.store.database import Store
from tests.agent.procfs.children import UNIT, ZOMBIE_LEADER, answer, child, end_first_thread, in_unit, python
from tests.alerts.remedies.processes import as_target, running
from tests.alerts.remedies.staging import config, stage

pytestmark = pytest.mark.slow

VFORKS = (
    "import ctypes, platform, signal\n"
    "print('ready', flush=True); input()\n"
    "clone = {'x86_64': 56, 'aarch64': 220}[platform.machine()]\n"
    "libc = ctypes.CDLL(None)\n"
    "libc.syscall(clone, 0x4000 | signal.SIGCHLD, 0, 0, 0, 0)\n"  # CLONE_VFORK: waits until the child ends or execs
    "libc.prctl(1, signal.SIGKILL); signal.pause()\n"  # the child: PR_SET_PDEATHSIG
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """On the disk, as the agent has it."""
    return Store(tmp_path / "state.db")


@contextmanager
def in_vfork() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits in vfork(), which shows as state D; its child ends with it."""
    with child(*python(VFORKS)) as process:
        answer(process)
        yield process


def sleep_in_vfork(process: subprocess.Popen[bytes]) -> None:
    """Have it vfork, and return once the kernel shows it in state D."""
    assert process.stdin is not None
    process.stdin.write(b"go\n")
    process.stdin.flush()
    while b") D " not in Path(f"/proc/{process.pid}/stat").read_bytes():
        pass


async def run_of(store: Store, pid: int, **settings: object) -> tuple[str, dict[str, Any]]:
    """What a remedy on this process comes to, and its record."""
    async with stage(config(as_target(pid).user, **settings), store, {"leaker": pid}) as one:
        one.fires(pid)
        await one.until(lambda: bool(one.ended()))
        (run,) = (await one.service.document())["remedies"]
        return one.ended()[0], run


def test_what_systemd_supervises_without_a_first_thread(store: Store) -> None:
    """P10: a service whose first thread has ended is still its unit's: it gets no bare signal."""
    with in_unit() as process:
        end_first_thread(process)
        result, run = asyncio.run(run_of(store, process.pid))
        assert result == "refused"
        assert f"systemd supervises it ({UNIT})" in run["end"]["detail"]
        assert process.poll() is None


def test_its_first_thread_ends_after_it_was_seen(store: Store) -> None:
    """PROC-02: no program shields itself by ending its first thread: it is the same process, and is ended."""

    async def story(process: subprocess.Popen[bytes]) -> str:
        async with stage(config(as_target(process.pid).user), store, {"leaker": process.pid}) as one:
            end_first_thread(process)
            one.fires(process.pid)
            await one.until(lambda: bool(one.ended()))
            return one.ended()[0]

    with child(*python(ZOMBIE_LEADER)) as process:
        answer(process)
        assert asyncio.run(story(process)) == "released"
        assert process.wait(10) == -signal.SIGTERM


def test_a_process_in_vfork(store: Store) -> None:
    """PROC-02: a wait in vfork() is state D, and SIGKILL ends it: SIGTERM is passed over, and the record says why."""
    with in_vfork() as process:
        sleep_in_vfork(process)
        result, run = asyncio.run(run_of(store, process.pid))
        assert result == "released"
        assert process.wait(10) == -signal.SIGKILL
        passed_over, _, intent, *_ = run["steps"]
        assert passed_over["note"].startswith("passed over: it is in uninterruptible sleep (state D)")
        assert "only SIGKILL may reach it now, and not SIGTERM" in passed_over["note"]
        assert (intent["kind"], intent["step"]) == ("intent", "SIGKILL")


def test_a_ladder_without_kill(store: Store) -> None:
    """PROC-02: a signal that stays pending could reach it when the reason has long gone: it is not sent."""
    ladder = {"match": ['alertname="GpuProcessMemoryLeak"'], "steps": [{"terminate": {"wait": 60}}]}
    with in_vfork() as process:
        sleep_in_vfork(process)
        result, run = asyncio.run(run_of(store, process.pid, ladders=[ladder]))
        assert result == "refused"
        assert "only SIGKILL may reach it now, and not SIGTERM" in run["end"]["detail"]
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
        assert "ShdPnd:\t0000000000000000" in status


def test_it_hides_in_vfork_between_two_steps(store: Store) -> None:
    """PROC-02: a process that was asked to end, and vforks then, is the same program: it is killed."""
    hides = VFORKS.replace("input()", "signal.signal(15, lambda *_: None); signal.pause()")
    with running(hides) as process:
        result, run = asyncio.run(run_of(store, process.pid))
        assert result == "released"
        assert process.wait(10) == -signal.SIGKILL
        assert [each["step"] for each in run["steps"] if each["kind"] == "intent"] == ["SIGTERM", "SIGKILL"]


IN_A_PID_NAMESPACE = (
    "import os, sys\n"
    "inner = \"import signal; signal.signal(10, lambda *_: None); print('ready', flush=True); signal.pause()\"\n"
    "os.execvp('unshare', ['unshare', '--fork', '--pid', '--kill-child', sys.executable, '-c', inner])\n"
)


@pytest.mark.parametrize(
    "step",
    [
        {"signal": {"name": "USR1", "wait": 5}},
        {"terminate": {"wait": 5}},
        {"exec": {"command": ["/bin/false", "{pid}"], "wait": 5}},
    ],
    ids=["signal", "terminate", "exec"],
)
def test_a_container_below_an_allowed_unit(store: Store, step: dict[str, Any]) -> None:
    """P10: a pid namespace of its own is a container: the name of its unit permits neither a signal nor a program."""
    ladder = {"match": ['alertname="GpuProcessMemoryLeak"'], "steps": [step]}
    with in_unit(IN_A_PID_NAMESPACE) as process:
        inner = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
        result, run = asyncio.run(run_of(store, inner, ladders=[ladder], allow={"units": [UNIT]}))
        assert result == "refused"
        assert "it runs in a container that is not known by name" in run["end"]["detail"]
        assert process.poll() is None
