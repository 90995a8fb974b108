"""What the analysis of a rule knows of a subexpression: which labels its results have, and what was tested in it."""

from __future__ import annotations

from dataclasses import dataclass

from gpuagent_alerts.remedies.safeguards.rule_sampling import OWNER_LABELS, PLACE

CHOOSING = frozenset({"pid", "budget", *PLACE, *OWNER_LABELS})
"""Labels by which people, ladders and receivers know what an alert is about."""
SUMMED_UP = "it sums up processes, and others may choose what adds to a sum: keep pid, read the GPU's, or set a budget"


class RefusedError(Exception):
    """The expression is no reason; the text says why, and what to write instead."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the analysis knows of a subexpression's results."""

    labels: frozenset[str] = frozenset()
    per_process: bool = False
    """Each result is about one process and carries its pid."""
    processes: bool = False
    """Series of processes stand behind it."""
    read: frozenset[str] = frozenset()
    """Metric names that were read."""
    telling: bool = False
    """Its values depend on a figure of the process, or on the memory of the GPU, that the result is about."""
    filtered: bool = False
    """Something was compared, so that there is no result where that is not so."""
    tested: bool = False
    """What was compared was telling."""
    named: bool = False
    """The operator has named processes: a matcher leaves out what is called by any other name."""
