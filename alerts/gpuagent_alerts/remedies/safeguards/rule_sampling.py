"""Find what an expression tests by evaluating it on possible figures, for what its text does not show.

Each metric family has a role here: a finding about a process, a label to join, or no reason to act at all.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from gpuagent.core.metrics import FAMILIES
from gpuagent.core.metrics.alerting import ALERTING_FAMILIES
from gpuagent.core.metrics.clients import CLIENT_FAMILIES, SOURCE_FAMILIES, TORCH_FAMILIES
from gpuagent.core.metrics.family import Family, MetricType
from gpuagent.core.metrics.growth import GPU_GROWTH_FAMILIES, GROWTH_FAMILIES, MIG_GROWTH_FAMILIES
from gpuagent.core.metrics.process import FRAMEWORK_FAMILIES, PROCESS_FAMILIES
from gpuagent.core.metrics.remedies import REMEDY_FAMILIES
from gpuagent.core.metrics.usage import USAGE_FAMILIES
from gpuagent_alerts.promql.expression import Expression, compile_expression, compile_tree
from gpuagent_alerts.promql.series import SeriesIndex
from gpuagent_alerts.promql.syntax import Aggregation, Binary, Call, Negation, Node, Number, Selector
from gpuagent_alerts.promql.values import EvaluationError
from gpuagent_alerts.remedies.safeguards.plausible_values import (
    ACTIVITY,
    LASTING,
    LIMITS,
    NOBODYS,
    UNREAD,
    activity_name,
)
from gpuagent_alerts.rules.plausibility import LEAST_HELD_BYTES, MOST_FREE

_PLACES = 48
"""States of all that tells nothing of a process or of the memory of its GPU, as temperatures."""
_LOOKS = 16
"""Figures of the process and of the memory in each of these."""
_SHORT_LOOKS = 8
"""Figures of all else, of a process or a GPU of which the memory is given."""
_ENOUGH = 48
"""So many samples in which it is true show whether it stays so with other values of a family."""
_TRIES, _FEW = 256, 8
"""After so many samples fewer are enough: it is seldom true."""
_FEWEST = 3
"""Families with less values than these are flags: nothing lies between."""
_LEAST_BYTES = 64 * 2.0**20
"""The least memory that a listed process may have."""
_LEAST_RATIO = 0.01
"""Share of a GPU, of an instance or of a budget that is in use at least where anybody uses it, and that a process holds
at least: that somebody holds anything is true of everybody."""
USED_RATIO = 0.9 * (1 - MOST_FREE)
"""Share of a GPU that is used where more than half is free."""
LEAST_FREE = 2.0**20
"""Bytes that are left on the fullest GPU: drivers fail before the last page."""
TOTALS = tuple(gib * 2.0**30 for gib in (8, 24, 80, 288, 1024))
_RATIOS = (0.0, 0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
_Values = tuple[float | None, ...]
_Figures = Mapping[str, float | None]
"""A value for each metric name; None where there is no series."""
OWNER_LABELS = frozenset({"user", "uid", "unit", "container_id", "slurm_job"})
"""Labels of process series that say whose a process is, as far as that is known."""
NODE = frozenset({"job", "instance"})
"""Labels that Prometheus adds."""
PLACE = frozenset({"gpu", "uuid", "gpu_instance_id", "compute_instance_id"})
"""Labels that say on which GPU, or part of one, something is."""
LABELS = {family.name: frozenset(family.labels) for family in FAMILIES}
"""Labels of every family that the agent has."""
INFO = "gpuagent_process_info"
PROCESSES_TOGETHER = "gpuagent_gpu_memory_processes_bytes"
EVIDENCE = "gpuagent_process_memory_leak_evidence"
"""Has a series only while a process leaks: that there is one is a finding of its own."""
BUDGETS = frozenset(family.name for family in REMEDY_FAMILIES if "budget" in family.labels)
BUDGET_LIMIT = "gpuagent_budget_limit_bytes"
UTILIZATION = frozenset(family.name for family in PROCESS_FAMILIES if family.collector == "process_utilization")
"""Families that tell how busy a process is, each in one engine."""
UNIX_TIMES = frozenset(
    name for name in LABELS if name.endswith(("_timestamp_seconds", "_start_time_seconds", "_since_seconds"))
)
"""Families whose values are moments of the wall clock."""
COUNTS = frozenset(family.name for family in FAMILIES if family.kind is MetricType.COUNTER) | {"gpuagent_processes"}
"""Families that count what happened since the start, whoever caused it, or processes, which anybody may start."""
FLAGS = frozenset(family.name for family in FAMILIES if family.help.startswith("1 "))
"""Families whose value is 1 where something is so; most are 0 where it is not."""
WITHHOLDING = frozenset({"gpuagent_gpu_memory_preallocated", "gpuagent_gpu_memory_fast_growth_expected"})
"""Families of GPUs that depend on the names of processes: they may keep an alert from firing, never cause one."""
_GPU_MEMORY = frozenset(
    f"gpuagent_gpu_memory_{name}" for name in ("total_bytes", "used_bytes", "free_bytes", "used_ratio")
)
FREE = frozenset({"gpuagent_gpu_memory_free_bytes", "gpuagent_mig_memory_free_bytes"})
_USED = frozenset(
    {"gpuagent_gpu_memory_used_bytes", "gpuagent_gpu_memory_used_ratio", "gpuagent_mig_memory_used_bytes"}
)
ALWAYS_THERE = _GPU_MEMORY | WITHHOLDING
"""Families of GPUs that have a sample wherever the GPU can be read at all."""
STALL = "gpuagent_gpu_memory_stall_imminent"
"""Is 1 only where next to nothing is left of the memory that GPU and CPU share."""
MEMORY = (_GPU_MEMORY - {"gpuagent_gpu_memory_total_bytes"}) | {
    "gpuagent_mig_memory_used_bytes",
    "gpuagent_mig_memory_free_bytes",
    "gpuagent_budget_used_bytes",
    "gpuagent_gpu_memory_growth_bytes_per_second",
    "gpuagent_gpu_memory_leak_suspected",
    STALL,
}
"""Families of GPUs that tell how much memory is in use which ending a process could give back. What a GPU, an instance
or a budget has at most is none: it is the same whoever holds it."""
VERDICT = "gpuagent_process_memory_verdict"
"""Is always 1: what is so of the process stands in its label `verdict`."""


_CHOICES: Mapping[str, _Values] = {
    **dict.fromkeys(FLAGS, (None, 0.0, 1.0)),
    **dict.fromkeys((EVIDENCE, VERDICT), (None, 1.0)),
    **dict.fromkeys((name for name in LABELS if name.endswith("_info")), (1.0,)),
    **LIMITS,
}
"""Values of families that have few."""
_LEAST: Mapping[str, float | None] = {
    "gpuagent_process_memory_used_bytes": _LEAST_BYTES,
    "gpuagent_process_resident_memory_bytes": 0.0,
    "gpuagent_gpu_memory_reserved_bytes": 0.0,
    "gpuagent_gpu_bar1_memory_used_bytes": 0.0,
    "gpuagent_gpu_bar1_memory_total_bytes": 0.0,
    "gpuagent_process_uninterruptible": None,
    "gpuagent_process_zombie": None,
    "gpuagent_budget_used_bytes": _LEAST_BYTES,
    "gpuagent_budget_limit_bytes": TOTALS[-1],
}
"""Figures of a process that holds next to nothing and does nothing, of a budget that has hardly begun, and of what is
no amount to compare memory with."""


class SampledFindings(NamedTuple):
    """What figures showed of an expression. Where the first is False the others are not looked for, and False."""

    tests_figures: bool
    """Some figure of a process, or of memory, decides whether it is true; also where no sample made it true."""
    about_idleness: bool = False
    """It is true because a process or a GPU does not work, or may be."""
    true_of_least: bool = False
    """It is true of a process, or a GPU, of which nothing but the least memory is known, and not for being idle."""
    about_nobodys: bool = False
    """It is true because memory has no living owner."""
    about_unread: bool = False
    """It is true because less can be read."""
    about_defects: bool = False
    """It is true because a GPU has a defect that stays."""
    about_work: bool = False
    """It is true of a process because that works, however little it holds."""
    true_while_free: bool = False
    """It asks for little free memory, and is true on GPUs of every size while more than half of it is free."""


def findings(expression: Expression, *, per_process: bool) -> SampledFindings:
    """Evaluate an expression that names registered metric families alone on some hundred samples, once for its tree.

    `per_process` says that its results are about one process each.
    """
    return _findings(expression.text, expression.tree, per_process)


@lru_cache(maxsize=512)
def is_always_true_on(text: str, total_bytes: int, *, named: bool = False) -> bool:
    """Return whether it is true whatever is used of a GPU, or an instance, with so much memory.

    False for metrics that are unknown. Where the rule has `named` its processes, one may hold less than a hundredth.
    """
    expression = compile_expression(text)
    if not expression.metric_names or not expression.metric_names <= LABELS.keys():
        return False
    return not SampledRule(text, expression.tree, named=named).tests_figures((float(total_bytes),))


@lru_cache(maxsize=512)
def reads_whole_gpus(text: str) -> bool:
    """Return whether an expression reads how much memory a whole GPU has, or how much of it is used."""
    return bool(compile_expression(text).metric_names & _GPU_MEMORY)


@lru_cache(maxsize=512)
def _findings(text: str, tree: Node, per_process: bool) -> SampledFindings:
    sampled = SampledRule(text, tree)
    if not sampled.tests_figures():
        return SampledFindings(tests_figures=False)
    about_idleness = sampled.turns_false(ACTIVITY, if_never_true=True)
    return SampledFindings(
        True,
        about_idleness,
        not about_idleness
        and (
            sampled.is_true_of_least(per_process=per_process) or sampled.is_true_of_hundredth(per_process=per_process)
        ),
        sampled.turns_false(NOBODYS),
        sampled.turns_false(UNREAD),
        sampled.turns_false(LASTING),
        per_process and not about_idleness and sampled.is_true_of_hundredth(per_process=True, at_work=True),
        sampled.is_true_while_free(),
    )


class SampledRule:
    """An expression over figures of one process on one GPU; matchers of labels are taken to hold."""

    def __init__(self, text: str, tree: Node, *, named: bool = False) -> None:
        self._process_ratio = 0.0 if named else _LEAST_RATIO
        self._expression = compile_tree(text, _without_matchers(tree))
        self.names = sorted(self._expression.metric_names)
        self._reads_instances = any(name.startswith("gpuagent_mig_memory_") for name in self.names)
        literals = sorted({abs(each) for each in _numbers(tree) if math.isfinite(each)})
        self._ratios = (*_RATIOS, *(each for each in literals if each <= 1))
        self._near = [literal * factor for literal in literals for factor in (0.5, 0.99, 1.0, 1.01, 2.0)]
        """The numbers of the expression, and a little more and less."""

    def tests_figures(self, totals: Sequence[float] = TOTALS) -> bool:
        """See `SampledFindings`; `totals` are bytes that GPUs may have."""
        telling = [name for name in self.names if name in TELLING or name in {EVIDENCE, VERDICT}]
        chance = random.Random(0)  # noqa: S311  the same figures for the same rule
        is_ever_true = False
        for _ in range(_PLACES):
            total = chance.choice(totals)
            place = self.sample(total, chance)
            found = {self.is_true(place | self._sample(telling, total, chance)) for _ in range(_LOOKS)}
            if len(found) == 2:
                return True
            is_ever_true |= True in found
        return not is_ever_true

    def turns_false(self, table: Mapping[str, _Values], *, if_never_true: bool = False) -> bool:
        """Return whether it is true only as long as some family of a table is not at its last value."""
        read = {name: self._values_of(table[name]) for name in self.names if name in table}
        if not read:
            return False
        chance = random.Random(0)  # noqa: S311
        found = 0
        for tries in range(_PLACES * _LOOKS):
            is_first = chance.random() < 0.5
            figures = self.sample(chance.choice(TOTALS), chance)
            figures |= {name: values[0] if is_first else chance.choice(values) for name, values in read.items()}
            if not self.is_true(figures):
                continue
            if not all(self.is_true(figures | later) for later in _later_values(figures, read, chance)):
                return True
            found += 1
            if found >= (_ENOUGH if tries < _TRIES else _FEW):
                break
        return if_never_true and not found

    def is_true_of_least(self, *, per_process: bool) -> bool:
        """See `SampledFindings`. Growth is told by the leak detector alone, which looks at each process itself."""
        if GROWTH.intersection(self.names):
            return False
        chance = random.Random(0)  # noqa: S311
        least = {name: value for name, value in _LEAST.items() if name in self.names}
        if not per_process:
            return any(
                self.is_true(self.sample(TOTALS[-1], chance) | least | _least_of_gpu(self.names)) for _ in range(_LOOKS)
            )
        least |= dict.fromkeys(UTILIZATION.intersection(self.names), 0.0)
        return any(
            self.is_true(self.sample(chance.choice(TOTALS), chance) | gpu | least)
            for gpu in ({}, _least_of_gpu(self.names), _most_of_gpu(self.names))
            for _ in range(_LOOKS)
        )

    def is_true_of_hundredth(self, *, per_process: bool, at_work: bool = False) -> bool:
        """Return whether it is true, on GPUs of every size, of who holds a hundredth; see `is_true_of_least`.

        With `at_work` of a process that may use any engine, else of one that rests.
        """
        return not GROWTH.intersection(self.names) and all(
            self._is_true_of_hundredth_of(total, per_process=per_process, at_work=at_work) for total in TOTALS
        )

    def is_true_while_free(self) -> bool:
        """See `SampledFindings`. What reads the memory that is used names a share or an amount of that."""
        if not FREE.intersection(self.names) or _USED.intersection(self.names):
            return False
        chance = random.Random(0)  # noqa: S311
        return all(
            any(
                self.is_true(self.sample(total, chance) | figures_of_gpu(self.names, USED_RATIO * total, total))
                for _ in range(_LOOKS)
            )
            for total in TOTALS
        )

    def _is_true_of_hundredth_of(self, total: float, *, per_process: bool, at_work: bool) -> bool:
        chance = random.Random(0)  # noqa: S311
        held = max(LEAST_HELD_BYTES, _LEAST_RATIO * total)
        figures = {name: value for name, value in _hundredth(held, total).items() if name in self.names}
        gpus = [figures_of_gpu(self.names, held, total)]
        if per_process or BUDGETS.intersection(self.names):
            gpus += [{}, figures_of_gpu(self.names, total - LEAST_FREE, total)]
        work: list[dict[str, float | None]] = [{}]
        if at_work:
            busy = UTILIZATION.intersection(self.names)
            figures = {name: value for name, value in figures.items() if name not in busy}
            work.append(dict.fromkeys(busy, 1.0))
        return any(
            self.is_true(self.sample(total, chance) | gpu | figures | engines)
            for gpu in gpus
            for engines in work
            for _ in range(_SHORT_LOOKS)
        )

    def _values_of(self, values: _Values) -> _Values:
        """Return values of a family in their order, with those of the expression's numbers that lie within."""
        known = [each for each in values if each is not None]
        if len(known) < _FEWEST:
            return values
        near = (each for each in self._near if min(known) < each < max(known))
        between = sorted({*known, *near}, reverse=known[0] > known[-1])
        return (*between, None) if None in values else tuple(between)

    def is_true(self, figures: _Figures) -> bool:
        """Return whether the expression has a result on these figures, by name; None is no series."""
        series = ((name, _labels(name), value) for name, value in figures.items() if value is not None)
        try:
            return bool(self._expression.rows(SeriesIndex(series), 0))
        except EvaluationError:
            return False

    def sample(self, total: float, chance: random.Random) -> dict[str, float | None]:
        """Return figures that could be of all that the expression reads, on a GPU of so many bytes."""
        return self._sample(self.names, total, chance)

    def _sample(self, names: list[str], total: float, chance: random.Random) -> dict[str, float | None]:
        return dict(self._values(names, total, chance))

    def _values(self, names: list[str], total: float, chance: random.Random) -> Iterator[tuple[str, float | None]]:
        least = max(LEAST_HELD_BYTES, _LEAST_RATIO * total + 1)
        used = self._bytes(chance, total - LEAST_FREE, least)
        instance = self._bytes(chance, used, least) if self._reads_instances else used
        memory = {
            "gpuagent_gpu_memory_used_bytes": used,
            "gpuagent_gpu_memory_free_bytes": total - used,
            "gpuagent_gpu_memory_used_ratio": used / total,
            "gpuagent_mig_memory_used_bytes": instance,
            "gpuagent_mig_memory_free_bytes": total - instance,
        }
        for name in names:
            if name in memory:
                yield name, memory[name]
            elif name == "gpuagent_process_memory_used_bytes":
                yield name, self._bytes(chance, used, max(LEAST_HELD_BYTES, self._process_ratio * total))
            elif name == "gpuagent_process_resident_memory_bytes":
                yield name, self._bytes(chance, TOTALS[-1], LEAST_HELD_BYTES)
            elif name == "gpuagent_budget_used_bytes":
                yield name, self._bytes(chance, total - LEAST_FREE, LEAST_HELD_BYTES)
            elif name.endswith("_memory_total_bytes"):
                yield name, total
            elif choices := _CHOICES.get(name.partition(":")[0]):
                yield name, chance.choice(choices)
            elif name.endswith("_ratio"):
                yield name, chance.choice(self._ratios)
            elif name.endswith("_bytes"):
                yield name, self._bytes(chance, TOTALS[-1])
            else:
                sign = chance.choice((-1.0, 1.0)) if name.endswith("_per_second") else 1.0
                yield name, sign * chance.choice((0.0, 1.0, 10.0 ** chance.uniform(-3, 12), *self._near))

    def _bytes(self, chance: random.Random, most: float, least: float = _LEAST_BYTES) -> float:
        near = [each for each in self._near if least <= each <= most]
        anything = math.exp(chance.uniform(math.log(least), math.log(max(most, least))))
        share = max(most * chance.random(), least)
        return float(round(chance.choice((anything, share, most, *near))))


