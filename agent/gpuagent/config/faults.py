"""What is wrong with a configuration, and on which line: the only thing a bad file leads to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuagent.core.problems import explain


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing to put right. Lines and columns count from 1; 0 is unknown (a missing file)."""

    file: str
    line: int
    column: int
    path: str
    """As people write it: receivers[0].slack.url_file; "" where the fault is of the whole file."""
    problem: str
    allowed: str = ""
    suggestion: str = ""
    """What was probably meant; "" where nothing is near."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        subject = f"{self.path}: " if self.path else ""
        return f"{place}: {subject}{explain(self.problem, self.allowed, self.suggestion)}"


class ConfigError(Exception):
    """The configuration cannot be used; `faults` has every reason, in the order of the file."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__(self.faults)

    def __str__(self) -> str:
        return "\n".join(str(fault) for fault in self.faults)


class ConfigUnreadableError(ConfigError):
    """There is no text to judge: the file is missing, forbidden or not a file."""
