"""Real processes in the states that look like something else. Each says by a line that it is ready."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gpuagent.core.clock import SystemClock
from gpuagent.core.growth import MemoryKey
from gpuagent.procfs.files import ProcFiles, RealProc
from gpuagent.procfs.machine import boot_id, boot_time_seconds, own_namespace
from gpuagent.procfs.reader import BootContext, ProcessReader
from gpuagent.procfs.redact import Redactor
from gpuagent.procfs.users import UserNames
from gpuagent_alerts.remedies.execution.pidfd import PidfdProcess
from gpuagent_alerts.remedies.facts.never_entries import NeverListEntries
from gpuagent_alerts.remedies.observation import Condition, Observation, RemedyRequest
from gpuagent_alerts.remedies.safeguards.policy import AllowList, Policy
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from gpuagent_alerts.remedies.target import Target

PLAIN = "print('ready', flush=True); import signal; signal.pause()"
IGNORES_TERM = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); signal.pause()"
)
ZOMBIE_LEADER = (
    "import ctypes, platform, threading, time; threading.Thread(target=time.sleep, args=(1000,)).start();"
    "print('ready', flush=True); ctypes.CDLL(None).syscall(60 if platform.machine() == 'x86_64' else 93, 0)"
)


@contextmanager
def running(code: str, *before: str, stdin: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """A Python process that has said that it is ready; killed and reaped in the end."""
    process = subprocess.Popen([*before, sys.executable, "-c", code], stdin=stdin, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def reader() -> ProcessReader:
    """Reads /proc as the agent does."""
    boot = BootContext(boot_id(), boot_time_seconds(), own_namespace())
    return ProcessReader(RealProc(), boot, users=UserNames(SystemClock()), redactor=Redactor(()))


def as_target(pid: int) -> Target:
    """As if it had been measured on GPU 0."""
    info = reader().read(pid).info
    return Target(
        id=info.id, key=MemoryKey("GPU-0", pid), gpu_index=0, name=info.name, uid=info.uid, user=info.user,
        command=info.command, cgroup=info.cgroup, used_bytes=2**30, proven_names=info.proven_names,
        process_group=info.process_group,
    )  # fmt: skip


def refusals_of(
    pid: int, never: tuple[str, ...] = (), *, entries: NeverListEntries | None = None, files: ProcFiles | None = None
) -> list[str]:
    """What a rule that may end processes of this one's user is refused for, by what /proc says while it is held."""
    target = as_target(pid)
    held = PidfdProcess(target, files or RealProc(), reader(), never=entries or NeverListEntries(never))
    try:
        facts = asyncio.run(held.facts())
    finally:
        held.close()
    policy = Policy(AllowList(users=(target.user,)), never=never)
    observation = Observation(1e9, Condition.HOLDS, target=target)
    return list(
        policy.refusals(
            RemedyStep(StepKind.TERMINATE, 1.0), RemedyRequest("a1"), observation, facts, 1e9, frozenset({1})
        )
    )
