"""Processes whose first thread has ended: what they run and where is told by a thread that lives, or by nobody."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuagent.core.clock import SystemClock
from gpuagent.procfs.cgroup_owner import Name
from gpuagent.procfs.credentials import read_credentials
from gpuagent.procfs.files import RealProc, living_thread, parse_stat, read_living
from gpuagent.procfs.machine import boot_id
from gpuagent.procfs.reader import BootContext, ProcessReader
from gpuagent.procfs.redact import Redactor
from gpuagent.procfs.users import UserNames
from tests.agent.procfs.children import UNIT, end_first_thread, end_without_reaping, in_unit, python, running
from tests.fakes.proc import FakeProc, stat_text

PLACE = f"1:name=systemd:/system.slice/{UNIT}\n".encode()
DEAD = stat_text(7, state="Z", threads=2)


def reader(files: RealProc | FakeProc) -> ProcessReader:
    """Read as the agent does; every cgroup is root's."""
    return ProcessReader(
        files, BootContext(boot_id(), 0.0, 0), users=UserNames(SystemClock()), redactor=Redactor(()),
        cgroup_owner=lambda level, *, whole: True,
    )  # fmt: skip


def test_the_place_of_a_headless_process() -> None:
    """PROC-02, P10: the kernel says "/" of a first thread that has ended: unit and program are those of its process."""
    with in_unit() as process:
        pid = end_first_thread(process)
        first = Path(f"/proc/{pid}/cgroup").read_bytes()
        assert b":name=systemd:/\n" in first  # what the kernel says, and what nobody may believe
        record = reader(RealProc()).read(pid)
        assert (record.info.unit, record.info.state) == (UNIT, "Z")
        assert Name.UNIT in record.info.proven_names
        assert record.info.command.startswith(python("")[0])
        assert record.info.resident_bytes
        assert not record.ending
        assert UNIT.encode() in (read_credentials(RealProc(), pid).cgroup or b"")
        stat = parse_stat(RealProc().read(pid, "stat"))
        executable = read_living(RealProc(), stat, lambda thread: thread.link("exe"))
        assert executable == os.path.realpath(python("")[0])


def test_it_is_followed_when_its_first_thread_ends() -> None:
    """PROC-02: what was measured before and after the end of the first thread is the same place and program."""
    with in_unit() as process:
        pid = end_first_thread(process)
        one = reader(RealProc())
        record = one.read(pid)
        again = one.renew(record, one.stat(pid), anew=True)
        assert again.info == record.info


def test_a_zombie_has_no_place() -> None:
    """P10: of a process that has ended altogether nobody tells the place: it is unknown, and never "/"."""
    with running("cat") as process:
        end_without_reaping(process)
        record = reader(RealProc()).read(process.pid)
    assert record.ending
    assert (record.cgroup, record.info.cgroup, record.info.unit) == (b"", "", "")
    assert not record.info.proven_names


@pytest.mark.parametrize("flags", [0x4, 0x404])
def test_a_process_that_begins_to_exit(flags: int) -> None:
    """P10: state and threads do not matter: who exits (PF_EXITING) is at "/" by the kernel's word, which is no fact."""
    proc = FakeProc()
    fields = stat_text(7).split(b" ")
    fields[8] = str(flags).encode()
    proc.put(7, b" ".join(fields), cgroup=b"1:name=systemd:/\n", status=b"Uid:\t1\t1\t1\t1\nNSpid:\t7\n")
    record = reader(proc).read(7)
    assert record.ending
    assert record.info.cgroup == ""
    assert record.info.uid == 1


def test_a_thread_that_ends_while_it_is_read() -> None:
    """P10: the next one is asked, and what the first said while it ended is forgotten."""
    proc = FakeProc()
    proc.put(7, DEAD)
    files = proc.files[7]
    files["task/8/stat"], files["task/8/cgroup"] = stat_text(8, threads=2), b"1:name=systemd:/\n"
    files["task/9/stat"], files["task/9/cgroup"] = stat_text(9, threads=2), PLACE

    def take(folder: object) -> bytes:
        thread = living_thread(proc, parse_stat(DEAD))
        assert thread is not None
        read = thread.read("cgroup")
        files["task/8/stat"] = stat_text(8, state="Z", threads=2)
        return read

    assert read_living(proc, parse_stat(DEAD), take) == PLACE


@pytest.mark.parametrize("denied", [PermissionError(13, "no"), FileNotFoundError(2, "no")])
def test_threads_that_cannot_be_seen(denied: OSError) -> None:
    """P10: where no thread is seen to live, place and program are unknown: never those of the first thread."""
    proc = FakeProc()
    proc.put(7, DEAD, cgroup=b"1:name=systemd:/\n", cmdline=b"")
    proc.files[7]["task/8/stat"] = denied
    record = reader(proc).read(7)
    assert record.ending
    assert (record.info.cgroup, record.info.command) == ("", "")
