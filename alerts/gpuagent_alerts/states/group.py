"""A group of rules, evaluated one after the other: what one writes, the next one sees."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gpuagent_alerts.promql.expression import CachedPlan
from gpuagent_alerts.promql.series import SeriesIndex
from gpuagent_alerts.promql.values import Element, EvaluationError, Row, without_name
from gpuagent_alerts.rules.model import AlertRule, Rule, RuleGroup
from gpuagent_alerts.states.machine import (
    MAX_INSTANCES,
    AlertStates,
    EndTest,
    Explain,
    Frozen,
    RuleFailure,
    Transition,
    no_explanation,
    nothing_certain,
    nothing_missing,
)

log = logging.getLogger(__name__)


class Storage(Protocol):
    """Storage that rules read, and that takes their results."""

    def index(self) -> SeriesIndex:
        """Return what can be seen now: asked for anew before each rule."""
        ...

    def publish(self, owner: Hashable, elements: Sequence[Element]) -> None:
        """Replace the result of a rule by this whole one. Raises RuleFailure where that cannot be."""
        ...


class RuleKey(NamedTuple):
    """Which rule of which group: a name may be there more than once, with other labels."""

    group: str
    rule: str
    number: int
    """Among the group's rules of this name, from 0."""


@dataclass(slots=True)
class RunningRule:
    """A rule, what is known of it from before, and how it fares."""

    key: RuleKey
    rule: Rule
    repeated: CachedPlan
    """The rule's expression."""
    states: AlertStates | None
    """States of an alert rule; None of a recording rule."""
    limit: int = 0
    evaluations: int = 0
    failures: int = 0
    last_error: str = ""
    """Error of the last evaluation; "" where it went well."""


@dataclass(frozen=True, slots=True)
class GroupResult:
    """Result of an evaluation."""

    transitions: tuple[Transition, ...] = ()
    failures: tuple[tuple[RuleKey, str], ...] = ()


@dataclass(slots=True)
class GroupRunner:
    """The rules of one group with their state."""

    group: RuleGroup
    name: str
    rules: list[RunningRule] = field(default_factory=list)

    @classmethod
    def of(
        cls, group: RuleGroup, name: str = "", longest_gap_seconds: float = math.inf, *, house_format: bool = False
    ) -> GroupRunner:
        """Begin without any state. `name` tells groups of the same name in different files apart.

        `longest_gap_seconds` is that between two evaluations. `house_format` is that of `AlertStates`.
        """
        runner = cls(group, name or group.name)
        numbers: dict[str, int] = {}
        for rule in group.rules:
            number = numbers[rule.name] = numbers.get(rule.name, -1) + 1
            states = (
                AlertStates(rule, group.limit, longest_gap_seconds, house_format=house_format)
                if isinstance(rule, AlertRule)
                else None
            )
            key = RuleKey(runner.name, rule.name, number)
            runner.rules.append(RunningRule(key, rule, CachedPlan(rule.expression), states, group.limit))
        return runner

    def evaluate(
        self,
        storage: Storage,
        now_seconds: float,
        wall_seconds: float,
        frozen_of: Callable[[RuleKey], Frozen],
        *,
        with_alert_series: bool = True,
        explain: Explain = no_explanation,
        is_over: EndTest = nothing_certain,
        is_unproven: Frozen = nothing_missing,
    ) -> GroupResult:
        """Evaluate all rules in order. One that fails keeps its state, and costs the others nothing.

        `with_alert_series` False spares `ALERTS` and `ALERTS_FOR_STATE` where no rule looks at them.
        """
        transitions: list[Transition] = []
        failures: list[tuple[RuleKey, str]] = []
        for running in self.rules:
            running.evaluations += 1
            try:
                rows = running.repeated.rows(storage.index(), wall_seconds)
                if running.states is not None:
                    transitions += running.states.evaluate(
                        now_seconds, rows, frozen_of(running.key),
                        wall_seconds=wall_seconds, explain=explain, is_over=is_over, is_unproven=is_unproven,
                    )  # fmt: skip
                    elements = running.states.series(now_seconds, wall_seconds) if with_alert_series else []
                else:
                    elements = _record(running.rule, running.limit, rows)
                storage.publish(running.key, elements)
            except RuleFailure as failure:
                transitions += failure.ended
                failures.append((running.key, _failed(running, str(failure))))
            except EvaluationError as error:
                failures.append((running.key, _failed(running, str(error))))
            except Exception as error:
                # A defect of one rule's evaluation must not stop the others.
                log.exception("rule %s of group %s", running.rule.name, self.name)
                failures.append((running.key, _failed(running, f"{type(error).__name__}: {error}")))
            else:
                running.last_error = ""
        return GroupResult(tuple(transitions), tuple(failures))


def _failed(running: RunningRule, problem: str) -> str:
    running.failures += 1
    if running.states is not None:
        running.states.interrupt()
    if running.last_error != problem:
        log.warning("rule %s of group %s: %s", running.rule.name, running.key.group, problem)
    running.last_error = problem
    return problem


def _record(rule: Rule, limit: int, rows: Iterable[Row]) -> list[Element]:
    elements: dict[frozenset[tuple[str, str]], Element] = {}
    for count, row in enumerate(rows, 1):
        if count > MAX_INSTANCES:
            raise RuleFailure(f"the expression has more than {MAX_INSTANCES} results: narrow it, or aggregate")
        labels = without_name({**row.labels, **rule.label_texts})[1]
        if labels.key() in elements:
            raise RuleFailure("vector contains metrics with the same labelset after applying rule labels")
        elements[labels.key()] = (rule.name, labels, row.value)
    if limit and len(elements) > limit:
        raise RuleFailure(f"exceeded limit of {limit} with {len(elements)} series")
    return list(elements.values())
