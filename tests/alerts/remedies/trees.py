"""Files of several users, as attackers and careless administrators leave them: real ones, in a real directory."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ALICE = 65534
"""Somebody with an account and no rights."""
BOB = 4242

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="giving files to other users needs root")

USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32
_NOBODY = 0xFFFFFFFF


def acl(*named: tuple[int, int, int], group: int = 4, mask: int = 7, other: int = 4) -> bytes:
    """An ACL as setfacl(1) writes it: `named` has (USER or GROUP, permissions, id)."""
    users = sorted(each for each in named if each[0] == USER)
    groups = sorted(each for each in named if each[0] == GROUP)
    entries = [
        (USER_OBJ, 7, _NOBODY), *users, (GROUP_OBJ, group, _NOBODY), *groups, (MASK, mask, _NOBODY),
        (OTHER, other, _NOBODY),
    ]  # fmt: skip
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def set_acl(path: Path, value: bytes, name: str = "system.posix_acl_access") -> None:
    """Give a file or a directory an ACL; the test is skipped where the file system has none."""
    try:
        os.setxattr(path, name, value)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        pytest.skip(f"the file system of {path} has no ACLs")


@contextmanager
def open_tree() -> Iterator[Path]:
    """A directory of root's that every user can reach: pytest's own are closed, so that nobody could attack there."""
    folder = Path(tempfile.mkdtemp(prefix="gpuagent-test-")).resolve()
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def tree() -> Iterator[Path]:
    """See `open_tree`."""
    with open_tree() as folder:
        yield folder


def as_user(uid: int, work: Callable[[], str]) -> str:
    """What some work returns in a process of another user, who is in no group."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            os.write(write, work().encode())
        except BaseException:  # noqa: BLE001  the child must not go on as the test
            os.write(write, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        text = said.read()
    os.waitpid(child, 0)
    return text


def make_file(path: Path, text: str = "", mode: int = 0o644) -> Path:
    """A file with this mode, whatever the umask."""
    path.write_text(text)
    path.chmod(mode)
    return path


def replaced(path: Path) -> str:
    """What the agent advises for a file that others could write: a file that nobody has open."""
    return f"cp {path} {path}.new && chmod go-w {path}.new && mv {path}.new {path}"


def make_directory(path: Path, mode: int = 0o755, owner: int = 0) -> Path:
    """A directory with this mode, whatever the umask."""
    path.mkdir()
    os.chown(path, owner, owner)
    path.chmod(mode)
    return path


def give(path: Path, owner: int, group: int = -1) -> Path:
    """Let a file, a directory or a link itself belong to somebody."""
    os.chown(path, owner, group, follow_symlinks=False)
    return path
