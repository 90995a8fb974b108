"""A process of which /proc has files that nobody can read holds up no look at the others."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from gpuagent.procfs.files import RealProc
from gpuagent.procfs.hanging import MOST_HANGING, HangingProcess, HangingReads, read_all, read_with_timeout, read_within
from gpuagent_alerts.remedies.facts.process_scan import ProcessScan
from gpuagent_alerts.remedies.facts.terminals import OpenFiles
from gpuagent_alerts.remedies.facts.ties import TieFinder, read_ties
from gpuagent_alerts.remedies.facts.unit_places import read_place
from gpuagent_alerts.remedies.target import Ties
from tests.alerts.remedies.processes import reader
from tests.alerts.remedies.tied import ALICE, BEGINS_WORK, BOB, SERVES_A_TERMINAL, running

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be two users")


class Hangs(RealProc):
    """What hangs within execve(2) answers by the files that need no lock."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._pid = pid

    def read(self, pid: int, name: str) -> bytes:
        if pid == self._pid and name.rpartition("/")[2] not in {"status", "cgroup", "loginuid", "sessionid"}:
            raise HangingProcess(pid)
        return super().read(pid, name)

    def link(self, pid: int, name: str) -> str:
        if pid == self._pid:
            raise HangingProcess(pid)
        return super().link(pid, name)


