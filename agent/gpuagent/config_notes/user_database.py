"""Which names of users mean nobody, by the user database of this machine: it may be a server that does not answer."""

from __future__ import annotations

import pwd
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

PATIENCE_SECONDS = 2.0
"""How long a server may take: what is not known by then is no finding."""


def user_problems(names: Iterable[str]) -> dict[str, str]:
    """Return, by name, why nobody has it on this machine; nothing of what cannot be told in time."""
    found: dict[str, str] = {}
    _within_patience(partial(_look_up, found=found), names)
    return dict(found)


def existing_users(names: Iterable[str]) -> frozenset[str]:
    """Return those of the names that a user of this machine has; none of what cannot be told in time."""
    found: set[str] = set()
    _within_patience(partial(_find, found=found), names)
    return frozenset(list(found))


def _within_patience(look_up: Callable[[Iterable[str]], None], names: Iterable[str]) -> None:
    """Look the names up in a thread; one that a server takes too long for is left behind with it."""
    wanted = tuple(dict.fromkeys(names))
    if wanted:
        thread = threading.Thread(target=look_up, args=(wanted,), name="user database", daemon=True)
        thread.start()
        thread.join(PATIENCE_SECONDS)


def no_users(_: Iterable[str]) -> frozenset[str]:
    """Return nothing: see `no_user_problems`."""
    return frozenset()


def _find(names: Iterable[str], found: set[str]) -> None:
    for name in names:
        with suppress(KeyError, ValueError, OSError):
            pwd.getpwnam(name)
            found.add(name)


def no_user_problems(_: Iterable[str]) -> dict[str, str]:
    """Return nothing: users of a simulated node are made up."""
    return {}


def _look_up(names: Iterable[str], found: dict[str, str]) -> None:
    for name in names:
        if problem := _problem(name):
            found[name] = problem


def _problem(name: str) -> str:
    with suppress(KeyError, ValueError, OSError):  # ValueError: a null character
        pwd.getpwnam(name)
        return ""
    if not (name.isascii() and name.isdigit()):
        return f"this machine knows no user {name}"
    with suppress(KeyError, OverflowError, OSError):
        return f"{name} is the number of {pwd.getpwuid(int(name)).pw_name}: write the name"
    return ""  # without an account a process is shown with its number
