"""The edge to /proc, on a made-up tree and on this very process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuagent.procfs.files import (
    MOUNTS_LIMIT_BYTES,
    READ_LIMIT_BYTES,
    STATUS_LIMIT_BYTES,
    RealProc,
    parse_stat,
    parse_status,
)


def test_files_of_this_process_are_read() -> None:
    """The real /proc answers for a real pid."""
    proc = RealProc()
    pid = os.getpid()

    assert parse_stat(proc.read(pid, "stat")).pid == pid
    assert proc.read(pid, "cmdline") == Path("/proc/self/cmdline").read_bytes()
    assert proc.link(pid, "exe") == str(Path("/proc/self/exe").readlink())
    assert proc.owner(pid) == os.getuid()
    assert proc.exists(pid)


def test_a_pid_without_a_process_is_not_found() -> None:
    """PROC-03: what has gone is FileNotFoundError, for files and links alike."""
    proc = RealProc()
    above_all_pids = 4_194_305

    with pytest.raises(FileNotFoundError):
        proc.read(above_all_pids, "stat")
    with pytest.raises(FileNotFoundError):
        proc.link(above_all_pids, "ns/pid")
    assert not proc.exists(above_all_pids)


def test_a_tree_elsewhere_is_read_the_same_way(tmp_path: Path) -> None:
    """The root is an argument, so a container may mount the host's /proc where it likes."""
    (tmp_path / "7/ns").mkdir(parents=True)
    (tmp_path / "7/status").write_bytes(b"Name:\tx\nUid:\t1000\t1000\t1000\t1000\n")
    (tmp_path / "7/ns/pid").symlink_to("pid:[4026532001]")
    proc = RealProc(str(tmp_path))

    assert proc.read(7, "status").startswith(b"Name:")
    assert proc.link(7, "ns/pid") == "pid:[4026532001]"
    assert proc.owner(7) == 1000


def test_a_long_file_is_cut(tmp_path: Path) -> None:
    """A command line of megabytes costs no more than a long one."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cmdline").write_bytes(b"x" * (READ_LIMIT_BYTES * 3))

    assert RealProc(str(tmp_path)).read(7, "cmdline") == b"x" * READ_LIMIT_BYTES


def test_a_status_without_a_user_is_not_taken_for_root(tmp_path: Path) -> None:
    """An owner that cannot be read is an error, never a guess."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7/status").write_bytes(b"Name:\tx\n")

    with pytest.raises(PermissionError):
        RealProc(str(tmp_path)).owner(7)


def test_reading_leaves_no_descriptor_open() -> None:
    """EXP-01: a thousand reads, also failing ones, leave no more descriptors than there were."""
    proc = RealProc()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(500):
        proc.read(os.getpid(), "stat")
        with pytest.raises(IsADirectoryError):
            proc.read(os.getpid(), "ns")

    assert len(list(Path("/proc/self/fd").iterdir())) <= before  # others may close theirs meanwhile


def test_a_process_with_all_groups_that_the_kernel_allows(tmp_path: Path) -> None:
    """PROC-03: what stands behind 65,536 supplementary groups in status is read, and no more than a mebibyte."""
    groups = b" ".join(b"%d" % (4_294_900_000 + each) for each in range(65536))
    (tmp_path / "7").mkdir()
    (tmp_path / "7/status").write_bytes(b"Uid:\t7\t7\t7\t7\nGroups:\t" + groups + b" \nNSpid:\t7\t1\n" + b"x" * 2**20)

    found = RealProc(str(tmp_path)).read(7, "status")

    assert parse_status(found).namespace_pids == (7, 1)
    assert len(found) == STATUS_LIMIT_BYTES


def test_the_mounts_of_a_large_node(tmp_path: Path) -> None:
    """PROC-03: thousands of mounts are read whole, as the one on top comes last; of more than that none is believed."""
    line = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n"
    (tmp_path / "7").mkdir()
    (tmp_path / "7/mountinfo").write_bytes(line * 5000)
    assert RealProc(str(tmp_path)).read(7, "mountinfo") == line * 5000

    (tmp_path / "7/mountinfo").write_bytes(line * (MOUNTS_LIMIT_BYTES // len(line) + 1))
    with pytest.raises(OSError, match="File too large"):
        RealProc(str(tmp_path)).read(7, "mountinfo")
