"""Whose word a message is: connections that are inherited, passed on, and outlive their process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gpuagent.clients.connection import Connection
from gpuagent.procfs.files import RealProc, parse_stat
from tests.agent.clients.parts import Stage, in_thread, stage, until
from tests.agent.procfs.children import answer, child, say
from tests.fakes.embedded import hello, stats

PARENT = """
import array, ctypes, json, os, socket, sys
path, first, second = sys.argv[1:4]
message = json.loads(first); message["pid"] = os.getpid(); first = json.dumps(message)
s = socket.socket(socket.AF_UNIX); s.connect(path); s.set_inheritable(True)
def send(line): s.sendall(line.encode() + b"\\n")
def go():
    print("ready", flush=True)
    return sys.stdin.readline()
"""
"""Connects. `first` is a hello under its own pid, `second` are figures."""
PASSED = """
import array, json, os, socket, sys
os.setgid(4242); os.setuid(4242)
carrier = socket.socket(fileno=int(sys.argv[1]))
_, ancillary, _, _ = carrier.recvmsg(1, socket.CMSG_SPACE(4))
s = socket.socket(fileno=array.array("i", ancillary[0][2])[0])
s.sendall(sys.argv[2].encode() + b"\\n")
"""
"""Another program, of another user, that is given a connection by SCM_RIGHTS and uses it."""
STOLEN = stats({"uuid": "0", "allocated_bytes": 666})

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user, or choose a pid")


def play(scene: Callable[[Stage], Awaitable[None]], *, refuse_descriptors: bool = True) -> None:
    """Run a scene on a stage, to its end."""

    async def run() -> None:
        async with asyncio.timeout(50), stage(refuse_descriptors=refuse_descriptors) as opened:
            opened.path.parent.parent.chmod(0o755)
            await scene(opened)

    asyncio.run(run())


def parent(opened: Stage, text: str) -> Any:
    """A program that begins as `PARENT` does."""
    return child(sys.executable, "-c", PARENT + text, str(opened.path), json.dumps(hello(0)), json.dumps(STOLEN))


async def met(opened: Stage, process: subprocess.Popen[bytes]) -> Connection:
    """The connection of a program that has said hello and is ready."""
    assert await in_thread(lambda: answer(process)) == b"ready\n"
    await until(lambda: opened.registry.client(process.pid))
    client = opened.registry.client(process.pid)
    assert client is not None
    return client


FORKED = "if os.fork() == 0: send(second); os._exit(0)\nos.wait(); go()"
STARTED = """
import subprocess
subprocess.run([sys.executable, "-c", "import os, sys; os.write(int(sys.argv[1]), sys.argv[2].encode() + b'\\\\n')",
                str(s.fileno()), second], pass_fds=[s.fileno()], check=True)
go()
"""
HANDED_OVER = f"""
import subprocess
ours, theirs = socket.socketpair()
other = subprocess.Popen([sys.executable, "-c", {PASSED!r}, str(theirs.fileno()), second], pass_fds=[theirs.fileno()])
ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [s.fileno()]))])
assert other.wait() == 0
go()
"""


@pytest.mark.parametrize(
    "act", [FORKED, STARTED, pytest.param(HANDED_OVER, marks=as_root)], ids=["fork", "exec", "SCM_RIGHTS"]
)
def test_another_process_does_not_speak_over_an_apps_connection(act: str) -> None:
    """A child, a program it starts, and a process of another user: what they send ends the connection, unread."""

    async def scene(opened: Stage) -> None:
        with parent(opened, f"send(first)\ngo()\n{act}") as process:
            client = await met(opened, process)
            say(process, b"\n")
            assert await in_thread(lambda: answer(process)) == b"ready\n"
            await until(lambda: opened.registry.drops["sender"])
            assert client.stats is None
            assert opened.registry.client(process.pid) is None
            assert (opened.registry.drops["sender"], opened.registry.connections) == (1, 0)

    play(scene)


def test_what_was_sent_before_the_agent_accepts_has_its_sender_too() -> None:
    """While the agent is busy, both write: the parent's lines are the parent's, the child's end the connection."""

    async def scene(opened: Stage) -> None:
        with parent(opened, "send(first)\nif os.fork() == 0: send(second); os._exit(0)\nos.wait(); go()") as process:
            assert answer(process) == b"ready\n"  # blocks the loop: nothing is accepted until all is sent
            assert opened.registry.accepted == 0
            await until(lambda: opened.registry.drops["sender"])
            assert opened.registry.lines == 1
            assert not list(opened.registry.clients)

    play(scene)


