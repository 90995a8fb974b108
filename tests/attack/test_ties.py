"""Who would end, or be hung up, together with the process that a remedy is about: it is left alone then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuagent.procfs.hanging import read_within
from tests.attack.arena import Arena, ladder
from tests.attack.cgroups import container_id
from tests.attack.driver import Entry
from tests.attack.processes import Living
from tests.attack.test_units import RESTART, Units
from tests.integration.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

CONTAINER = "system.slice/docker-{}.scope"
_PARTS = """
def drop(uid):
    if os.getuid() == uid:
        return
    os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
def begin(work):
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        work()
        os.write(tell, b'.')
        os.close(tell)
        while True:
            signal.pause()
    os.close(tell)
    assert os.read(told, 1)
    return child
def done(uid):
    drop(uid)
    print('ready', flush=True)
    while True:
        signal.pause()
mine, others = map(int, sys.argv[1:])
"""
TERMINAL = """
master, slave = pty.openpty()
def session():
    os.close(master)
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    drop(mine)
begin(session)
os.close(slave)
done(mine)
"""
"""It serves a terminal on which its own user works, as tmux and a notebook server do."""
SLAVE = """
master, slave = pty.openpty()
def works():
    os.close(master)
    os.setsid()
    os.dup2(slave, 0)
    drop(others)
