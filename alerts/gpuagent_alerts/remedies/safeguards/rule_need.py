"""Find rules that are true where there is no need to act, by evaluating them on figures of a GPU as it fills up.

A budget that is kept to, a GPU with room that is no reason any more once it is full, and a process that works, whatever
it holds. What is left of a GPU (`free < 70e9`, `used > total - 70e9`, `used + 70e9 > total`, `free - used < 60e9`) is
told from an amount and from a share that is used by where a comparison begins to hold on GPUs of other sizes.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from gpuagent_alerts.promql.expression import compile_expression
from gpuagent_alerts.promql.numbers import COMPARISONS
from gpuagent_alerts.promql.syntax import Aggregation, Binary, Call, Negation, Node
from gpuagent_alerts.remedies.safeguards.rule_sampling import (
    BUDGET_LIMIT,
    FREE,
    GROWTH,
    LEAST_FREE,
    TOTALS,
    USED_RATIO,
    SampledRule,
    figures_of_gpu,
)
from gpuagent_alerts.rules.plausibility import MOST_FREE
from gpuagent_alerts.rules.shares import share_of

_LOOKS = 192
"""Samples for each size of a GPU."""
_BUDGETS = tuple(gib * 2.0**30 for gib in (2, 6, 20, 80, 500))
_WITHIN = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.9999)
"""Shares of a budget that are in use while it is kept to."""
_BUDGET_USED = "gpuagent_budget_used_bytes"
_PROCESS = "gpuagent_process_memory_used_bytes"
_GROWING = (_PROCESS, _BUDGET_USED, "gpuagent_gpu_memory_processes_bytes")
"""What may come to more as its GPU fills up."""
_SIZES = tuple(2.0**power for power in range(12))
"""GPUs so many times as large show what a comparison asks for."""
_STEPS = 40
"""Halvings between an empty GPU and a full one, which lead to less than 1 B."""
_SAME = 1e-6


class NeedFindings(NamedTuple):
    """What figures showed of an expression."""

    true_within_budget: bool = False
    """It compares a budget's limit, and is true of a budget that is not exceeded."""
    false_when_full: bool = False
    """It is true while more than half of a GPU is free, and no longer when the same GPU is full."""
    calls_much_too_little: bool = False
    """It compares a free share, in whatever spelling, and is true while more than half is free."""


@lru_cache(maxsize=512)
def needs(text: str) -> NeedFindings:
    """Evaluate an expression that names registered metric families alone."""
    expression = compile_expression(text)
    rule = SampledRule(text, expression.tree)
    return NeedFindings(
        BUDGET_LIMIT in rule.names and _is_true_within_budget(rule),
        not GROWTH.intersection(rule.names) and _is_false_when_full(rule),
        any(_is_large_free_share(each) for each in _comparisons(expression.tree)),
    )


@lru_cache(maxsize=512)
def calls_more_than_half_too_little(text: str, total_bytes: int) -> bool:
    """Return whether a comparison takes more free bytes for too few than half of a GPU, or an instance, of this size.

    Only what asks for a larger share of larger GPUs is one: an amount that has to be left over.
    """
    return any(
        comparison.is_true((1 - MOST_FREE) * total_bytes, total_bytes) and comparison.asks_more_of_larger(total_bytes)
        for comparison in _comparisons(compile_expression(text).tree)
    )


def _is_true_within_budget(rule: SampledRule) -> bool:
    chance = random.Random(0)  # noqa: S311  the same figures for the same rule
    for limit in _BUDGETS:
        for share in _WITHIN:
            budget = {BUDGET_LIMIT: limit, _BUDGET_USED: share * limit}
            for gpu_used in (limit, None, TOTALS[-1] - LEAST_FREE):
                gpu = {} if gpu_used is None else figures_of_gpu(rule.names, gpu_used, TOTALS[-1])
                figures = rule.sample(TOTALS[-1], chance) | gpu
                if rule.is_true(figures | {name: budget[name] for name in rule.names if name in budget}):
                    return True
    return False


