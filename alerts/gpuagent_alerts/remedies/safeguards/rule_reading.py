"""Read the expression of a rule from its leaves up, and refuse what no rule that chooses a process may do."""

from __future__ import annotations

from dataclasses import replace

from gpuagent_alerts.promql.functions import CALENDAR_FUNCTIONS
from gpuagent_alerts.promql.numbers import COMPARISONS, SET_OPERATORS
from gpuagent_alerts.promql.syntax import (
    Aggregation,
    Binary,
    Call,
    Cardinality,
    Matching,
    Negation,
    Node,
    Number,
    Selector,
    String,
    is_scalar,
)
from gpuagent_alerts.remedies.safeguards.rule_matchers import (
    CHOOSING,
    SUMMED_UP,
    RefusedError,
    Shape,
    check_matchers,
    is_named,
)
from gpuagent_alerts.remedies.safeguards.rule_sampling import (
    ALWAYS_THERE,
    BUDGET_LIMIT,
    BUDGETS,
    CAN_BE_MISSING,
    COUNTS,
    EVIDENCE,
    FORECASTS,
    INFO,
    LABELS,
    NARROWER,
    NODE,
    OWNER_LABELS,
    PLACE,
    PROCESSES,
    RECORDS,
    TELLING,
    TOLD,
    UNIX_TIMES,
    VERDICT,
    WITHHOLDING,
)
from gpuagent_alerts.rules.shares import small_percentage

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


_KEEPING = frozenset({"topk", "bottomk"})
"""Aggregations whose results are elements of the operand, with all of their labels."""
_COUNTING = frozenset({"count", "group", "count_values", "stddev", "stdvar"})
"""Aggregations whose value says nothing of how large the operand is."""
_FUNCTIONS = frozenset(
    {"abs", "ceil", "clamp", "clamp_max", "clamp_min", "exp", "floor", "label_join", "label_replace", "ln", "log10",
     "log2", "round", "scalar", "sgn", "sort", "sort_desc", "sqrt", "vector"}
)  # fmt: skip
"""Functions that may stand in a rule which chooses a process; any other is refused."""
_OF_THE_CLOCK = frozenset({"time", *CALENDAR_FUNCTIONS})
_BY_THE_KERNEL = "remedies.allow.min_age and `for` go by the kernel's clock"


def shape_of(node: Node, negations: int) -> Shape:
    """Return the shape of a subexpression; `negations` counts the right sides of `unless` that it is within."""
    match node:
        case Number() | String():
            shape = Shape()
        case Selector():
            shape = _selected(node, negations)
        case Negation(operand):
            shape = shape_of(operand, negations)
        case Aggregation():
            shape = _aggregated(node, negations)
        case Call():
            shape = _called(node, negations)
        case Binary():
            shape = _combined(node, negations) if node.operator in SET_OPERATORS else _joined(node, negations)
    return shape


def _selected(node: Selector, negations: int) -> Shape:
    name = _check_name(node.name, negations)
    matched = {matcher.name for matcher in node.matchers}
    if "gpu" in matched and "uuid" not in matched:
        raise RefusedError("it names a GPU by its index, which may come to mean another: name its uuid")
    is_process, is_evidence = name in PROCESSES, name == EVIDENCE
    if is_process:
        check_matchers(node, negations)
    named = is_process and is_named(node)
    telling = name in TELLING or (name == VERDICT and "verdict" in matched)
    return Shape(LABELS[name], is_process, is_process, frozenset({name}), telling, is_evidence, is_evidence, named)