begin(works)
os.close(slave)
done(mine)
"""
"""It serves a terminal that another user's program reads, and that is nobody's controlling terminal."""
FOREGROUND = """
master, slave = pty.openpty()
os.setsid()
fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
def job():
    os.setpgid(0, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.tcsetpgrp(slave, os.getpid())
    drop(others)
begin(job)
done(mine)
"""
"""It is a shell in whose terminal somebody else's program runs."""
STOPPED = """
os.setsid()
def job():
    os.setpgid(0, 0)
    drop(others)
child = begin(job)
os.kill(child, signal.SIGSTOP)
os.waitpid(child, os.WUNTRACED)
done(mine)
"""
"""It has stopped a job that nobody else could continue."""
TRACED = """
child = begin(lambda: drop(others))
libc = ctypes.CDLL(None)
assert libc.ptrace(0x4206, child, 0, 0x100000) == 0  # PTRACE_SEIZE, PTRACE_O_EXITKILL
done(mine)
"""
SIGNALED = """
def work():
    drop(others)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
begin(work)
done(mine)
"""
"""It has started another user's program, which asked for SIGKILL at the end of its parent."""
TIES = {
    "at a terminal": TERMINAL, "with a terminal open": SLAVE,
    "in the foreground": FOREGROUND, "stopped": STOPPED, "traced": TRACED,
    "with a signal at its end": SIGNALED,
}  # fmt: skip
KILL = {"kill": {"wait": "5s"}}


def tied(arena: Arena, code: str, uid: int, **place: Any) -> tuple[Living, Living]:
    """Start a process and one that depends on it; both must live."""
    one = arena.crowd.python(_PARTS + code, words=[str(uid), str(next(arena.uids))], **place)
    return arena.innocent(one), arena.innocent(arena.crowd.child_of(one))


@pytest.mark.parametrize("code", TIES.values(), ids=TIES)
def test_who_depends_on_it(arena: Arena, code: str) -> None:
    """KILL-03: a process on which another one depends is not ended; one with workers of its own alone is."""
    uid = next(arena.uids)
    greedy, other = tied(arena, code, uid)
    arena.driver.hold(greedy.pid, 30)
    arena.start(ladders=[ladder("TooMuch", KILL)], users=[str(uid)])
    assert f"pid {other.pid} (" in arena.refused(greedy)
    workers = "begin(lambda: drop(mine)); begin(lambda: drop(mine))\ndone(mine)"
    guilty = arena.culprit(arena.crowd.python(_PARTS + workers, words=[str(uid), "0"]))
    arena.crowd.children_of(guilty)
    arena.driver.hold(guilty.pid, 25)
    arena.judge()


@pytest.mark.parametrize("kind", ["signal", "program"])
def test_who_comes_to_depend_on_it(arena: Arena, kind: str) -> None:
    """KILL-03: whoever comes between two steps withholds the next one, be it a signal or a program with the pid."""
    uid = next(arena.uids)
    waits = "print('ready', flush=True)\nassert sys.stdin.readline()\n"
    one = arena.innocent(arena.crowd.python(f"{_PARTS}{waits}{TERMINAL}", uid, words=[str(uid), str(uid)]))
    arena.driver.hold(one.pid, 30)
    program = {"exec": {"command": [str(arena.stand_in("program")), "{pid}"], "wait": "5s"}}
    step = KILL if kind == "signal" else program
    arena.start(ladders=[ladder("TooMuch", {"notify": {"wait": "3s"}}, step)], users=[str(uid)])
    arena.step_of(one.pid)
    one.say()
    assert one.starter.stdout is not None
    assert one.starter.stdout.readline() == b"ready\n"
    other = arena.innocent(arena.crowd.child_of(one))
    assert f"pid {other.pid} (" in arena.refused(one)
    arena.judge()
    assert arena.executed("program") == []


@pytest.mark.parametrize("group", ["unit", "container"])
def test_who_depends_on_a_group(arena: Arena, group: str) -> None:
    """KILL-03: a unit or container that serves a terminal to somebody elsewhere is not restarted or handed over."""
    uid = next(arena.uids)
    step: dict[str, Any]
    allow: dict[str, Any]
    if group == "unit":
        units = Units(arena)
        names = [units.add(f"{each}-{uid}.service", uid) for each in ("serving", "own")]
        places = [f"system.slice/{each}" for each in names]
        step, scope, allow = RESTART, "process", {"units": names}
    else:
        names = [container_id(), container_id()]
        places = [CONTAINER.format(each) for each in names]
        program = str(arena.stand_in("program"))
        step, scope = {"exec": {"command": [program, "{container_id}"], "wait": "5s"}}, "container"
        allow = {"containers": names}
    _, other = tied(arena, TERMINAL, uid, cgroup=arena.cgroups.make(places[0]))
    greedy = arena.innocent(arena.crowd.start(uid, cgroup=arena.cgroups.make(places[0])))  # not the first in there
    (arena.cgroups.make("user.slice/elsewhere") / "cgroup.procs").write_text(str(other.pid), encoding="ascii")
    arena.driver.hold(greedy.pid, 30)
    arena.start(ladders=[ladder("TooMuch", step, scope=scope)], **allow)
    refused = arena.refused(greedy)
    assert f"pid {other.pid} (" in refused
    assert names[0][:12] in refused
    guilty = arena.culprit(arena.crowd.start(uid, cgroup=arena.cgroups.make(places[1])))
    arena.driver.hold(guilty.pid, 25)
    if group == "container":
        (line,) = until(lambda: arena.executed("program"), "the program was run")
        assert line == names[1]
        guilty.end()  # as the program would
    arena.judge()


SERVED: dict[str, Callable[[Arena, int], Living]] = {
    "in a session of its own": lambda arena, uid: arena.crowd.python(
        f"os.setsid(){_PARTS}done(mine)", words=[str(uid), "0"]
    ),
    "on a terminal": lambda arena, uid: arena.crowd.child_of(
        arena.crowd.python(f"{_PARTS}{TERMINAL}", words=[str(uid), "0"])
    ),
    "with a program on a terminal of its own that has ended": lambda arena, uid: arena.crowd.python(
        f"{_PARTS}ours, theirs = pty.openpty()\nos.close(theirs)\ndone(mine)", words=[str(uid), "0"]
    ),
}


@pytest.mark.parametrize("start", SERVED.values(), ids=SERVED)
def test_who_depends_on_others(arena: Arena, start: Callable[[Arena, int], Living]) -> None:
    """KILL-03: a process that depends on another one, or serves nobody, is ended, and nobody else is."""
    uid = next(arena.uids)
    guilty = arena.culprit(start(arena, uid))
    arena.driver.hold(guilty.pid, 30)
    arena.start(ladders=[ladder("TooMuch", KILL)], users=[str(uid)])
    arena.judge()


EXIT_SIGNAL = """
child = ctypes.PyDLL(None).syscall({'x86_64': 56, 'aarch64': 220}[os.uname().machine], signal.SIGKILL, 0, 0, 0, 0)
if not child:
    drop(mine)
    while True:
        signal.pause()
done(others)
"""
SERVES_FILES = """
libc, server = ctypes.CDLL(None), os.open('/dev/fuse', os.O_RDWR)
assert libc.unshare(0x20000) == 0 and libc.mount(b'none', b'/', None, 0x44000, None) == 0  # a private CLONE_NEWNS
options = b'fd=%d,rootmode=40000,user_id=%d,group_id=0,allow_other' % (server, mine)
assert libc.mount(b'served', b'/mnt', b'fuse', 0, options) == 0
done(mine)
"""


def test_a_parent_that_the_kernel_ends(arena: Arena) -> None:
    """KILL-03: a child of clone(2) with SIGKILL for an exit signal takes its parent along, whoever that works for."""
    uid = next(arena.uids)
    parent = arena.innocent(arena.crowd.python(_PARTS + EXIT_SIGNAL, words=[str(uid), str(next(arena.uids))]))
    greedy = arena.innocent(arena.crowd.child_of(parent))
    arena.driver.hold(greedy.pid, 30)
    arena.start(ladders=[ladder("TooMuch", KILL)], users=[str(uid)])
    assert f"pid {parent.pid} (" in arena.refused(greedy)
    end_another(arena, uid)


@pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="this machine has no /dev/fuse")
def test_a_file_system_that_it_serves(arena: Arena) -> None:
    """KILL-03: whoever has mapped a file of it would get SIGBUS, and cannot be named."""
    uid = next(arena.uids)
    greedy = arena.innocent(arena.crowd.python(_PARTS + SERVES_FILES, words=[str(uid), "0"]))
    arena.driver.hold(greedy.pid, 30)
    arena.start(ladders=[ladder("TooMuch", KILL)], users=[str(uid)])
    assert "/dev/fuse" in arena.refused(greedy)
    end_another(arena, uid)


