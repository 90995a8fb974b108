"""How grave a problem is, and the form in which it is told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """Gravest first."""

    CRITICAL = "critical"
    """Work is lost or about to be: somebody has to act now."""
    WARNING = "warning"
    """Somebody has to act in working hours."""
    INFO = "info"
    """Good to know when looking for a cause."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that a person should know of the node.

    `kind` is for programs and does not change with the wording. `text` says what is the case and
    `advice` what to do next. `gpu` is an NVML index, None for the node as a whole.
    """

    severity: Severity
    kind: str
    text: str
    advice: str = ""
    gpu: int | None = None
    pid: int | None = None
    gpus: tuple[int, ...] = ()
    """NVML indices of several GPUs, where it is about no single one: none of them is well."""

    def is_about(self, index: int) -> bool:
        """Return whether the GPU of this NVML index has it."""
        return index == self.gpu or index in self.gpus

    @property
    def sentence(self) -> str:
        """`text` with the GPU that it is about: it stands alone."""
        return self.text if self.gpu is None else f"GPU {self.gpu}: {self.text}"


_ABOUT_TELLING = frozenset({"undelivered"})
_RANK = {severity: rank for rank, severity in enumerate(Severity)}


def gravest(severities: Iterable[Severity]) -> Severity | None:
    """Return the first in rank; None of none."""
    return min(severities, key=_RANK.__getitem__, default=None)


def most_severe_first(problems: Iterable[Problem]) -> list[Problem]:
    """By severity, then the node before its GPUs, then as found; who is not told of it comes after what is wrong."""
    return sorted(
        problems,
        key=lambda problem: (
            _RANK[problem.severity], problem.kind in _ABOUT_TELLING, -1 if problem.gpu is None else problem.gpu,
        ),
    )  # fmt: skip


def joined(parts: Iterable[object], most: int = 5) -> str:
    """Join a list for a sentence, cut where nobody reads on: `1, 2, 3 and 4 more`."""
    texts = [str(part) for part in parts]
    shown = ", ".join(texts[:most])
    return f"{shown} and {len(texts) - most} more" if len(texts) > most else shown
