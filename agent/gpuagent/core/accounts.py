"""Names of the people who command the agent, from a user database that may be silent (LDAP, sssd)."""

from __future__ import annotations

import asyncio
import pwd
import threading
from contextlib import suppress
from functools import partial

from gpuagent.core.background import in_daemon_thread

_PATIENCE_SECONDS = 2.0
_MOST_WAITING = 8
"""Threads that may wait for the database: beyond these nobody's name is asked for."""
_WAITING: set[int] = set()
"""Idents of the threads that do."""


async def user_name(uid: int) -> str:
    """Return the name of a user; "" where there is none, or the user database does not answer within two seconds."""
    if len(_WAITING) >= _MOST_WAITING:
        return ""
    with suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE_SECONDS):
            return await in_daemon_thread(partial(_look_up, uid), "user database")
    return ""


async def describe_user(uid: int) -> str:
    """Return name and uid, for the record; "uid 1000" where the name is not known in time."""
    name = await user_name(uid)
    return f"{name} (uid {uid})" if name else f"uid {uid}"


def _look_up(uid: int) -> str:
    ident = threading.get_ident()
    _WAITING.add(ident)
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return ""
    finally:
        _WAITING.discard(ident)