def _later_values(
    figures: _Figures, read: Mapping[str, _Values], chance: random.Random
) -> Iterator[dict[str, float | None]]:
    """Yield figures nearer to the last values: all there, one family there alone, and a little nearer each."""
    yield {name: values[-1] for name, values in read.items()}
    if len(read) > 1:
        yield from ({name: values[-1]} for name, values in read.items())
    yield {name: chance.choice(values[values.index(figures[name]) :]) for name, values in read.items()}


def _hundredth(held: float, total: float) -> dict[str, float | None]:
    """Return the figures of a process, or of a budget for all of a GPU, with a hundredth of it and no work."""
    return {
        **dict.fromkeys(UTILIZATION, 0.0),
        "gpuagent_process_memory_used_bytes": held,
        "gpuagent_process_resident_memory_bytes": LEAST_HELD_BYTES,
        "gpuagent_process_uninterruptible": None,
        "gpuagent_process_zombie": None,
        "gpuagent_budget_used_bytes": held,
        "gpuagent_budget_limit_bytes": total,
    }


def _least_of_gpu(names: Iterable[str]) -> dict[str, float | None]:
    return figures_of_gpu(names, _LEAST_BYTES, TOTALS[-1])


def _most_of_gpu(names: Iterable[str]) -> dict[str, float | None]:
    return figures_of_gpu(names, TOTALS[-1] - LEAST_FREE, TOTALS[-1])


