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
from gpuagent_alerts.remedies.safeguards.rule_matchers import CHOOSING, SUMMED_UP, RefusedError, Shape
from gpuagent_alerts.remedies.safeguards.rule_need import needs
from gpuagent_alerts.remedies.safeguards.rule_reading import shape_of
from gpuagent_alerts.remedies.safeguards.rule_sampling import (
    BUDGET_LIMIT,
    BUDGETS,
    FLAGS,
    GROWTH,
    INFO,
    NARROWER,
    OWNER_LABELS,
    PROCESSES_TOGETHER,
    SampledFindings,
    findings,
)
from gpuagent_alerts.rules.expression_notes import unknown_matchers, unknown_modifiers
from gpuagent_alerts.rules.model import AlertRule
from gpuagent_alerts.rules.plausibility import (
    implausible_comparisons,
    large_free_shares,
    misread_numbers,
    small_amounts,
)

_ALWAYS_TRUE = (
    "it is true whatever a process or the memory of its GPU comes to, as far as it was tried: compare a figure with an"
    " amount that some are above and others below"
)
_NOBODYS = "it is true because memory has no living owner, and the end of a process would give none of that back"
_UNREAD = "it is true because a GPU cannot be read well: missing data is no reason to act"
_DEFECT = (
    "it is true because of a defect of a GPU, which stays until that is reset or repaired, whoever came to it since:"
    " read what is so now, or ask for a GPU without it (`and ... == 0`)"
)
_OF_LITTLE_PROCESSES = (
    "it is true of a process that holds next to nothing: compare its own memory with an amount that it has to be above,"
    " or read the GPU alone and set the ladder's `victim`"
)
_OF_LITTLE_USE = (
    "it is true of a GPU on which next to nothing is used: compare what is used with an amount that it has to be above,"
    " or what is free with one that it has to be below"
)
_OF_MUCH_FREE = (
    "it is true while more than half of the memory is free, on GPUs of every size: ask for a free share of 0.5 at most,"
    " or compare what is used, as in `gpuagent_gpu_memory_used_ratio > 0.9`"
)
_OF_WORK = (
    "it is true of a process because that works, however little it holds: that it works is no evidence of memory;"
    " compare its own memory too, as in `... and on (gpu, uuid, pid) gpuagent_process_memory_used_bytes > LIMIT`"
)
_TO_THE_LIMIT = (
    "compare what is used with the limit itself, as in `gpuagent_budget_used_bytes > gpuagent_budget_limit_bytes`, and"
    " lower the budget if it is to be kept sooner"
)
_WITHIN_BUDGET = f"it is true of a budget that is not exceeded, and who would be ended keeps to it: {_TO_THE_LIMIT}"
_NO_NEED = (
    "it is true while more than half of a GPU is free, and no longer when the same GPU is full, so that the act comes"
    " when there is no need: turn the comparison round, as in `... and on (gpu, uuid) gpuagent_gpu_memory_used_ratio >"
    " 0.9`, or leave it out"
)
_ADDED_UP = (
    "it adds up what all processes of a GPU are listed with, where memory that two of them share counts twice: compare"
    " what the GPU has in use, as in `gpuagent_gpu_memory_used_ratio > 0.9`, or each process's own memory"
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
    named: bool = field(default=False, compare=False)
    """The operator has named whose processes are meant."""
    about_growth: bool = False
    """The expression reads what the leak detector says: who acts on it acts on a leak, and needs its evidence."""
    about_idleness: bool = False
    """The expression is true because a process or a GPU does not work: who acts on it must find the process at rest."""


UNKNOWN = RuleAnalysis("the rule behind the alert is not known")


def analyze_rule(rule: AlertRule) -> RuleAnalysis:
    """Return the analysis of a rule: that of its expression, unless its own labels overwrite what they rest on."""
    analysis = analyze(rule.expression)
    if analysis.refusal:
        return analysis
    for name, template in sorted(rule.labels.items()):
        if name not in CHOOSING:
            continue
        if not template.is_constant:
            return replace(analysis, refusal=f"its label {name} is a template, and says whom the alert is about")
        if name not in OWNER_LABELS:
            return replace(analysis, refusal=f"its own label {name} stands in the place of the measured one")
    return analysis


def analyze(expression: Expression) -> RuleAnalysis:
    """Return whom the results of an expression are about, or why they are no reason to disrupt a process."""
    try:
        _check_labels(unknown_matchers(expression.tree))
        shape = shape_of(expression.tree, negations=0)
        _check_shape(shape)
        _check_labels(unknown_modifiers(expression.tree))
        found = findings(expression, per_process=shape.per_process)
        _check_findings(found, shape, expression)
    except RefusedError as refused:
        return RuleAnalysis(str(refused))
    return RuleAnalysis(
        subject=Subject.PROCESS if shape.per_process else Subject.GPU,
        labels=shape.labels,
        named=shape.named,
        about_growth=bool(expression.metric_names & GROWTH),
        about_idleness=found.about_idleness,
    )


def _check_labels(unknown: list[str]) -> None:
    """Refuse labels that no series has: whom they were to choose or to spare is not known."""
    if unknown:
        raise RefusedError("; ".join(unknown))


def _check_shape(shape: Shape) -> None:
    """Refuse results that are about nobody, and those that nothing was compared for."""
    if shape.read & BUDGETS and "budget" not in shape.labels:
        raise RefusedError("it drops the label budget: keep it, so that the budget's own processes are chosen")
    if "uuid" not in shape.labels:
        raise RefusedError("its results name no GPU: keep the labels gpu and uuid")
    if shape.processes and not shape.per_process:
        raise RefusedError(SUMMED_UP)
    if not shape.filtered:
        raise RefusedError(_compares_nothing(shape.read))
    if not shape.tested:
        raise RefusedError(_ADDED_UP if PROCESSES_TOGETHER in shape.read else _NOT_ABOUT)
    if shape.read & NARROWER and "gpu_instance_id" not in shape.labels:
        raise RefusedError("it drops the label gpu_instance_id: keep it, so that the instance's own are chosen")


def _check_findings(found: SampledFindings, shape: Shape, expression: Expression) -> None:
    """Refuse what figures have shown to be true for another reason than the process, or the memory of its GPU."""
    if not found.tests_figures:
        hints = implausible_comparisons(expression) or small_amounts(expression)
        raise RefusedError("; ".join((_ALWAYS_TRUE, *hints)))
    need = needs(expression.text)
    if need.true_within_budget and not found.about_idleness:
        raise RefusedError(_WITHIN_BUDGET)
    if wrong := misread_numbers(expression) or large_free_shares(expression):
        raise RefusedError("; ".join([*wrong, *([_TO_THE_LIMIT] if BUDGET_LIMIT in shape.read else [])]))
    if found.about_nobodys:
        raise RefusedError(_NOBODYS)
    if found.about_unread:
        raise RefusedError(_UNREAD)
    if found.about_defects:
        raise RefusedError(_DEFECT)
    _check_amounts(found, shape, expression)
    if need.false_when_full and not found.about_idleness:
        raise RefusedError(_NO_NEED)
    if found.true_while_free or need.calls_much_too_little:
        raise RefusedError(_OF_MUCH_FREE)


def _check_amounts(found: SampledFindings, shape: Shape, expression: Expression) -> None:
    """Refuse what is true of who holds next to nothing, unless the rule is about idleness."""
    little = [] if found.about_idleness or expression.metric_names & GROWTH else small_amounts(expression)
    if found.true_of_least and not shape.named:
        raise RefusedError("; ".join((_OF_LITTLE_PROCESSES if shape.per_process else _OF_LITTLE_USE, *little)))
    if little:
        raise RefusedError("; ".join(little))
    if found.about_work and not shape.named:
        raise RefusedError(_OF_WORK)


def _compares_nothing(read: frozenset[str]) -> str:
    """Return why an expression without a comparison is no reason, with one as it could be written."""
    flag = min(read & FLAGS, default="")
    example = f"{flag} == 1" if flag else f"{min(read - {INFO}, default=INFO)} > LIMIT"
    return f"it tests nothing, so that 0 counts as true: compare it, as in `{example}`"