HANGS = """
import struct
libc, server = ctypes.CDLL(None), os.open('/dev/fuse', os.O_RDWR)
assert libc.unshare(0x20000) == 0 and libc.mount(b'none', b'/', None, 0x44000, None) == 0  # a private CLONE_NEWNS
options = b'fd=%d,rootmode=40000,user_id=%d,group_id=%d' % (server, mine, mine)
assert libc.mount(b'served', b'/mnt', b'fuse', 0, options) == 0
drop(mine)
def attributes(node):
    mode, size = (0o40777, 0) if node == 1 else (0o100777, 4096)
    return struct.pack('<6Q10I', node, size, 8, 0, 0, 0, 0, 0, 0, mode, 1, mine, mine, 0, 4096, 0)
def answer(unique, data=b'', error=0):
    os.write(server, struct.pack('<IiQ', 16 + len(data), error, unique) + data)
def serve():
    while True:
        request = os.read(server, 1 << 20)
        _, operation, unique, node = struct.unpack_from('<IIQQ', request)
        if operation == 26:  # FUSE_INIT
            ahead = struct.unpack_from('<4I', request, 40)[2]
            answer(unique, struct.pack('<IIIIHHIIHH8I', 7, 31, ahead, 0, 16, 12, 131072, 1, 0, 0, *[0] * 8))
        elif operation == 1:  # FUSE_LOOKUP
            answer(unique, struct.pack('<QQQQII', 2, 0, 3600, 3600, 0, 0) + attributes(2))
        elif operation == 3:  # FUSE_GETATTR
            answer(unique, struct.pack('<QII', 3600, 0, 0) + attributes(node))
        elif operation == 14:  # FUSE_OPEN
            answer(unique, struct.pack('<QII', 1, 0, 0))
        elif operation == 25:  # FUSE_FLUSH: a file that is closed on exec waits for it
            continue
        else:
            answer(unique, error=-38)
job = os.fork()
if not job:
    os.close(server)
    os.open('/mnt/file', os.O_RDWR)
    os.execv('/bin/sleep', ['sleep', '1000000'])
print('ready', flush=True)
serve()
"""
"""Its child hangs within execve(2): whoever reads its `stat` waits for as long as it does."""


def hangs(pid: int) -> bool:
    """Return whether a look at a process does not come back."""
    try:
        read_within(1.0, Path(f"/proc/{pid}/stat").read_bytes)
    except TimeoutError:
        return True
    return False


@pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="this machine has no /dev/fuse")
@pytest.mark.parametrize("place", ["elsewhere", "on the GPU"])
def test_a_process_that_nobody_can_look_at(arena: Arena, place: str) -> None:
    """KILL-03: another user's process that hangs withholds nothing for others, and the agent answers by hand."""
    uid = next(arena.uids)
    server = arena.innocent(arena.crowd.python(_PARTS + HANGS, words=[str(next(arena.uids)), "0"]))
    (job,) = map(int, Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split())
    until(lambda: hangs(job), "the job hangs", 20.0)
    guilty = arena.culprit(arena.crowd.start(uid))
    arena.driver.hold(guilty.pid, 30)
    if place == "on the GPU":
        arena.driver.gpus[0].processes.append(Entry(job, 1))
        arena.driver.write()
    arena.start(ladders=[ladder("TooMuch", {"notify": {"wait": "5s"}}, KILL)], users=[str(uid)])
    arena.sees(guilty.pid)
    assert arena.agent is not None
    shown = arena.agent.command("kill", "--dry-run", str(guilty.pid))
    assert shown.returncode == 0, shown.stdout + shown.stderr
    arena.judge()


def end_another(arena: Arena, uid: int) -> None:
    """Have one on which nobody depends hold memory, and judge."""
    guilty = arena.culprit(arena.crowd.start(uid))
    arena.driver.hold(guilty.pid, 25)
    arena.judge()
