"""Which results of two sides may belong together in a rule that chooses a process, and whether any ever do."""

from __future__ import annotations

from gpuagent_alerts.promql.syntax import Matching
from gpuagent_alerts.remedies.safeguards.rule_sampling import BUDGETS, NARROWER, NODE, PLACE, PROCESSES
from gpuagent_alerts.remedies.safeguards.rule_shape import RefusedError, Shape

_INSTANCE = "gpu_instance_id"
_NEVER_EMPTY = frozenset(
    {"gpu", "uuid", "pid", "process", "budget", "verdict", "evidence", "parent_pid", "type", "state", "link", "fan",
     "reason", "domain", "profile", "error"}
)  # fmt: skip
"""Labels that no series lacks which may have them at all."""
_OWN_FIGURES = "compare figures of the instance alone, as in `gpuagent_mig_memory_used_bytes > LIMIT`"


def check_instances(matching: Matching, left: Shape, right: Shape) -> None:
    """Refuse a match of a part of a GPU with more than that part. Raises RefusedError."""
    if not (left.read | right.read) & NARROWER:
        return
    for side in (left, right):
        if side.read and not side.read & (NARROWER | PROCESSES):
            raise RefusedError(
                f"it matches parts of a GPU with {min(side.read)}, which is of the whole and has no label {_INSTANCE}:"
                f" {_OWN_FIGURES}"
            )
        if side.read and _INSTANCE not in side.labels:
            raise RefusedError(f"it drops the label {_INSTANCE}, by which parts of a GPU are matched: keep it")
    if (_INSTANCE in matching.labels) != matching.on:
        raise RefusedError(f"it matches parts of a GPU without their label: match by {_INSTANCE} too")


def check_budgets(matching: Matching, left: Shape, right: Shape) -> None:
    """Refuse a match of a budget's figures with those of other budgets. Raises RefusedError."""
    if not (left.read & BUDGETS and right.read & BUDGETS):
        return
    if "budget" not in left.labels & right.labels or ("budget" in matching.labels) != matching.on:
        raise RefusedError(
            "it compares a budget with what belongs to other budgets: keep the label budget on both sides and match by"
            " it, as in `gpuagent_budget_used_bytes > gpuagent_budget_limit_bytes`"
        )


def check_matching(matching: Matching, left: Shape, right: Shape) -> None:
    """Refuse a match of processes with others' processes, and of a GPU with another one or with the whole node.

    Whoever can be on another GPU decides there; and a GPU that cannot be read is missing in a figure of all of them, so
    that this is refused behind `unless` too. What reads no series is the same wherever it is looked at.
    """
    if not (left.read and right.read):
        return
    labels = set(matching.labels)
    if left.processes and right.processes:
        by_pid = "pid" in labels if matching.on else "pid" not in labels
        if not (left.per_process and right.per_process and by_pid):
            raise RefusedError("it compares processes with other processes: match them by pid, as in `on (uuid, pid)`")
    elif (left.processes or right.processes) and matching.on and (chosen := sorted(labels - PLACE - NODE)):
        raise RefusedError(f"it matches processes with GPUs by {', '.join(chosen)}: match them by gpu and uuid")
    if "uuid" not in left.labels & right.labels or ("uuid" in labels) != matching.on:
        raise RefusedError(
            "it matches one GPU with another, or with the whole node: keep uuid on both sides, and match by it"
        )


def check_can_match(matching: Matching, left: Shape, right: Shape) -> None:
    """Refuse a match by a label that one side always has and the other never: it has no result. Raises RefusedError."""
    if not (left.read and right.read):
        return
    labels = frozenset(matching.labels)
    keys = labels if matching.on else (left.labels | right.labels) - labels
    for side, other in ((left, right), (right, left)):
        certain = _NEVER_EMPTY if not side.read & NARROWER else _NEVER_EMPTY | {_INSTANCE}
        if found := sorted(keys & side.labels & certain - other.labels):
            common = sorted(side.labels & other.labels & (PLACE | {"pid", "budget"}))
            raise RefusedError(
                f"its two sides never belong together, as {min(other.read)} has no label {found[0]}: match them"
                f" `on ({', '.join(common)})`"
            )
