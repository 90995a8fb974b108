"""Whose a process is, by the kernel's files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.procfs.credentials import MissingFact, read_credentials
from gpuagent.procfs.files import RealProc
from tests.fakes.cgroups import CgroupTree
from tests.fakes.proc import FakeProc, stat_text


def test_every_fact(tmp_path: Path) -> None:
    """All four user ids, the login, the audit session, the terminal, the namespaces, and where it is."""
    tree = CgroupTree(tmp_path)
    tree.add(7, "/s/a", uids=(1, 2, 1, 3), login_uid=0, session=4, terminal=34816, namespace_pids=(7, 1))
    found = read_credentials(tree.proc, 7)
    assert (sorted(found.uids), found.login_uid, found.in_audit_session) == ([1, 2, 3], 0, True)
    assert (found.has_terminal, found.namespaces, found.cgroup) == (True, 2, b"0::/s/a\n")
    tree.add(8)
    plain = read_credentials(tree.proc, 8)
    assert (plain.login_uid, plain.in_audit_session, plain.has_terminal, plain.namespaces) == (None, False, False, 1)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("loginuid", None), ("sessionid", None), ("loginuid", b""), ("loginuid", b"x"), ("status", b"NSpid:\t7\n"),
        ("status", b"Uid:\t1\t1\nNSpid:\t7\n"), ("status", b"Uid:\t1\t1\t1\t1\n"), ("stat", b"7 (x) S 1"),
        ("status", PermissionError(1, "hidden")), ("cgroup", PermissionError(1, "hidden")),
    ],
)  # fmt: skip
def test_a_missing_fact_is_missing(tmp_path: Path, name: str, content: bytes | OSError | None) -> None:
    """A file that a kernel without audit does not have, or that may not be read, is never taken for "none"."""
    tree = CgroupTree(tmp_path)
    tree.add(7)
    if content is None:
        del tree.proc.files[7][name]
    else:
        tree.proc.files[7][name] = content
    with pytest.raises(MissingFact, match="pid 7"):
        read_credentials(tree.proc, 7)


def test_one_that_has_ended() -> None:
    """No fact is missing of what is not there."""
    with pytest.raises(FileNotFoundError):
        read_credentials(FakeProc(), 7)


@given(st.binary(max_size=64), st.integers(0, 2**31 - 1))
def test_any_name_moves_no_terminal(name: bytes, terminal: int) -> None:
    """PROC-07: whatever a process calls itself, its terminal is read right."""
    proc = FakeProc()
    status = b"Uid:\t1\t1\t1\t1\nNSpid:\t7\n"
    stat = stat_text(7, name, terminal=terminal)
    proc.put(7, stat, status=status, loginuid=b"1", sessionid=b"1", cgroup=b"0::/\n")
    assert read_credentials(proc, 7).has_terminal is (terminal != 0)


def test_a_real_process_with_a_terminal() -> None:
    """The kernel tells of a controlling terminal, and of the reader's own ids."""
    leader, follower = os.openpty()
    code = (
        "import fcntl, os, sys, termios, time; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
        "sys.stdout.write('x'); sys.stdout.flush(); time.sleep(1000)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=follower, stdout=follower)
    try:
        assert os.read(leader, 1) == b"x"
        found = read_credentials(RealProc(), process.pid)
        assert (found.has_terminal, list(found.uids)) == (True, [os.getuid()])
    finally:
        process.kill()
        process.wait()
        os.close(leader)
        os.close(follower)
