"""What can be wrong with the state file, as a value that every surface can show, and whose state it has."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple


class StoreProblemKind(StrEnum):
    """Kinds of problems."""

    CORRUPT = "corrupt"
    """It was moved aside, and a new one begun."""
    NEWER = "newer"
    """A later version of the agent wrote it; it is left alone."""
    FOREIGN = "foreign"
    """Another program's database; it is left alone."""
    OTHER_NODE = "other_node"
    """A simulated node's, a real one's, or another machine's: a real node moves it aside, a simulated one leaves it."""
    UNUSABLE = "unusable"
    """It cannot be opened or made."""
    DAMAGED = "damaged"
    """Damage was found while it was in use: it is moved aside once a new file can be begun."""
    WRITES_FAIL = "writes_fail"
    """It could be used until a write failed: a full disk, most often."""
    MISSING = "missing"
    """It was removed or replaced while it was in use."""


@dataclass(frozen=True, slots=True)
class StoreProblem:
    """Why what should survive a restart may not."""

    trouble: StoreProblemKind
    path: Path
    detail: str
    in_memory: bool
    """Whether everything is kept in memory for now, and lost with the process."""
    moved_to: Path | None = None

    def __str__(self) -> str:
        words = {
            StoreProblemKind.CORRUPT: f"{self.path} is damaged ({self.detail})",
            StoreProblemKind.NEWER: f"{self.path} was written by a newer version of gpuagent ({self.detail})",
            StoreProblemKind.FOREIGN: f"{self.path} is another program's database ({self.detail})",
            StoreProblemKind.OTHER_NODE: f"{self.path} is {self.detail}",
            StoreProblemKind.UNUSABLE: f"{self.path} cannot be used ({self.detail})",
            StoreProblemKind.DAMAGED: f"{self.path} is damaged ({self.detail})",
            StoreProblemKind.WRITES_FAIL: f"writing to {self.path} failed ({self.detail})",
            StoreProblemKind.MISSING: f"{self.path} is not the file that was opened ({self.detail})",
        }[self.trouble]
        if self.moved_to is not None:
            words += f"; it was moved to {self.moved_to}"
        if self.trouble is StoreProblemKind.OTHER_NODE and not self.in_memory:
            return words + "; a new one was begun"
        if self.in_memory:
            return words + "; the state of alerts is kept in memory only, and a restart forgets it"
        return words + "; a new one was begun with what could be read, what was firing may be told again"


class StoreFailure(Exception):
    """A transaction was not made. Nothing of it is kept; the next one may work."""


OWNER_KEY = "node"
"""Key of the owner in `meta`."""


class StateOwner(NamedTuple):
    """The node that writes a file."""

    machine: str = ""
    """Identity of the machine, as `KIND ID`; "" where it is not known."""
    simulated: bool = False
    scenario: str = ""
    """Name of the scenario of a simulated node; "" where it is not known."""

    def is_another_story(self, other: StateOwner) -> bool:
        """Return whether both are simulated nodes, of different scenarios."""
        names = {self.scenario, other.scenario}
        return self.simulated and other.simulated and "" not in names and len(names) == 2

    def differs(self, other: StateOwner) -> str:
        """Return what makes these two nodes, in words about the other; "" where they may be one.

        Ids of different kinds cannot be compared: an agent that becomes another user may read another one.
        """
        if self.simulated != other.simulated:
            return "a simulated node's" if other.simulated else "a real node's"
        if self.simulated or self.machine.partition(" ")[0] != other.machine.partition(" ")[0]:
            return ""
        return "" if self.machine == other.machine else "another machine's"

    def dump(self) -> str:
        """Return the text for `meta`."""
        return json.dumps(self._asdict())

    @classmethod
    def load(cls, text: str) -> StateOwner:
        """Read what `dump` wrote. Raises ValueError."""
        found = json.loads(text)
        if not isinstance(found, dict) or not isinstance(found.get("machine"), str):
            raise ValueError("it does not say whose the state is")
        return cls(found["machine"], simulated=found.get("simulated") is True, scenario=str(found.get("scenario", "")))


ANY_OWNER = StateOwner()
"""A real node, on a machine that is not known."""


def owner_of(db: sqlite3.Connection) -> StateOwner | None:
    """Return whose state this is; None where nobody has said so, or it cannot be read. Raises sqlite3.Error."""
    rows: list[tuple[Any]] = db.execute("SELECT value FROM meta WHERE key = ?", (OWNER_KEY,)).fetchall()
    try:
        return StateOwner.load(rows[0][0]) if rows else None
    except (ValueError, TypeError, RecursionError):
        return None
