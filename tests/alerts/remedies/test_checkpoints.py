"""Processes that were restored from a checkpoint, or are being checkpointed: their end can hang the machine."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuagent.core.identity import ProcessId
from gpuagent.core.snapshot import (
    GpuIdentity,
    GpuReading,
    GpuState,
    NodeReading,
    NvmlState,
    ProcessInfo,
    ProcessReading,
    ProcessState,
    Snapshot,
)
from gpuagent.procfs.files import RealProc, parse_stat
from gpuagent_alerts.remedies.facts.checkpoints import find_checkpointing, find_restore
from gpuagent_alerts.remedies.resumed import ResumedProcesses
from tests.integration.waiting import until

_CLONE_NEWPID = 0x2000_0000
FORKED, EXECUTED = 0x40, 0
"""`PF_FORKNOEXEC`, and a task that has executed a program."""
PYTHON, SHIM, INIT, CRIU = "/usr/bin/python3", "/usr/bin/containerd-shim", "/usr/lib/systemd/systemd", "/usr/sbin/criu"


def proc(root: Path, *processes: tuple[int, int, str, int, str]) -> RealProc:
    """A tree like /proc of (pid, parent, program, flags, pids in namespaces)."""
    for pid, parent, program, flags, namespaces in processes:
        folder = root / str(pid)
        folder.mkdir(parents=True)
        name = program.rsplit("/", 1)[-1][:15]
        fields = ["S", parent, pid, pid, 0, -1, flags, *[0] * 10, 1, 0, 1000 + pid, *[0] * 30]
        (folder / "stat").write_text(f"{pid} ({name}) {' '.join(map(str, fields))}\n")
        (folder / "status").write_text(f"Name:\t{name}\nTracerPid:\t0\nUid:\t0\t0\t0\t0\nNSpid:\t{namespaces}\n")
        (folder / "cmdline").write_bytes(program.encode() + b"\0")
        (folder / "exe").symlink_to(program)
    return RealProc(str(root))


def restored(files: RealProc, pid: int, *, criu: bool = False) -> str:
    """What is said of a process."""
    return find_restore(files, parse_stat(files.read(pid, "stat")), lambda: criu)


SYSTEM = (1, 0, INIT, EXECUTED, "1")


@pytest.mark.parametrize(
    ("processes", "criu", "said"),
    [
        pytest.param([(9, 1, PYTHON, EXECUTED, "9")], True, "", id="it has executed its program"),
        pytest.param([(8, 1, PYTHON, EXECUTED, "8"), (9, 8, PYTHON, FORKED, "9")], True, "", id="a forked worker"),
        pytest.param([(9, 1, PYTHON, FORKED, "9")], False, "", id="a daemon, and no CRIU here"),
        pytest.param([(9, 1, PYTHON, FORKED, "9")], True, "CRIU may have restored it", id="a daemon, or restored"),
        pytest.param(
            [(7, 1, CRIU, EXECUTED, "7"), (9, 7, PYTHON, FORKED, "9")], True, "CRIU (pid 7) has restored it",
            id="criu restore waits for it",
        ),
        pytest.param(
            [(7, 1, CRIU, EXECUTED, "7"), (8, 7, PYTHON, FORKED, "8"), (9, 8, PYTHON, FORKED, "9")], True,
            "CRIU (pid 7) has restored it", id="a worker of what was restored",
        ),
        pytest.param(
            [(7, 1, SHIM, EXECUTED, "7"), (9, 7, PYTHON, FORKED, "9 1")], False, "its container was restored",
            id="the first process of a restored container",
        ),
        pytest.param(
            [(7, 1, SHIM, EXECUTED, "7"), (8, 7, PYTHON, EXECUTED, "8 1"), (9, 8, PYTHON, FORKED, "9 5")], True, "",
            id="a worker in a container that was started",
        ),
        pytest.param(
            [(7, 1, "/usr/bin/bwrap", EXECUTED, "7"), (8, 7, "/usr/bin/bwrap", FORKED, "8 1"),
             (9, 8, PYTHON, EXECUTED, "9 2")], True, "", id="a sandbox with a first process of its own",
        ),
    ],
)  # fmt: skip
def test_what_criu_restores(
    tmp_path: Path, processes: list[tuple[int, int, str, int, str]], criu: bool, said: str
) -> None:
    """A task that was forked, runs another program than its parent, and has executed none, is CRIU's or a daemon."""
    found = restored(proc(tmp_path, SYSTEM, *processes), 9, criu=criu)
    assert found.startswith(said)
    assert bool(found) is bool(said)


@contextmanager
def taken_over(*, namespace: bool) -> Iterator[int]:
    """The pid of a fork whose parent has ended, the first of a pid namespace where that is asked for."""
    reading, writing = os.pipe()
    middle = os.fork()
    if middle == 0:
        if namespace and ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWPID) != 0:
            os._exit(77)
        child = os.fork()
        if child == 0:
            os.close(writing)
            signal.pause()
        os.write(writing, str(child).encode())
        os._exit(0)
    os.close(writing)
    _, status = os.waitpid(middle, 0)
    if os.waitstatus_to_exitcode(status) == 77:
        os.close(reading)
        pytest.skip("no pid namespace can be made here")
    pid = int(os.read(reading, 20))
    os.close(reading)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("namespace", "criu", "said"),
    [(False, False, ""), (False, True, "CRIU may have restored it"), (True, False, "its container was restored")],
)
def test_the_kernels_own_flag(*, namespace: bool, criu: bool, said: str) -> None:
    """The real kernel keeps the flag on a fork that executes nothing, and tells a first process that is nobody's."""
    with taken_over(namespace=namespace) as pid:
        assert restored(RealProc(), pid, criu=criu).startswith(said)
        assert bool(restored(RealProc(), pid, criu=criu)) is bool(said)
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            assert restored(RealProc(), process.pid, criu=True) == ""
        finally:
            process.kill()