def figures_of_gpu(names: Iterable[str], used: float, total: float) -> dict[str, float | None]:
    """Return the figures of a GPU, and of an instance that is all of it."""
    found: dict[str, float | None] = {
        STALL: float(used > USED_RATIO * total),
        "gpuagent_gpu_memory_used_bytes": used,
        "gpuagent_gpu_memory_free_bytes": total - used,
        "gpuagent_gpu_memory_used_ratio": used / total,
        "gpuagent_gpu_memory_total_bytes": total,
        "gpuagent_mig_memory_used_bytes": used,
        "gpuagent_mig_memory_free_bytes": total - used,
        "gpuagent_mig_memory_total_bytes": total,
    }
    return {name: found[name] for name in names if name in found}


def _labels(name: str) -> dict[str, str]:
    return dict.fromkeys(LABELS[name.partition(":")[0]], "1")


def _without_matchers(node: Node) -> Node:
    match node:
        case Selector():
            return replace(node, name=activity_name(node), matchers=())
        case Negation(operand):
            return replace(node, operand=_without_matchers(operand))
        case Binary(_, left, right):
            return replace(node, left=_without_matchers(left), right=_without_matchers(right))
        case Aggregation(_, operand):
            return replace(node, operand=_without_matchers(operand))
        case Call(_, arguments):
            return replace(node, arguments=tuple(map(_without_matchers, arguments)))
    return node


