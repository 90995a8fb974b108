"""User names by uid."""

from __future__ import annotations

import pwd
from collections.abc import Callable

from gpuagent.clock import Clock
from gpuagent.procfs.printable import printable

NAME_LIMIT_BYTES = 64
RETRY_SECONDS = 300.0
_MOST_USERS = 4096


class UserNames:
    """Asks the system's user database (also LDAP, where it is set up) once per uid.

    A uid without a name is its own name, as in `ls -l`, and is asked for again after five minutes:
    a user of a container need not exist on the host, and a directory server may be down for a
    while.
    """

    def __init__(self, clock: Clock, database: Callable[[int], pwd.struct_passwd] = pwd.getpwuid) -> None:
        self._clock = clock
        self._database = database
        self._names: dict[int, str] = {}
        self._unknown: dict[int, float] = {}

    def __call__(self, uid: int) -> str:
        """Name of the user, or the uid as text; "" for one below zero, which is "not known"."""
        if uid < 0:
            return ""
        name = self._names.get(uid)
        if name is not None:
            return name
        asked = self._unknown.get(uid)
        if asked is not None and self._clock.now() - asked < RETRY_SECONDS:
            return str(uid)
        return self._ask(uid)

    def _ask(self, uid: int) -> str:
        if len(self._names) + len(self._unknown) >= _MOST_USERS:
            self._names.clear()
            self._unknown.clear()
        try:
            name = printable(self._database(uid).pw_name, NAME_LIMIT_BYTES)
        except (KeyError, OverflowError, OSError):
            self._unknown[uid] = self._clock.now()
            return str(uid)
        self._unknown.pop(uid, None)
        self._names[uid] = name
        return name