@pytest.mark.parametrize(("tool", "names_it"), [("criu", True), ("cuda-checkpoint", True), ("criu", False)])
def test_a_program_that_checkpoints_it_now(tmp_path: Path, tool: str, *, names_it: bool) -> None:
    """While CRIU or cuda-checkpoint is at work on a process, nobody ends it; one that works on another is no reason."""
    program = shutil.copy(shutil.which("sleep") or "/bin/sleep", tmp_path / tool)
    with subprocess.Popen(["sleep", "1000"]) as target:
        with subprocess.Popen([program, "1000", str(target.pid if names_it else 1)]) as at_work:
            files = RealProc()
            stat = parse_stat(files.read(target.pid, "stat"))
            until(lambda: files.read(at_work.pid, "cmdline").count(b"\0") == 3, "it runs the program")
            said = find_checkpointing(files, stat, lambda: [1, target.pid, at_work.pid])
            at_work.kill()
        target.kill()
    expected = f"{tool} (pid {at_work.pid}) checkpoints or restores it at this moment"
    assert said == (expected if names_it else "")


HOST = "0 0 4294967295"


@pytest.mark.parametrize(
    ("user", "of", "uid_map", "own_map", "capable", "counts"),
    [
        (1001, 1001, HOST, HOST, "0", True),
        (0, 1001, HOST, HOST, "0", True),
        (1002, 1001, HOST, HOST, "0", False),
        (1002, 1001, HOST, HOST, "0000010000000000", True),  # a service with CAP_CHECKPOINT_RESTORE
        (1002, 1001, HOST, "0 1002 1", "000001ffffffffff", False),  # a user's own user namespace
        (1002, 101001, "0 1002 1\n1 100000 65536", HOST, "0", True),  # who runs its container without root
        (1003, 101001, "0 1002 1\n1 100000 65536", HOST, "0", False),
    ],
)
def test_whose_program_checkpoints_it(
    tmp_path: Path, user: int, of: int, uid_map: str, own_map: str, capable: str, *, counts: bool
) -> None:
    """Anybody may call a program cuda-checkpoint: it counts where its user may do that to the process."""
    files = proc(tmp_path, SYSTEM, (7, 1, PYTHON, EXECUTED, "7"), (8, 1, "/home/x/cuda-checkpoint", EXECUTED, "8"))
    for pid, uid in ((7, of), (8, user)):
        status = tmp_path / str(pid) / "status"
        status.write_text(status.read_text().replace("Uid:\t0\t0\t0\t0", f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}"))
    status.write_text(f"{status.read_text()}CapEff:\t{capable}\n")
    (tmp_path / "8" / "comm").write_text("cuda-checkpoint\n")
    (tmp_path / "8" / "cmdline").write_bytes(b"cuda-checkpoint\0--pid\x007\0")
    (tmp_path / "1" / "uid_map").write_text("0 0 4294967295\n")
    (tmp_path / "7" / "uid_map").write_text(uid_map)
    (tmp_path / "8" / "uid_map").write_text(own_map)
    said = find_checkpointing(files, parse_stat(files.read(7, "stat")), lambda: [1, 7, 8])
    assert bool(said) is counts


def reading(*pids: int, whole: bool = True) -> Snapshot:
    """A tick at which the driver lists these processes, of a GPU that can be read or not."""
    gpu = GpuReading(GpuIdentity(index=0, uuid="GPU-0"), GpuState.OK, processes_known=whole)
    listed = tuple(
        ProcessReading(0, "GPU-0", pid, ProcessState.LIVE, ProcessInfo(ProcessId("boot", pid, pid), "a", 0, "root"),
                       2**30, "C", None)
        for pid in pids
    )  # fmt: skip
    return Snapshot(0.0, 0.0, NodeReading(NvmlState.READY), (gpu,), listed)


@pytest.mark.parametrize(
    ("readings", "resumed"),
    [
        pytest.param([reading(9), *[reading()] * 3, reading(9)], True, id="suspended and resumed"),
        pytest.param([reading(9), *[reading()] * 3, reading(9), reading(), reading(9)], True, id="it stays so"),
        pytest.param([reading(9), *[reading()] * 2, reading(9)], False, id="a list that was wrong twice"),
        pytest.param([reading(9), *[reading(whole=False)] * 9, reading(9)], False, id="a GPU that could not be read"),
        pytest.param([reading(8), *[reading()] * 3, reading(9)], False, id="it is new"),
        pytest.param([reading(9)] * 6, False, id="it was there all the time"),
    ],
)
def test_a_process_that_comes_back(readings: list[Snapshot], *, resumed: bool) -> None:
    """What cuda-checkpoint suspends and resumes in place leaves the driver's list, and is the same process after it."""
    known = ResumedProcesses()
    for each in readings:
        known.update(each)
    assert (ProcessId("boot", 9, 9) in known.processes) is resumed


def test_who_left_is_not_remembered_without_bounds() -> None:
    """Processes that end look as if they had left: the oldest are forgotten."""
    known = ResumedProcesses()
    for pid in range(0, 10_000, 1000):
        known.update(reading(*range(pid + 1, pid + 1001)))
    assert len(known._absent) == 4096
