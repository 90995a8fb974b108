"""Return user names by uid, and say why they may not be believed.

A decision to act goes by a name only where /etc/passwd is the host's, and root's alone: a name that others could have
written permits nothing.
"""

from __future__ import annotations

import os
import pwd
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gpuagent.core.clock import Clock
from gpuagent.procfs.files import printable
from gpuagent.procfs.hanging import read_within

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
    """Return whether the file is a mount point itself; where that is unknown it may be one."""
    try:
        lines = mountinfo.read_bytes().split(b"\n")
    except OSError:
        return True
    return any(fields[4:5] == [os.fsencode(passwd)] for fields in (line.split(b" ") for line in lines))


NAME_LIMIT_BYTES = 64
KNOWN_SECONDS = 60.0
"""Seconds for which a name is cached: a uid may be given to another user."""
RETRY_SECONDS = 300.0
_SILENT_SECONDS = 10.0
_MOST_USERS = 4096
_PATIENCE_SECONDS = 0.5
"""How long a name is waited for: whoever reads a process is waited for a second (`gpuagent.procfs.hanging`)."""
_FRESH_SECONDS = 3.0
"""The same for a decision to act."""
_MOST_WAITING = 4


class _Found(NamedTuple):
    """What the database has for a uid."""

    name: str
    is_named: bool


class UserNames:
    """Look up names in the system's user database (also LDAP, where it is set up), and cache each for a minute.

    A uid without a name is its own name, as in `ls -l`, and is asked for again after five minutes:
    a user of a container need not exist on the host, and a directory server may be down for a
    while. One that had a name just before is asked for again after a minute. While the database does not answer, a user
    keeps the name that was known; others are `uid:1001`.
    """

    def __init__(
        self,
        clock: Clock,
        database: Callable[[int], pwd.struct_passwd] = pwd.getpwuid,
        doubt: Callable[[], str] = passwd_doubt,
        by_name: Callable[[str], pwd.struct_passwd] = pwd.getpwnam,
    ) -> None:
        """`doubt` returns why no name may be believed for a decision, "" if one may."""
        self._by_name = by_name
        self._clock = clock
        self._doubt = doubt
        self._database = database
        self._names: dict[int, tuple[str, float]] = {}
        """Name by uid, and until when it is believed."""
        self._waiting: dict[int, float] = {}
        """Since when threads wait for the database."""
        self._late: dict[int, _Found] = {}
        """Answers that came when nobody waited any more: a slow database names its users at the next call."""

    def __call__(self, uid: int) -> str:
        """Name of the user, or the uid as text; "" for one below zero, which is "not known".

        Where an account is called like the uid, it is `uid:1001`: no account can have a colon in its name.
        """
        if uid < 0:
            return ""
        known = self._names.get(uid)
        if known is not None and self._clock.now() < known[1]:
            return known[0]
        return self._read(uid)

    def fresh(self, uid: int) -> str:
        """Return as a call does, from the database and not from memory.

        For a decision to act: a name that was right a minute ago permits nothing. "" where others than root may have
        written it, and where the database is silent.
        """
        if uid < 0 or self._doubt():
            return ""
        found = self._look_up(uid, _FRESH_SECONDS)
        return "" if found is None else self._keep(uid, found)

    def _read(self, uid: int) -> str:
        found = self._late.pop(uid, None) or self._look_up(uid, _PATIENCE_SECONDS)
        if found is not None:
            return self._keep(uid, found)
        name, _ = self._names.get(uid, (f"uid:{uid}", 0.0))
        self._remember(uid, name, _SILENT_SECONDS)
        return name

    def _keep(self, uid: int, found: _Found) -> str:
        had_name = uid in self._names and self._names[uid][0] not in {str(uid), f"uid:{uid}"}
        self._remember(uid, found.name, KNOWN_SECONDS if found.is_named or had_name else RETRY_SECONDS)
        return found.name

    def _remember(self, uid: int, name: str, seconds: float) -> None:
        if uid not in self._names and len(self._names) >= _MOST_USERS:
            self._names.clear()
        self._names[uid] = (name, self._clock.now() + seconds)

    def _look_up(self, uid: int, patience_seconds: float) -> _Found | None:
        """Return what the database has; None where it is silent. Few threads wait for one that is, and nobody else."""
        now = time.monotonic()
        if sum(now - since >= _PATIENCE_SECONDS for since in tuple(self._waiting.values())) >= _MOST_WAITING:
            return None
        try:
            return read_within(patience_seconds, partial(self._ask, uid, now + patience_seconds))
        except TimeoutError:
            return None

    def _ask(self, uid: int, until: float) -> _Found:
        """Return what the database has; where nobody has waited after `until`, it is kept."""
        thread = threading.get_ident()
        self._waiting[thread] = time.monotonic()
        try:
            found = _Found(printable(self._database(uid).pw_name, NAME_LIMIT_BYTES), is_named=True)
        except (KeyError, OverflowError, OSError):
            found = _Found(self._nameless(uid), is_named=False)
        finally:
            del self._waiting[thread]
        if time.monotonic() >= until and len(self._late) < _MOST_USERS:
            self._late[uid] = found
        return found

    def _nameless(self, uid: int) -> str:
        try:
            self._by_name(str(uid))
        except KeyError:
            return str(uid)
        except OSError:  # it cannot be told
            pass
        return f"uid:{uid}"