def _numbers(node: Node) -> Iterator[float]:
    match node:
        case Number(value):
            yield value
        case Negation(operand):
            yield from _numbers(operand)
        case Binary(_, left, right):
            yield from _numbers(left)
            yield from _numbers(right)
        case Aggregation(_, operand):
            yield from _numbers(operand)
        case Call(_, arguments):
            for each in arguments:
                yield from _numbers(each)


def _names(*groups: Sequence[Family[Any]]) -> frozenset[str]:
    return frozenset(family.name for families in groups for family in families)


TOLD = _names(CLIENT_FAMILIES, SOURCE_FAMILIES, TORCH_FAMILIES, FRAMEWORK_FAMILIES)
"""Families whose values come from what apps and model servers say of themselves."""
RECORDS = _names(ALERTING_FAMILIES, REMEDY_FAMILIES, USAGE_FAMILIES) - BUDGETS
"""Families that tell what the agent itself concluded or did: other rules' expressions are behind them, or the past."""
PROCESSES = _names(PROCESS_FAMILIES, GROWTH_FAMILIES)
"""Families of processes."""
GROWTH = _names(GROWTH_FAMILIES, GPU_GROWTH_FAMILIES, MIG_GROWTH_FAMILIES)
"""Families of the leak detector: who acts on them acts on a leak."""
FORECASTS = frozenset(name for name in LABELS if name.endswith("exhaustion_seconds"))
"""Families that tell what would be if growth went on: whatever loads a model looks the same until it stops."""
PROCESS_LABELS = frozenset[str]().union(*(LABELS[name] for name in PROCESSES)) - {"pid"} - PLACE - NODE
"""Labels of process series that say more than which process it is, and on which GPU."""
NARROWER = frozenset(name for name, labels in LABELS.items() if "gpu_instance_id" in labels) - PROCESSES
"""Families of parts of a GPU."""
CAN_BE_MISSING = (
    UTILIZATION
    | {"gpuagent_process_resident_memory_bytes", "gpuagent_process_start_time_seconds"}
    | _names(GROWTH_FAMILIES)
)
"""Families without a sample for some processes that are alive."""
TELLING = MEMORY | (PROCESSES - UNIX_TIMES - {INFO, VERDICT})
"""Families whose values, compared with something, are a finding about a process or the memory of a GPU."""
