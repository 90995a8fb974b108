"""Which label matchers a rule may name processes by: that depends on who can write the label, and whether it is known.

To name whom one means is always possible: who writes itself a name accuses itself. To mean everybody but a name
(`{process!="vllm"}`, `unless ... {process="vllm"}`) is one only where a process neither writes that label itself nor
may lack it.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpuagent.core.matchers import Matcher, MatchOperator
from gpuagent_alerts.promql.series import accepts
from gpuagent_alerts.promql.syntax import Selector
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


ANY_NAME = "any-name-but-those-that-were-thought-of"


class Writer(StrEnum):
    """Who writes a label of process series."""

    MEASURED = "measured"
    """Driver, kernel and the agent itself: there for every process on which a remedy may act."""
    NUMBER = "number"
    """The kernel, which gives the same number again."""
    PROCESS = "process"
    """The process: it may change it at any time."""
    ORIGIN = "origin"
    """Whoever started it, by its cgroup or its container: empty where that could not be read."""


WRITERS = {
    **dict.fromkeys(
        ("gpu", "uuid", "gpu_instance_id", "compute_instance_id", "user", "uid", "type", "state", "verdict",
         "evidence"),
        Writer.MEASURED,
    ),
    **dict.fromkeys(("pid", "parent_pid"), Writer.NUMBER),
    **dict.fromkeys(("process", "command"), Writer.PROCESS),
    **dict.fromkeys(
        ("unit", "container_id", "container_runtime", "container_name", "pod_uid", "pod_name", "pod_namespace",
         "slurm_job"),
        Writer.ORIGIN,
    ),
}  # fmt: skip
"""Who writes each label of process series; a test fails on one that is missing."""
_NAMES = frozenset(
    {"user", "uid", *(label for label, by in WRITERS.items() if by in {Writer.PROCESS, Writer.ORIGIN})}
) - {"container_runtime"}
"""Labels by which an operator names processes."""
_VARIED = tuple(f"{first}{ANY_NAME}" for first in (*string.ascii_letters, *string.digits, *"_-./[:"))
_NO_NAME = {
    MatchOperator.NOT_EQUAL: re.compile(r"|\[.*\]"),
    MatchOperator.MATCHES_NOT: re.compile(r"|\\\[[^|]*\]"),
}
"""What may be excluded as no name of a process that lives: none, and what the agent writes of others, as `[dead]`."""
_INSTEAD = "name whom you mean in the matcher, or whom you spare in remedies.never"


def is_named(node: Selector) -> bool:
    """Return whether a selector of processes leaves out what is called by any name that nobody has thought of."""
    return any(not accepts(node, label, ANY_NAME) for label in {each.name for each in node.matchers} & _NAMES)


def check_matchers(node: Selector, negations: int) -> None:
    """Refuse matchers that mean a process by a number, or everybody but those of a name.

    `negations` counts the right sides of `unless` that the selector is within. Raises RefusedError.
    """
    means = negations % 2 == 0
    for matcher in node.matchers:
        label = matcher.name
        match WRITERS.get(label):
            case Writer.NUMBER:
                raise RefusedError(f"it means processes by {label}: numbers are given again, and daemons have parent 1")
            case Writer.ORIGIN if accepts(node, label, "") == means:
                raise RefusedError(
                    f"it takes a missing {label} for an answer, and that is missing where it cannot be read: {_INSTEAD}"
                )
            case Writer.PROCESS if accepts(node, label, ANY_NAME) == means and not _takes_every_name(node, label):
                raise RefusedError(
                    f"it means everybody but some of a {label}, which programs write and change themselves: {_INSTEAD}"
                )


def matcher_fault(matchers: Sequence[Matcher]) -> tuple[str, str] | None:
    """Return what is wrong with the matchers of one label in a ladder, and what to write; None where nothing is.

    The labels of an alert about a process are those of its series. A ladder may ask for a process without a unit: that
    it has none is judged by itself before each step.
    """
    if WRITERS.get(matchers[0].name) is Writer.ORIGIN:
        return None
    try:
        check_matchers(Selector(None, tuple(matchers)), 0)
    except RefusedError as refusal:
        text = str(refusal).removesuffix(f": {_INSTEAD}").removeprefix("it ")
        return text, _INSTEAD.replace("in the matcher", "(a user, unit or container)")
    return None


def _takes_every_name(node: Selector, label: str) -> bool:
    """Return whether the matchers of a label leave nobody out who has a name, as `=~".*"` and `!="[dead]"` do."""
    excluded = [each for each in node.matchers if each.name == label and each.op in _NO_NAME]
    return all(_NO_NAME[each.op].fullmatch(each.value) for each in excluded) and all(
        accepts(node, label, name) for name in _VARIED
    )
