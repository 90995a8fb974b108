"""Whose state a file has: what was found on a simulated node, or on another machine, is not true of this one."""

from __future__ import annotations

import json
import sqlite3
from typing import Any, NamedTuple

OWNER_KEY = "node"
"""In `meta`."""


class Owner(NamedTuple):
    """The node that writes a file."""

    machine: str = ""
    """What tells machines apart, as `KIND ID`; "" where that is not known."""
    simulated: bool = False

    def differs(self, other: Owner) -> str:
        """Return what makes these two nodes, in words about the other; "" where they may be one.

        Ids of different kinds cannot be compared: an agent that becomes another user may read another one.
        """
        if self.simulated != other.simulated:
            return "a simulated node's" if other.simulated else "a real node's"
        if self.simulated or self.machine.partition(" ")[0] != other.machine.partition(" ")[0]:
            return ""
        return "" if self.machine == other.machine else "another machine's"


ANY_OWNER = Owner()
"""A real node, on a machine that is not known."""


def read_owner(text: str) -> Owner:
    """Read what `write_owner` wrote. Raises ValueError."""
    said = json.loads(text)
    if not isinstance(said, dict) or not isinstance(said.get("machine"), str):
        raise ValueError("it does not say whose the state is")
    return Owner(said["machine"], simulated=said.get("simulated") is True)


def write_owner(owner: Owner) -> str:
    """Return the text for `meta`."""
    return json.dumps(owner._asdict())


def owner_of(db: sqlite3.Connection) -> Owner | None:
    """Return whose state this is; None where nobody has said so, or it cannot be read. Raises sqlite3.Error."""
    rows: list[tuple[Any]] = db.execute("SELECT value FROM meta WHERE key = ?", (OWNER_KEY,)).fetchall()
    try:
        return read_owner(rows[0][0]) if rows else None
    except (ValueError, TypeError, RecursionError):
        return None
