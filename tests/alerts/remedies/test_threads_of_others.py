"""A process whose threads run as several users, as file servers do: no rule takes it for its first thread's user."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator

import pytest

from gpuagent.procfs.credentials import read_credentials, read_uids
from gpuagent.procfs.files import RealProc
from gpuagent_alerts.remedies.facts.own_work import is_own_work
from tests.alerts.remedies.processes import reader, refusals_of, running
from tests.fakes.proc import FakeProc

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to change user ids")
ALICE, BOB = 4001, 4002
SETRESUID = {"x86_64": 117, "aarch64": 147}[platform.machine()]
"""By number: the C library changes the ids of all threads."""
SERVER = f"""
import ctypes, threading
libc, changed = ctypes.CDLL(None), threading.Event()
def serve():
    assert libc.syscall({SETRESUID}, *{{client}}) == 0
    changed.set()
    threading.Event().wait()
threading.Thread(target=serve, daemon=True).start()
changed.wait()
assert libc.syscall({SETRESUID}, {ALICE}, {ALICE}, {ALICE}) == 0
print('ready', flush=True)
threading.Event().wait()
"""


@pytest.fixture(params=[(BOB,) * 3, (ALICE, ALICE, BOB), (0, 0, 0)], ids=["another user", "saved", "root"])
def server(request: pytest.FixtureRequest) -> Iterator[int]:
    """A process of alice by its first thread, of which another thread is somebody else's too."""
    with running(SERVER.format(client=request.param)) as process:
        yield process.pid


def test_a_thread_of_another_user(server: int) -> None:
    """KILL-03: real, effective and saved ids of every thread count, whichever the first thread has."""
    (reason,) = refusals_of(server)
    assert "the rights of more than one user" in reason


def test_a_process_of_one_user() -> None:
    """The same server whose threads are all alice's is meant."""
    with running(SERVER.format(client=(ALICE,) * 3)) as process:
        assert refusals_of(process.pid) == []


def test_wherever_it_is_judged(server: int) -> None:
    """In a unit and among those that depend on others too, the users of a process are those of all its threads."""
    assert read_credentials(RealProc(), server).uids > {ALICE}
    with running(SERVER.format(client=(ALICE,) * 3)) as plain:
        of = reader().read(plain.pid).info
        assert is_own_work(RealProc(), reader(), plain.pid, of)
        assert not is_own_work(RealProc(), reader(), server, of)


class Restless(FakeProc):
    """A process of which one thread has gone, and another one has begun, at each of so many listings."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.put(7, status=b"Uid:\t5\t5\t5\t5\n")
        self._looks = looks

    def threads(self, pid: int) -> list[int]:
        self._looks -= 1
        return [pid, 1000 + self._looks] if self._looks >= 0 else [pid]


@pytest.mark.parametrize(("looks", "found"), [(0, (5, 5, 5, 5)), (1, (5, 5, 5, 5)), (9, (5, 5, 5, 5)), (99, ())])
def test_a_thread_that_vanishes_meanwhile(looks: int, found: tuple[int, ...]) -> None:
    """Those that have begun are looked at, until a listing has no more; where that does not come, it is unknown."""
    assert read_uids(Restless(looks), 7, (5, 5, 5, 5)) == found


def test_a_server_that_starts_a_thread_for_each_request() -> None:
    """Its user is known at every look, though threads begin and end during all of them."""
    code = """
import threading, time
def serve():
    while True:
        threading.Thread(target=time.sleep, args=(0.05,)).start()
        time.sleep(0.001)
threading.Thread(target=serve, daemon=True).start()
time.sleep(0.2)
print("ready", flush=True)
threading.Event().wait()
"""
    with running(code) as process:
        uid = RealProc().owner(process.pid)
        assert [read_uids(RealProc(), process.pid, (uid,) * 4) for _ in range(50)] == [(uid,) * 4] * 50


@pytest.mark.parametrize("status", [b"Name:\tx\n", PermissionError(13, "hidden"), b"Uid:\t5\t5\n"])
def test_a_thread_that_cannot_be_read(status: bytes | OSError) -> None:
    """What is not told is unknown: not the same as the others."""
    proc = FakeProc()
    proc.put(7, status=b"Uid:\t5\t5\t5\t5\n")
    proc.files[7]["task/8/status"] = status
    assert read_uids(proc, 7, (5, 5, 5, 5)) == ()
