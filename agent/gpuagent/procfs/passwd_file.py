"""Whether /etc/passwd is the host's, and root's alone: a name that others could have written permits nothing."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

PASSWD = Path("/etc/passwd")
_OF_HOST = Path("/proc/1/root/etc/passwd")
_MOUNTINFO = Path("/proc/self/mountinfo")
_ROOT = 0


def passwd_doubt(passwd: Path = PASSWD, of_host: Path = _OF_HOST, mountinfo: Path = _MOUNTINFO) -> str:
    """Return why names of users are unknown, "" where they may be believed.

    A machine without the file has its users elsewhere. One that is mounted in its place, as for an agent in a
    container, has to be the file that the host has now: an account that is added replaces the file, and a mount goes on
    showing the old one, which has no name any more.
    """
    try:
        status = passwd.stat()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{passwd} cannot be read ({error.strerror})"
    if status.st_uid != _ROOT or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others than root may write {passwd}"
    return _mount_doubt(passwd, status, of_host) if _is_mounted(passwd, mountinfo) else ""


def _mount_doubt(passwd: Path, status: os.stat_result, of_host: Path) -> str:
    if not status.st_nlink:
        return f"another file is mounted over {passwd}, which the host has replaced since"
    with suppress(OSError):  # to look there takes CAP_SYS_PTRACE; root has mounted what is there
        theirs = of_host.stat()
        if (theirs.st_dev, theirs.st_ino) != (status.st_dev, status.st_ino):
            return f"another file than the host's is mounted over {passwd}"
    return ""


def _is_mounted(passwd: Path, mountinfo: Path) -> bool:
    """Return whether the file is a mount point itself; where that cannot be told it may be one."""
    try:
        lines = mountinfo.read_bytes().splitlines()
    except OSError:
        return True
    return any(fields[4:5] == [os.fsencode(passwd)] for fields in (line.split(b" ") for line in lines))
