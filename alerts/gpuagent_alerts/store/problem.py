"""What can be wrong with the file, as a value that every surface can show."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Trouble(StrEnum):
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

    trouble: Trouble
    path: Path
    detail: str
    in_memory: bool
    """Whether everything is kept in memory for now, and lost with the process."""
    moved_to: Path | None = None

    def __str__(self) -> str:
        words = {
            Trouble.CORRUPT: f"{self.path} is damaged ({self.detail})",
            Trouble.NEWER: f"{self.path} was written by a newer version of gpuagent ({self.detail})",
            Trouble.FOREIGN: f"{self.path} is another program's database ({self.detail})",
            Trouble.OTHER_NODE: f"{self.path} is {self.detail}",
            Trouble.UNUSABLE: f"{self.path} cannot be used ({self.detail})",
            Trouble.DAMAGED: f"{self.path} is damaged ({self.detail})",
            Trouble.WRITES_FAIL: f"writing to {self.path} failed ({self.detail})",
            Trouble.MISSING: f"{self.path} is not the file that was opened ({self.detail})",
        }[self.trouble]
        if self.moved_to is not None:
            words += f"; it was moved to {self.moved_to}"
        if self.trouble is Trouble.OTHER_NODE and not self.in_memory:
            return words + "; a new one was begun"
        if self.in_memory:
            return words + "; the state of alerts is kept in memory only, and a restart forgets it"
        return words + "; a new one was begun with what could be read, what was firing may be told again"


class StoreFailure(Exception):
    """A transaction was not made. Nothing of it is kept; the next one may work."""