def _check_name(name: str | None, negations: int) -> str:
    """Return the name of a metric that a rule may read; refuse any other."""
    if name is None:
        raise RefusedError("it selects series by a pattern of their names: name the metric")
    if name in {"ALERTS", "ALERTS_FOR_STATE"}:
        raise RefusedError(f"it reads {name}, which goes on while data is missing: read the metrics themselves")
    if name not in LABELS:
        raise RefusedError(f"it reads {name}, which the agent does not measure itself: read the metrics themselves")
    if name in TOLD:
        raise RefusedError(f"it reads {name}, which rests on what programs say of themselves: read what is measured")
    if name in RECORDS:
        raise RefusedError(f"it reads {name}, which tells what the agent concluded or did: read what is measured")
    if name in WITHHOLDING and negations != 1:
        raise RefusedError(f"{name} depends on the names of processes: use it only as `unless ... {name} == 1`")
    if name in UNIX_TIMES:
        raise RefusedError(f"it reads {name}, a moment of the wall clock, which may be set: {_BY_THE_KERNEL}")
    if name in COUNTS and negations % 2 == 0:
        raise RefusedError(
            f"it reads {name}, a count that others may have raised, and before this process came: read what is so now"
        )
    if name in FORECASTS:
        raise RefusedError(f"it reads {name}, a forecast: what grows may stop by itself; {EVIDENCE} tells leaks")
    return name


def _aggregated(node: Aggregation, negations: int) -> Shape:
    shape = shape_of(node.operand, negations)
    if node.parameter is not None:
        shape_of(node.parameter, negations)
    if node.operator in _KEEPING:
        if shape.processes:
            raise RefusedError(f"it compares processes with each other by {node.operator}: set the ladder's `victim`")
        raise RefusedError(f"it compares GPUs with each other by {node.operator}: compare each with an amount")
    by = shape.labels - set(node.labels) if node.without else shape.labels & set(node.labels)
    if node.operator == "count_values" and isinstance(node.parameter, String):
        _check_written(node.parameter.value, "count_values")
        by |= {node.parameter.value}
    telling = shape.telling and node.operator not in _COUNTING
    return _on_its_gpu(replace(shape, labels=by, per_process=shape.per_process and "pid" in by, telling=telling))


def _on_its_gpu(shape: Shape) -> Shape:
    """Return the shape; without the label uuid nothing that was found out is known to be of one GPU."""
    return shape if "uuid" in shape.labels else replace(shape, telling=False, tested=False)


def _called(node: Call, negations: int) -> Shape:
    shapes = [shape_of(argument, negations) for argument in node.arguments]
    if node.function == "absent":
        raise RefusedError("it uses absent(): missing data is no reason to act")
    if node.function == "scalar" and shapes[0].read:
        raise RefusedError("it takes scalar() of what was measured, which is no number where that is missing")
    if node.function in _OF_THE_CLOCK:
        raise RefusedError(f"it uses {node.function}(), and the wall clock may be set: {_BY_THE_KERNEL}")
    if node.function not in _FUNCTIONS:
        raise RefusedError(f"it uses {node.function}(), which no rule that chooses a process may use")
    match node:
        case Call("label_replace" | "label_join", (_, String(label), *_)):
            _check_written(label, node.function)
            return replace(shapes[0], labels=shapes[0].labels | {label})
    return shapes[0] if shapes else Shape()


def _check_written(label: str, function: str) -> None:
    if label in CHOOSING | NODE:
        raise RefusedError(f"it writes the label {label} with {function}: leave {label} as it was measured")


