"""User names by uid."""

from __future__ import annotations

import pwd
from collections.abc import Callable

from gpuagent.clock import Clock
from gpuagent.procfs.passwd_file import passwd_doubt
from gpuagent.procfs.printable import printable

NAME_LIMIT_BYTES = 64
KNOWN_SECONDS = 60.0
"""How long a name is believed: a uid may be given to another user."""
RETRY_SECONDS = 300.0
_MOST_USERS = 4096


class UserNames:
    """Asks the system's user database (also LDAP, where it is set up), and believes an answer for a minute.

    A uid without a name is its own name, as in `ls -l`, and is asked for again after five minutes:
    a user of a container need not exist on the host, and a directory server may be down for a
    while. One that had a name just before is asked for again after a minute.
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
        """Return as a call does, from the database and not from memory. It may block for as long as the database does.

        For a decision to act: a name that was right a minute ago permits nothing. "" where others than root may have
        written it.
        """
        return "" if uid < 0 or self._doubt() else self._read(uid)

    def _read(self, uid: int) -> str:
        had_name = uid in self._names and self._names[uid][0] not in {str(uid), f"uid:{uid}"}
        if uid not in self._names and len(self._names) >= _MOST_USERS:
            self._names.clear()
        try:
            name = printable(self._database(uid).pw_name, NAME_LIMIT_BYTES)
            seconds = KNOWN_SECONDS
        except (KeyError, OverflowError, OSError):
            name, seconds = self._nameless(uid), KNOWN_SECONDS if had_name else RETRY_SECONDS
        self._names[uid] = (name, self._clock.now() + seconds)
        return name

    def _nameless(self, uid: int) -> str:
        try:
            self._by_name(str(uid))
        except KeyError:
            return str(uid)
        except OSError:  # it cannot be told
            pass
        return f"uid:{uid}"
