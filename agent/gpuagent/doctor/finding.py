"""One thing that was looked at."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    INFO = "info"
    """Worth knowing; nothing to do."""
    WARNING = "warning"
    """The agent works, with something missing."""
    FAILURE = "failure"
    """The agent cannot do its work."""


class Finding(NamedTuple):
    """What was looked at, how it is, and what to do ("" if nothing)."""

    subject: str
    level: Level
    text: str
    advice: str = ""
