"""The end of a shell hangs up what runs in the foreground of its terminal, whosever it is: with real terminals."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from gpuagent.procfs.files import RealProc, parse_stat
from gpuagent_alerts.remedies.facts.ties import read_ties
from gpuagent_alerts.remedies.manual_requests import read_identified
from gpuagent_alerts.remedies.target import Ties
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.processes import reader
from tests.alerts.remedies.staging import config, stage
from tests.alerts.remedies.tied import ends, told

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be two users")
ALICE, BOB = 4001, 4002
LEADER = f"""
import fcntl, os, signal, sys, termios
terminal, uid, name = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
os.setsid()
fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
told, tell = os.pipe()
child = os.fork()
if sys.argv[4] == 'hung up' and not child and os.fork():  # its parent ends: it is no descendant any more
    os._exit(0)
if not child:
    os.setpgid(0, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    if sys.argv[4] in ('foreground', 'hung up'):
        os.tcsetpgrp(terminal, os.getpid())
    with open('/proc/self/comm', 'w') as comm:
        comm.write(name)
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.write(tell, b'%d' % os.getpid())
    if sys.argv[4] == 'stopped':
        os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        signal.pause()
os.close(tell)
child = int(os.read(told, 20))
if sys.argv[4] == 'stopped':
    os.waitpid(child, os.WUNTRACED)
if sys.argv[4] == 'hung up':
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    fcntl.ioctl(terminal, 0x5437)  # TIOCVHANGUP
os.setresgid({ALICE}, {ALICE}, {ALICE})
os.setresuid({ALICE}, {ALICE}, {ALICE})
print(child, flush=True)
while True:
    signal.pause()
"""


class Shell(NamedTuple):
    """The leader of a session with a terminal, and what it runs there."""

    pid: int
    job: int


@contextmanager
def shell(uid: int, name: str = "tool", place: str = "foreground") -> Iterator[Shell]:
    """A shell of alice's that runs a program of this user in its terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", LEADER, str(theirs), str(uid), name, place]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=[theirs])
    os.close(theirs)
    assert process.stdout is not None
    job = int(process.stdout.readline())
    held = os.pidfd_open(job)
    try:
        yield Shell(process.pid, job)
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(held, signal.SIGKILL)
        process.kill()
        process.communicate()
        os.close(held)
        os.close(ours)


def has_ended(pid: int) -> bool:
    """Whether only its parent is left to notice."""
    try:
        return parse_stat(RealProc().read(pid, "stat")).state in {"Z", "X"}
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize(
    ("place", "how"),
    [
        ("foreground", "in the foreground of the terminal of pid {}"),
        ("background", "started by pid {}, and of another user"),
        ("stopped", "a stopped job that nobody else could continue"),
        ("hung up", "in the session of pid {}, maybe in the foreground of a terminal that was hung up before"),
    ],
)
def test_who_is_hung_up(place: str, how: str) -> None:
    """KILL-03: the foreground, what was that, who is stopped in that session; others whom the shell has started."""
    with shell(BOB, place=place) as one:
        ties = read_ties(RealProc(), reader(), [one.pid])
        assert [(each.pid, each.belongs, each.why) for each in ties.processes] == [
            (one.job, False, how.format(one.pid))
        ]
        assert read_ties(RealProc(), reader(), [one.job]).processes == ()
        if place == "hung up":
            os.kill(one.pid, signal.SIGKILL)
            assert ends(one.job)


def test_a_job_of_its_own_user() -> None:
    """A job in the background of the same user gets another parent, and lives on: nothing ties it."""
    with shell(ALICE, place="background") as one:
        assert read_ties(RealProc(), reader(), [one.pid]) == Ties()


def test_a_job_of_its_own_user_after_the_terminal() -> None:
    """It may be what the kernel hangs up then: it is named, as what falls along with it."""
    with shell(ALICE, place="hung up") as one:
        ((pid, belongs, _),) = told(one.pid)
        assert (pid, belongs) == (one.job, True)


@pytest.mark.parametrize("name", ["tool", "sshd"])
@pytest.mark.parametrize("uid", [ALICE, BOB])
def test_a_rule(tmp_path: Path, uid: int, name: str) -> None:
    """KILL-03: a rule ends a shell whose foreground is its own user's, and none that takes others with it."""
    meant = uid == ALICE and name == "tool"
    with shell(uid, name) as one:

        async def story() -> None:
            async with stage(config(str(ALICE)), Store(tmp_path / "state.db"), {"leaker": one.pid}) as staged:
                staged.fires(one.pid)
                if meant:  # on a busy machine only when it is tried again
                    await staged.until(lambda: "released" in staged.ended(), ticks=8000)
                    steps = [step for run in (await staged.service.document())["remedies"] for step in run["steps"]]
                    assert any(f"pid {one.job} (" in each for step in steps for each in step["ends_with_it"])
                    return
                await staged.until(lambda: bool(staged.ended()))
                (run,) = (await staged.service.document())["remedies"]
                assert run["end"]["result"] == "refused"
                wanted = "ends with it: sshd is on the never-list" if name == "sshd" else "hangs up, pid"
                assert wanted in run["end"]["detail"]

        asyncio.run(story())
        assert (has_ended(one.pid), has_ended(one.job) and not meant) == (meant, False)


@pytest.mark.parametrize(("force", "shown"), [(False, True), (True, False), (True, True)])
def test_by_hand(tmp_path: Path, *, force: bool, shown: bool) -> None:
    """A person who was shown whom it hangs up answers for them with --force, and only then."""
    with shell(BOB) as one:

        async def story() -> None:
            settings = config(str(ALICE), dry_run=True, allow={})
            async with stage(settings, Store(tmp_path / "state.db"), {"leaker": one.pid}) as staged:
                steps = list(staged.service.settings.ladders[0].steps)
                request = staged.shown(one.pid)
                assert [pid for pid, _ in request["ends_with_it"]] == [one.job]
                asked = read_identified(request | ({} if shown else {"ends_with_it": []}))
                kill = asyncio.create_task(
                    staged.service.kill(one.pid, steps, asked, uid=0, force=force, dry_run=False)
                )
                await staged.until(kill.done)
                result = await kill
                if force and shown:
                    assert result["result"] == "released"
                    return
                (advice,) = result["advice"]
                assert result["result"] == "refused"
                assert advice.startswith("Ask again: " if force else "Say --force ")

        asyncio.run(story())
        assert has_ended(one.pid) is (force and shown)
