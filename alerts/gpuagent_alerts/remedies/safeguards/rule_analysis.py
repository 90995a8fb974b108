"""Static analysis of alert rules: whom an alert is about, and whether it is a reason to disrupt a process at all.

Root writes the rule; the names of processes, the frames of apps and the absence of samples are others' doing. An
expression through which those could put somebody else's process under a ladder gets a refusal. So a result is about one
process, or it is about a GPU by what the driver says of that GPU. A sum over processes is about nobody: whose sum a
process adds to is told by labels, and a container, a cgroup or the process itself may have chosen those. Budgets sum up
what is proven.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from gpuagent_alerts.promql.expression import Expression
from gpuagent_alerts.promql.functions import CALENDAR_FUNCTIONS
from gpuagent_alerts.promql.numbers import COMPARISONS, SET_OPERATORS
from gpuagent_alerts.promql.series import accepts
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
from gpuagent_alerts.remedies.safeguards.rule_sampling import (
    ALWAYS_THERE,
    BUDGETS,
    CAN_BE_MISSING,
    COUNTS,
    EVIDENCE,
    FLAGS,
    FORECASTS,
    GROWTH,
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
    SampledFindings,
    findings,
)
from gpuagent_alerts.rules.model import AlertRule
from gpuagent_alerts.rules.plausibility import implausible_comparisons

_CHOOSING = frozenset({"pid", "budget", *PLACE, *OWNER_LABELS})
"""Labels by which people, ladders and receivers know what an alert is about."""
_NAMES = frozenset(
    {"process", "user", "uid", "command", "unit", "container_id", "container_name", "pod_uid", "pod_name",
     "pod_namespace", "slurm_job"}
)  # fmt: skip
"""Labels by which an operator names processes."""
_MAY_BE_UNKNOWN = _NAMES - {"process", "user", "uid"} | {"container_runtime"}
"""Those that are empty where they could not be read."""
_NUMBERS = frozenset({"pid", "parent_pid"})
_ANY_NAME = "any-name-but-those-that-were-thought-of"
_SUMMED_UP = "it sums up processes, and others may choose what adds to a sum: keep pid, read the GPU's, or set a budget"
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
_ALWAYS_TRUE = (
    "it is true whatever a process or the memory of its GPU comes to, as far as it was tried: compare a figure with an"
    " amount that some are above and others below"
)
_NOBODYS = "it is true because memory has no living owner, and the end of a process would give none of that back"
_UNREAD = "it is true because a GPU cannot be read well: missing data is no reason to act"
_OF_LITTLE_PROCESSES = (
    "it is true of a process that holds next to nothing: compare its own memory with an amount that it has to be above,"
    " or read the GPU alone and set the ladder's `victim`"
)
_OF_LITTLE_USE = (
    "it is true of a GPU on which next to nothing is used: compare what is used with an amount that it has to be above,"
    " or what is free with one that it has to be below"
)
_NOT_ABOUT = "what it compares is no memory that the end of a process would give back, and no figure of a process"


class Subject(StrEnum):
    """What one result of an expression is about."""

    PROCESS = "process"
    GPU = "gpu"


@dataclass(frozen=True, slots=True)
class RuleAnalysis:
    """Whom the alerts of a rule are about."""

    refusal: str = ""
    """Why such an alert is never a reason to disrupt a process; "" where it may be one."""
    subject: Subject = Subject.GPU
    labels: frozenset[str] | None = field(default=None, compare=False)
    """Labels that the results may have; None where that is not known, as of what is refused."""
    about_growth: bool = False
    """The expression reads what the leak detector says: who acts on it acts on a leak, and needs its evidence."""
    about_idleness: bool = False
    """The expression is true because a process or a GPU does not work: who acts on it must find the process at rest."""


UNKNOWN = RuleAnalysis("the rule behind the alert is not known")


class _RefusedError(Exception):
    """The expression is no reason; the text says why, and what to write instead."""


@dataclass(frozen=True, slots=True)
class _Shape:
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


def analyze_rule(rule: AlertRule) -> RuleAnalysis:
    """Return the analysis of a rule: that of its expression, unless its own labels overwrite what they rest on."""
    analysis = analyze(rule.expression)
    if analysis.refusal:
        return analysis
    for name, template in sorted(rule.labels.items()):
        if name not in _CHOOSING:
            continue
        if not template.is_constant:
            return replace(analysis, refusal=f"its label {name} is a template, and says whom the alert is about")
        if name not in OWNER_LABELS:
            return replace(analysis, refusal=f"its own label {name} stands in the place of the measured one")
    return analysis


def analyze(expression: Expression) -> RuleAnalysis:
    """Return whom the results of an expression are about, or why they are no reason to disrupt a process."""
    try:
        shape = _shape(expression.tree, negations=0)
        _check_shape(shape)
        found = findings(expression, per_process=shape.per_process)
        _check_findings(found, shape, expression)
    except _RefusedError as refused:
        return RuleAnalysis(str(refused))
    return RuleAnalysis(
        subject=Subject.PROCESS if shape.per_process else Subject.GPU,
        labels=shape.labels,
        about_growth=bool(expression.metric_names & GROWTH),
        about_idleness=found.about_idleness,
    )


def _check_shape(shape: _Shape) -> None:
    """Refuse results that are about nobody, and those that nothing was compared for."""
    if shape.read & BUDGETS and "budget" not in shape.labels:
        raise _RefusedError("it drops the label budget: keep it, so that the budget's own processes are chosen")
    if "uuid" not in shape.labels:
        raise _RefusedError("its results name no GPU: keep the labels gpu and uuid")
    if shape.processes and not shape.per_process:
        raise _RefusedError(_SUMMED_UP)
    if not shape.filtered:
        raise _RefusedError(_compares_nothing(shape.read))
    if not shape.tested:
        raise _RefusedError(_NOT_ABOUT)
    if shape.read & NARROWER and "gpu_instance_id" not in shape.labels:
        raise _RefusedError("it drops the label gpu_instance_id: keep it, so that the instance's own are chosen")


def _check_findings(found: SampledFindings, shape: _Shape, expression: Expression) -> None:
    """Refuse what figures have shown to be true for another reason than the process, or the memory of its GPU."""
    if not found.tests_figures:
        raise _RefusedError("; ".join((_ALWAYS_TRUE, *implausible_comparisons(expression))))
    if found.about_nobodys:
        raise _RefusedError(_NOBODYS)
    if found.about_unread:
        raise _RefusedError(_UNREAD)
    if found.true_of_least and not shape.named:
        raise _RefusedError(_OF_LITTLE_PROCESSES if shape.per_process else _OF_LITTLE_USE)


def _compares_nothing(read: frozenset[str]) -> str:
    """Return why an expression without a comparison is no reason, with one as it could be written."""
    flag = min(read & FLAGS, default="")
    example = f"{flag} == 1" if flag else f"{min(read - {INFO}, default=INFO)} > LIMIT"
    return f"it tests nothing, so that 0 counts as true: compare it, as in `{example}`"


def _shape(node: Node, negations: int) -> _Shape:
    """Return the shape of a subexpression; `negations` counts the right sides of `unless` that it is within."""
    match node:
        case Number() | String():
            shape = _Shape()
        case Selector():
            shape = _selected(node, negations)
        case Negation(operand):
            shape = _shape(operand, negations)
        case Aggregation():
            shape = _aggregated(node, negations)
        case Call():
            shape = _called(node, negations)
        case Binary():
            shape = _combined(node, negations) if node.operator in SET_OPERATORS else _joined(node, negations)
    return shape


def _selected(node: Selector, negations: int) -> _Shape:
    name = _check_name(node.name, negations)
    matched = {matcher.name for matcher in node.matchers}
    if "gpu" in matched and "uuid" not in matched:
        raise _RefusedError("it names a GPU by its index, which may come to mean another: name its uuid")
    is_process, is_evidence = name in PROCESSES, name == EVIDENCE
    if is_process:
        _check_matchers(node, negations)
    named = is_process and any(not accepts(node, label, _ANY_NAME) for label in matched & _NAMES)
    telling = name in TELLING or (name == VERDICT and "verdict" in matched)
    return _Shape(LABELS[name], is_process, is_process, frozenset({name}), telling, is_evidence, is_evidence, named)


def _check_name(name: str | None, negations: int) -> str:
    """Return the name of a metric that a rule may read; refuse any other."""
    if name is None:
        raise _RefusedError("it selects series by a pattern of their names: name the metric")
    if name in {"ALERTS", "ALERTS_FOR_STATE"}:
        raise _RefusedError(f"it reads {name}, which goes on while data is missing: read the metrics themselves")
    if name not in LABELS:
        raise _RefusedError(f"it reads {name}, which the agent does not measure itself: read the metrics themselves")
    if name in TOLD:
        raise _RefusedError(f"it reads {name}, which rests on what programs say of themselves: read what is measured")
    if name in RECORDS:
        raise _RefusedError(f"it reads {name}, which tells what the agent concluded or did: read what is measured")
    if name in WITHHOLDING and negations != 1:
        raise _RefusedError(f"{name} depends on the names of processes: use it only as `unless ... {name} == 1`")
    if name in UNIX_TIMES:
        raise _RefusedError(f"it reads {name}, a moment of the wall clock, which may be set: {_BY_THE_KERNEL}")
    if name in COUNTS and negations % 2 == 0:
        raise _RefusedError(
            f"it reads {name}, a count that others may have raised, and before this process came: read what is so now"
        )
    if name in FORECASTS:
        raise _RefusedError(f"it reads {name}, a forecast: what grows may stop by itself; {EVIDENCE} tells leaks")
    return name


def _check_matchers(node: Selector, negations: int) -> None:
    """Refuse matchers that mean a process by a number, or take a name that could not be read for an answer."""
    for matcher in node.matchers:
        label = matcher.name
        if label in _NUMBERS:
            raise _RefusedError(f"it means processes by {label}: numbers are given again, and daemons have parent 1")
        if label in _MAY_BE_UNKNOWN and accepts(node, label, "") == (negations % 2 == 0):
            raise _RefusedError(
                f"it takes a missing {label} for an answer, and that is missing where it cannot be read: name whom you"
                " mean in the matcher, or whom you spare in remedies.never"
            )


def _aggregated(node: Aggregation, negations: int) -> _Shape:
    shape = _shape(node.operand, negations)
    if node.parameter is not None:
        _shape(node.parameter, negations)
    if node.operator in _KEEPING:
        if shape.processes:
            raise _RefusedError(f"it compares processes with each other by {node.operator}: set the ladder's `victim`")
        raise _RefusedError(f"it compares GPUs with each other by {node.operator}: compare each with an amount")
    by = shape.labels - set(node.labels) if node.without else frozenset(node.labels)
    if node.operator == "count_values" and isinstance(node.parameter, String):
        _check_written(node.parameter.value, "count_values")
        by |= {node.parameter.value}
    telling = shape.telling and node.operator not in _COUNTING
    return _on_its_gpu(replace(shape, labels=by, per_process=shape.per_process and "pid" in by, telling=telling))


def _on_its_gpu(shape: _Shape) -> _Shape:
    """Return the shape; without the label uuid nothing that was found out is known to be of one GPU."""
    return shape if "uuid" in shape.labels else replace(shape, telling=False, tested=False)


def _called(node: Call, negations: int) -> _Shape:
    shapes = [_shape(argument, negations) for argument in node.arguments]
    if node.function == "absent":
        raise _RefusedError("it uses absent(): missing data is no reason to act")
    if node.function == "scalar" and shapes[0].read:
        raise _RefusedError("it takes scalar() of what was measured, which is no number where that is missing")
    if node.function in _OF_THE_CLOCK:
        raise _RefusedError(f"it uses {node.function}(), and the wall clock may be set: {_BY_THE_KERNEL}")
    if node.function not in _FUNCTIONS:
        raise _RefusedError(f"it uses {node.function}(), which no rule that chooses a process may use")
    match node:
        case Call("label_replace" | "label_join", (_, String(label), *_)):
            _check_written(label, node.function)
            return replace(shapes[0], labels=shapes[0].labels | {label})
    return shapes[0] if shapes else _Shape()


def _check_written(label: str, function: str) -> None:
    if label in _CHOOSING | NODE:
        raise _RefusedError(f"it writes the label {label} with {function}: leave {label} as it was measured")


def _combined(node: Binary, negations: int) -> _Shape:
    """Return the shape of `and`, `or` and `unless`."""
    left = _shape(node.left, negations)
    unless = node.operator == "unless"
    right = _shape(node.right, negations + unless)
    doubtful = (right if not negations % 2 else None) if unless else left if node.operator == "or" else None
    if doubtful is not None and (missing := sorted(_may_be_missing(doubtful.read))):
        raise _RefusedError(
            f"its `{node.operator}` takes a missing sample of {missing[0]} for an answer: say"
            " what has to be so, with `and` and the comparison turned round (`unless x > 0` becomes `and x == 0`)"
        )
    if unless and right.read & WITHHOLDING and not _is_flag(node.right):
        raise _RefusedError("a name that a process chose may only withhold: write `unless ... == 1`")
    if node.operator == "or":
        if left.per_process != right.per_process or left.processes != right.processes:
            raise _RefusedError("the sides of its `or` are about different things: write two rules")
        if left.processes and not left.per_process:
            raise _RefusedError(_SUMMED_UP)
        _check_matching(node.matching, left, right)
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
        _check_instances(node.matching, left, right)
    _check_matching(node.matching, left, right)
    if right.processes and not left.processes:
        raise _RefusedError("processes choose its GPUs, and a list may lack one: compare each process by pid")
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


def _joined(node: Binary, negations: int) -> _Shape:
    """Return the shape of arithmetic and comparisons."""
    left, right = _shape(node.left, negations), _shape(node.right, negations)
    if node.returns_bool:
        raise _RefusedError("its `bool` gives 0 where a comparison does not hold, and 0 counts as true: leave it out")
    compares = node.operator in COMPARISONS
    if compares and (share := _small_percentage(node)) is not None:
        raise _RefusedError(
            f"it compares a percentage with {share:g}, that is {share:g} %: write {100 * share:g}, or leave out the 100"
        )
    telling = left.telling or right.telling
    found = _Shape(
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
    _check_instances(matching, left, right)
    _check_matching(matching, left, right)
    many, one = (right, left) if matching.cardinality is Cardinality.ONE_TO_MANY else (left, right)
    told = many.per_process and one.per_process and INFO in one.read
    for label in sorted((_CHOOSING | NODE) & set(matching.include)):
        if label not in OWNER_LABELS or not told:
            raise _RefusedError(f"it takes the label {label} from another series: only {INFO}, by pid, may give it")
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


def _small_percentage(node: Binary) -> float | None:
    """Return the number with which a share in percent is compared as if it were a ratio; None where none is."""
    for number, other in ((node.right, node.left), (node.left, node.right)):
        if isinstance(number, Number) and 0 < number.value <= 1 and _is_percentage(other):
            return number.value
    return None


def _is_percentage(node: Node) -> bool:
    """Return whether something in an expression is multiplied by 100, or divided by a hundredth."""
    parts: tuple[Node, ...] = ()
    match node:
        case (
            Binary("*", Number(100.0), _)
            | Binary("*", _, Number(100.0))
            | Binary("/", _, Number(0.01))
            | Binary("/", _, Binary("/", _, Number(100.0)))
        ):
            return True
        case Binary("*" | "/" | "+" | "-", left, right):
            parts = (left, right)
        case Negation(operand) | Aggregation(_, operand):
            parts = (operand,)
        case Call(_, arguments):
            parts = arguments
    return any(map(_is_percentage, parts))


def _check_instances(matching: Matching, left: _Shape, right: _Shape) -> None:
    """Refuse a match of a part of a GPU with more than that part."""
    if (left.read | right.read) & NARROWER and ("gpu_instance_id" in matching.labels) != matching.on:
        raise _RefusedError("it matches parts of a GPU without their label: match by gpu_instance_id too")


def _check_matching(matching: Matching, left: _Shape, right: _Shape) -> None:
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
            raise _RefusedError("it compares processes with other processes: match them by pid, as in `on (uuid, pid)`")
    elif (left.processes or right.processes) and matching.on and (chosen := sorted(labels - PLACE - NODE)):
        raise _RefusedError(f"it matches processes with GPUs by {', '.join(chosen)}: match them by gpu and uuid")
    if "uuid" not in left.labels & right.labels or ("uuid" in labels) != matching.on:
        raise _RefusedError(
            "it matches one GPU with another, or with the whole node: keep uuid on both sides, and match by it"
        )