def _combined(node: Binary, negations: int) -> Shape:
    """Return the shape of `and`, `or` and `unless`."""
    left = shape_of(node.left, negations)
    unless = node.operator == "unless"
    right = shape_of(node.right, negations + unless)
    doubtful = (right if not negations % 2 else None) if unless else left if node.operator == "or" else None
    if doubtful is not None and (missing := sorted(_may_be_missing(doubtful.read))):
        raise RefusedError(
            f"its `{node.operator}` takes a missing sample of {missing[0]} for an answer: say"
            " what has to be so, with `and` and the comparison turned round (`unless x > 0` becomes `and x == 0`)"
        )
    if unless and right.read & WITHHOLDING and not _is_flag(node.right):
        raise RefusedError("a name that a process chose may only withhold: write `unless ... == 1`")
    if node.operator == "or":
        if left.per_process != right.per_process or left.processes != right.processes:
            raise RefusedError("the sides of its `or` are about different things: write two rules")
        if left.processes and not left.per_process:
            raise RefusedError(SUMMED_UP)
        check_matching(node.matching, left, right)
        return replace(
            left,
            labels=left.labels & right.labels,  # a result has those of one side or the other
            read=left.read | right.read,
            telling=left.telling and right.telling,
            filtered=left.filtered and right.filtered,
            tested=left.tested and right.tested,
            named=left.named and right.named,
        )
    if not unless:
        check_instances(node.matching, left, right)
    check_budgets(node.matching, left, right)
    check_matching(node.matching, left, right)
    if right.processes and not left.processes:
        raise RefusedError("processes choose its GPUs, and a list may lack one: compare each process by pid")
    check_can_match(node.matching, left, right)
    if unless:  # what is not there leaves everything
        return left
    return replace(
        left,
        read=left.read | right.read,
        filtered=left.filtered or right.filtered,
        tested=left.tested or right.tested,
        named=left.named or right.named,
    )


def _may_be_missing(names: frozenset[str]) -> frozenset[str]:
    """Return those that lack a sample of what could be read all the same."""
    return (names & CAN_BE_MISSING) | (names - PROCESSES - ALWAYS_THERE)


def _is_flag(node: Node) -> bool:
    """Return whether this is a selector, or one that is compared with `== 1` or `> 0`."""
    match node:
        case Selector():
            return True
        case Binary("==", Selector(), Number(1.0), False) | Binary(">", Selector(), Number(0.0), False):
            return True
    return False


def _joined(node: Binary, negations: int) -> Shape:
    """Return the shape of arithmetic and comparisons."""
    left, right = shape_of(node.left, negations), shape_of(node.right, negations)
    if node.returns_bool:
        raise RefusedError("its `bool` gives 0 where a comparison does not hold, and 0 counts as true: leave it out")
    compares = node.operator in COMPARISONS
    if compares and (share := small_percentage(node)) is not None:
        instead = f"write {100 * share:g}, or leave out the 100"
        if BUDGET_LIMIT in left.read | right.read:  # a budget of which 90 % are used is kept to
            instead = (
                f"compare what is used with the limit itself, as in `{min(BUDGETS - {BUDGET_LIMIT})} > {BUDGET_LIMIT}`"
            )
        raise RefusedError(f"it compares a percentage with {share:g}, that is {share:g} %: {instead}")
    telling = left.telling or right.telling
    found = Shape(
        read=left.read | right.read,
        telling=telling,
        filtered=compares or left.filtered or right.filtered,
        tested=(compares and telling) or left.tested or right.tested,
        named=left.named or right.named,
    )
    if is_scalar(node.left) or is_scalar(node.right):
        side = right if is_scalar(node.left) else left
        return replace(found, labels=side.labels, per_process=side.per_process, processes=side.processes)
    matching = node.matching
    check_instances(matching, left, right)
    check_budgets(matching, left, right)
    check_matching(matching, left, right)
    check_can_match(matching, left, right)
    many, one = (right, left) if matching.cardinality is Cardinality.ONE_TO_MANY else (left, right)
    told = many.per_process and one.per_process and INFO in one.read
    for label in sorted((CHOOSING | NODE) & set(matching.include)):
        if label not in OWNER_LABELS or not told:
            raise RefusedError(f"it takes the label {label} from another series: only {INFO}, by pid, may give it")
    merged = replace(
        found,
        labels=many.labels | set(matching.include),
        per_process=many.per_process or (one.per_process and matching.cardinality is Cardinality.ONE_TO_ONE),
        processes=many.processes or one.processes,
    )
    if matching.cardinality is not Cardinality.ONE_TO_ONE:
        return _on_its_gpu(merged)
    keys = set(matching.labels)
    labels = merged.labels & keys if matching.on else merged.labels - keys
    return _on_its_gpu(replace(merged, labels=labels, per_process=merged.per_process and "pid" in labels))