def test_half_a_line_is_not_completed_by_another_process() -> None:
    """Bytes of two processes never make one message."""
    halves = "half = len(second) // 2\nsend(first)\ns.sendall(second[:half].encode())\n"
    act = "if os.fork() == 0: send(second[half:]); os._exit(0)\nos.wait(); go()"

    async def scene(opened: Stage) -> None:
        with parent(opened, halves + act) as process:
            assert await in_thread(lambda: answer(process)) == b"ready\n"
            await until(lambda: opened.registry.drops["sender"])
            assert (opened.registry.lines, opened.registry.drops["malformed"]) == (1, 0)

    play(scene)


def test_threads_speak_for_their_process() -> None:
    """The client sends from a thread of its own: that is the same process."""
    act = "import threading\nsend(first)\nt = threading.Thread(target=send, args=(second,)); t.start(); t.join(); go()"

    async def scene(opened: Stage) -> None:
        with parent(opened, act) as process:
            client = await met(opened, process)
            await until(lambda: client.stats)
            assert opened.registry.drops["sender"] == 0

    play(scene)


def test_a_process_that_executes_another_program_is_the_same_process() -> None:
    """execve(2) keeps pid and start time: what the new program says is about itself, and is taken."""
    program = "import os, sys; os.write(int(sys.argv[1]), sys.argv[2].encode() + b'\\n'); sys.stdin.read()"
    act = f"send(first); go(); os.execv(sys.executable, [sys.executable, '-c', {program!r}, str(s.fileno()), second])"

    async def scene(opened: Stage) -> None:
        with parent(opened, act) as process:
            client = await met(opened, process)
            start = parse_stat(RealProc().read(process.pid, "stat")).start_ticks
            say(process, b"\n")
            await until(lambda: client.stats)
            assert client.info is not None
            assert (client.info.id.pid, client.info.id.start_ticks) == (process.pid, start)
            assert parse_stat(RealProc().read(process.pid, "stat")).start_ticks == start

    play(scene)


REUSED = """
send(first); go()
pid, (done, done_end) = os.getpid(), os.pipe()
if os.fork() == 0:
    class Arguments(ctypes.Structure):
        _fields_ = [(name, ctypes.c_uint64) for name in ("flags", "pidfd", "child_tid", "parent_tid", "exit_signal",
                    "stack", "stack_size", "tls", "set_tid", "set_tid_size", "cgroup")]
    sys.stdin.readline()  # until the parent has been reaped
    chosen = ctypes.c_int(pid)
    arguments = Arguments(exit_signal=17, set_tid=ctypes.addressof(chosen), set_tid_size=1)
    made = ctypes.CDLL(None, use_errno=True).syscall(435, ctypes.byref(arguments), ctypes.sizeof(arguments))
    if made == 0:
        send(second)
        os._exit(0)
    if made > 0:
        os.waitpid(made, 0)
    print(made, flush=True)
    os._exit(0)
os._exit(0)
"""


@as_root
def test_a_process_that_is_given_the_pid_again_does_not_speak_for_the_one_that_had_it() -> None:
    """PROC: the app ends, its child makes a process with the app's pid, and that one uses the inherited connection."""

    async def scene(opened: Stage) -> None:
        with parent(opened, REUSED) as process:
            client = await met(opened, process)
            assert process.stdin is not None
            assert process.stdout is not None
            say(process, b"\n")
            process.wait()  # from here to the answer the loop does not run: it finds all of it at once
            asyncio.get_running_loop().remove_reader(client.peer.pidfd)  # as if it heard of the message first
            say(process, b"\n")
            made = int(answer(process))
            if made == -1:
                pytest.skip("this machine does not let root choose a pid: clone3 with set_tid is not permitted")
            assert made == process.pid
            await until(lambda: not opened.registry.connections)
            assert client.stats is None

    play(scene)


def test_passed_descriptors_are_not_kept() -> None:
    """Before Linux 6.16: a message with descriptors ends the connection, and the agent holds none of them."""
    act = "send(first); go(); s.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0, 1, 2]))])"

    async def scene(opened: Stage) -> None:
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  names alone: the folder changes while it is read
        with parent(opened, f"{act}\ngo()") as process:
            await met(opened, process)
            held = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
            say(process, b"\n")
            await until(lambda: opened.registry.drops["malformed"])
            await until(lambda: len(os.listdir("/proc/self/fd")) <= held - 2)  # noqa: PTH208  its socket and its pidfd
            process.send_signal(signal.SIGKILL)
        assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208

    play(scene, refuse_descriptors=False)
