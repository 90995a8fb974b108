"""Names of users permit something where /etc/passwd is the host's and root's alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent.procfs.users import UserNames, passwd_doubt

NOT_MOUNTED = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"


@pytest.fixture
def passwd(tmp_path: Path) -> Path:
    """A file of root's, and a table of mounts without it."""
    found = tmp_path / "passwd"
    found.write_text("root:x:0:0::/:/bin/sh\n", encoding="ascii")
    found.chmod(0o644)
    (tmp_path / "mountinfo").write_text(NOT_MOUNTED, encoding="ascii")
    return found


def doubt(passwd: Path) -> str:
    """As of the agent, with the host's file beside it."""
    return passwd_doubt(passwd, passwd.with_name("of_host"), passwd.with_name("mountinfo"))


def mount(passwd: Path) -> None:
    """Let it be a mount point."""
    line = f"30 22 8:1 /x {passwd} ro - ext4 /dev/sda1 rw\n"
    passwd.with_name("mountinfo").write_text(NOT_MOUNTED + line, encoding="ascii")


def test_the_file_of_this_machine(passwd: Path) -> None:
    """Root's own file is believed, and a machine that has its users elsewhere has none."""
    assert passwd_doubt() == ""
    assert doubt(passwd) == ""
    passwd.unlink()
    assert doubt(passwd) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to others")
def test_others_may_write_it(passwd: Path) -> None:
    """Whoever may write the file chooses who is called what."""
    passwd.chmod(0o664)
    assert "others than root may write" in doubt(passwd)
    passwd.chmod(0o644)
    os.chown(passwd, 4001, 0)
    assert "others than root may write" in doubt(passwd)


def test_a_file_that_is_mounted_over(passwd: Path) -> None:
    """It has to be the one that the host has; where that cannot be seen, root has mounted it."""
    mount(passwd)
    assert doubt(passwd) == ""
    os.link(passwd, passwd.with_name("of_host"))
    assert doubt(passwd) == ""
    passwd.with_name("of_host").unlink()
    passwd.with_name("of_host").write_text("", encoding="ascii")
    assert "another file than the host's" in doubt(passwd)


def test_a_file_that_the_host_has_replaced(passwd: Path) -> None:
    """A mount goes on showing what useradd(8) has replaced: names may have gone over to others."""
    descriptor = os.open(passwd, os.O_RDONLY)
    try:
        passwd.unlink()
        shown = Path(f"/proc/self/fd/{descriptor}")
        passwd.with_name("mountinfo").write_text(f"30 22 8:1 /x {shown} ro - ext4 a rw\n", encoding="ascii")
        assert "has replaced" in passwd_doubt(shown, passwd, passwd.with_name("mountinfo"))
    finally:
        os.close(descriptor)


def test_a_name_in_doubt_permits_nothing() -> None:
    """KILL-03: for a decision it is unknown, which is no name that an allow list has; it is still shown."""
    doubts = [""]
    users = UserNames(ManualClock(), doubt=lambda: doubts[0])
    name = users(0)
    assert users.fresh(0) == name == "root"
    doubts[0] = "others may write it"
    assert users.fresh(0) == ""
    assert users(0) == "root"