def _is_false_when_full(rule: SampledRule) -> bool:
    """See `NeedFindings`. Neither others that fill the rest nor the process, or the budget, itself keep it true."""
    if not figures_of_gpu(rule.names, 1.0, 1.0):
        return False
    chance = random.Random(0)  # noqa: S311
    for total in TOTALS:
        for _ in range(_LOOKS):
            used = total * USED_RATIO * chance.random()
            figures = rule.sample(total, chance) | figures_of_gpu(rule.names, used, total)
            held = figures.get(_PROCESS)
            if (held is not None and held > used) or not rule.is_true(figures):
                continue
            more = total - LEAST_FREE - used
            full = figures | figures_of_gpu(rule.names, used + more, total)
            grown = {name: value + more for name in _GROWING if (value := figures.get(name)) is not None}
            by_others = full | {name: grown[name] for name in grown if name not in {_PROCESS, _BUDGET_USED}}
            if not rule.is_true(by_others) and not rule.is_true(full | grown):
                return True
    return False


class _Comparison:
    """A comparison of figures of one GPU, or of a process for all of it, with each other or with numbers."""

    def __init__(self, node: Binary) -> None:
        self.node = node
        self._rule = SampledRule("", node)
        self.names = self._rule.names

    @property
    def is_about_gpu(self) -> bool:
        """Whether figures of memory are all that it reads."""
        known = {*figures_of_gpu(self.names, 1.0, 1.0), _PROCESS}
        return bool(self.names) and known.issuperset(self.names)

    def is_true(self, used: float, total: float) -> bool:
        """Return whether it is true of a GPU of this size with so many bytes in use, all by one process."""
        figures = figures_of_gpu(self.names, used, total)
        return self._rule.is_true(figures | ({_PROCESS: used} if _PROCESS in self.names else {}))

    def begins_at(self, total: float) -> float | None:
        """Return from how many used bytes on it is true; None where it is true of an empty GPU or never."""
        low, high = 0.0, total - LEAST_FREE
        if self.is_true(low, total) or not self.is_true(high, total):
            return None
        for _ in range(_STEPS):
            middle = (low + high) / 2
            low, high = (low, middle) if self.is_true(middle, total) else (middle, high)
        return high

    def shares(self, total: float) -> list[float]:
        """Return from which used share on it is true, on GPUs of this size and larger ones."""
        found = ((self.begins_at(total * by), total * by) for by in _SIZES)
        return [at / size for at, size in found if at is not None]

    def asks_more_of_larger(self, total: float) -> bool:
        """Return whether a larger share of larger GPUs has to be in use."""
        shares = self.shares(total)
        return len(shares) > 1 and all(later > earlier + _SAME for earlier, later in itertools.pairwise(shares))


def _comparisons(node: Node) -> Iterator[_Comparison]:
    match node:
        case Binary(operator, left, right):
            if operator in COMPARISONS and not node.returns_bool and (found := _Comparison(node)).is_about_gpu:
                yield found
            yield from _comparisons(left)
            yield from _comparisons(right)
        case Negation(operand) | Aggregation(_, operand):
            yield from _comparisons(operand)
        case Call(_, arguments):
            for each in arguments:
                yield from _comparisons(each)


def _is_large_free_share(comparison: _Comparison) -> bool:
    """Return whether a free share is called too little on GPUs of every size while it is more than half."""
    if not FREE.intersection(comparison.names):
        return False
    named = [share for side in (comparison.node.left, comparison.node.right) if (share := share_of(side)) is not None]
    if any(share.part not in FREE for share in named):
        return False
    shares = comparison.shares(TOTALS[0])
    return (
        len(shares) == len(_SIZES)
        and shares[0] < USED_RATIO
        and all(math.isclose(each, shares[0], rel_tol=1e-3) for each in shares)
    )