class HangingFiles(OpenFiles):
    """Its links cannot be read either."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._pid = pid

    def path(self, pid: int, folder: str, descriptor: int) -> str:
        if pid == self._pid:
            raise HangingProcess(pid)
        return super().path(pid, folder, descriptor)


@needs_root
def test_another_users_process_that_hangs() -> None:
    """KILL-03: without a tie it withholds nothing; where it may be on a terminal that is served, it does, named."""
    with (
        running(BEGINS_WORK.format(uid=ALICE)) as one,
        running(SERVES_A_TERMINAL.format(open="pty.openpty", uid=ALICE)) as serves,
        running("become(BOB)\nready()\n") as other,
    ):
        files = Hangs(other.pid)
        row = ProcessScan(files).rows[other.pid]
        assert (row.uids, row.session, row.parent_pid) == (frozenset({BOB}), other.pid, os.getpid())
        assert read_place(files, other.pid) == read_place(RealProc(), other.pid)
        assert read_ties(files, reader(), [one.pid]) == Ties()
        finder = TieFinder(files, open_files=HangingFiles(other.pid))
        assert read_ties(files, reader(), [one.pid], finder=finder) == Ties()
        unseen = read_ties(files, reader(), [serves.pid], finder=finder).unseen
        assert f"pid {other.pid} of uid {BOB} hangs in the kernel" in unseen
        assert f"kill -9 {other.pid}" in unseen


@needs_root
@pytest.mark.parametrize("uid", [ALICE, BOB])
def test_a_process_that_hangs_below_the_target(uid: int) -> None:
    """KILL-03: what a target has started counts by its user and place, as far as these are told."""
    with running(BEGINS_WORK.format(uid=uid)) as one:
        ties = read_ties(Hangs(one.others[0]), reader(), [one.pid])
        assert f"pid {one.others[0]} of uid {uid} hangs" in ties.unseen


@contextmanager
def held(reads: HangingReads, pid: int) -> Iterator[int]:
    """A thread that waits for a file of a process; its ident."""
    begun, ends = threading.Event(), threading.Event()

    def wait() -> None:
        with reads.reading(pid, "stat"):
            begun.set()
            ends.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    begun.wait()
    assert thread.ident is not None
    try:
        yield thread.ident
    finally:
        ends.set()
        thread.join()


def test_one_thread_waits() -> None:
    """PROC-03: once a read has lasted a second, another one is not begun, but of what needs no lock."""
    now = [0.0]
    reads = HangingReads(lambda: now[0])
    with held(reads, 7) as thread:
        with reads.reading(7, "stat"):
            assert not reads.hangs(thread)
        now[0] = 1.0
        assert (reads.hangs(thread), reads.processes()) == (7, [7])
        assert reads.reason().startswith("pid 7 of ")
        for name in ("stat", "task/9/stat", "ns/pid"):
            with pytest.raises(HangingProcess), reads.reading(7, name):
                pass
        for pid, name in ((7, "status"), (7, "task/9/cgroup"), (8, "stat")):
            with reads.reading(pid, name):
                pass
    with reads.reading(7, "stat"):
        assert (reads.processes(), reads.reason()) == ([], "")


def test_a_look_begins_again() -> None:
    """KILL-03: a look that hangs on one process is made anew without it, by one more thread for each."""
    reads, ends = HangingReads(), threading.Event()
    met: list[int] = []

    def look() -> list[int]:
        passed = []
        for pid in (7, 8):
            try:
                with reads.reading(pid, "stat"):
                    met.append(pid)
                    ends.wait()
            except HangingProcess:
                passed.append(pid)
        return passed

    try:
        assert asyncio.run(read_with_timeout(look, 30.0, reads)) == [7, 8]
        assert met == [7, 8]
    finally:
        ends.set()


def test_too_many_that_hang() -> None:
    """KILL-03: beyond so many nobody is looked at any more, and no thread is begun."""
    now, reads = [0.0], HangingReads(lambda: now[0])
    with held_by_many(reads):
        now[0] = 1.0
        with pytest.raises(TimeoutError, match=r"pid 1 of uid 0 hangs .*; 15 others hang too"):
            asyncio.run(read_with_timeout(lambda: pytest.fail("it was called"), 30.0, reads))


@contextmanager
def held_by_many(reads: HangingReads, pid: int = 1) -> Iterator[None]:
    """As many as are borne."""
    if pid > MOST_HANGING:
        yield
        return
    with held(reads, pid), held_by_many(reads, pid + 1):
        yield


def test_a_single_read() -> None:
    """PROC-03: whoever cannot wait has an error instead, and errors as they come."""
    ends = threading.Event()
    with pytest.raises(TimeoutError):
        read_within(0.0, ends.wait)
    ends.set()
    assert read_within(30.0, lambda: 7) == 7
    with pytest.raises(ProcessLookupError):
        read_within(30.0, lambda: os.kill(2**22 + 1, 0))


def test_many_reads_at_once() -> None:
    """PROC-03: those that hang are waited for together, whatever follows them is read, and each keeps its outcome."""
    ends, threads = threading.Event(), set()

    def quick() -> int:
        threads.add(threading.get_ident())
        return 7

    def fails() -> int:
        raise ProcessLookupError

    def waits() -> bool:
        threads.add(threading.get_ident())
        return ends.wait()

    try:
        found = read_all([quick, waits, fails, waits, quick, waits], 0.2)
        kinds = [each if isinstance(each, int) else type(each) for each in found]
        assert kinds == [7, TimeoutError, ProcessLookupError, TimeoutError, 7, TimeoutError]
        assert len(threads) == 3
    finally:
        ends.set()
    threads.clear()
    assert list(read_all([quick] * 100)) == [7] * 100
    assert len(threads) == 1
    assert read_all([]) == ()


def test_who_is_slow_is_not_left_out() -> None:
    """PROC-03: a read that hangs for a moment only is read in full, though others have gone on meanwhile."""
    second = threading.Event()

    def slow() -> str:
        assert second.wait(30.0)
        return "slow"

    def releases() -> str:
        second.set()
        return "next"

    assert list(read_all([slow, releases], 30.0)) == ["slow", "next"]


def test_not_every_read_that_hangs_has_a_thread() -> None:
    """PROC-03: as many as may be are waited for at the same time; the others count as what hangs and are not begun."""
    begun, ends = [], threading.Event()

    def read(number: int) -> int:
        begun.append(number)
        ends.wait(50)
        return number

    try:
        found = read_all([partial(read, number) for number in range(3 * MOST_HANGING)], 0.1)
        assert {type(each) for each in found} == {TimeoutError}
        assert len(begun) == MOST_HANGING
    finally:
        ends.set()
    assert read_all([lambda: 7]) == (7,)
    assert len(begun) == MOST_HANGING
