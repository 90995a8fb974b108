"""All groups of rules over time: evaluated when they are due, reloaded and restarted without losing a state."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from gpuagent.core.clock import CLOCK_STEP_SECONDS
from gpuagent_alerts.alert import Status
from gpuagent_alerts.promql.series import SeriesIndex
from gpuagent_alerts.promql.values import Element
from gpuagent_alerts.rules.model import RuleGroup
from gpuagent_alerts.states.group import GroupResult, GroupRunner, RuleKey, RunningRule
from gpuagent_alerts.states.instance import State, load_instance
from gpuagent_alerts.states.machine import (
    RULE_REMOVED,
    Change,
    EndTest,
    Explain,
    Frozen,
    Transition,
    no_explanation,
    nothing_certain,
)
from gpuagent_alerts.states.missing import ALERT_SERIES, Missing, Selection, select

DEFAULT_INTERVAL_SECONDS = 5.0
_EARLY = 0.1
"""A tick may come this share of the interval early and count: ticks are never quite regular."""
_RULE_LABELS = "rule_labels"
_GAP_INTERVALS = 2.5
"""Two evaluations that are so many intervals apart have a gap between them, however fast the GPUs are read."""


class InstanceRecord(NamedTuple):
    """An instance as it is stored. `dump` is ready for JSON."""

    group: str
    rule: str
    fingerprint: str
    dump: Mapping[str, object]


class LoadResult(NamedTuple):
    """Result of loading stored instances."""

    ended: tuple[Transition, ...]
    """Alerts of rules that are no more: they fired, and somebody may have been told."""
    broken: int
    """Could not be read."""


class RuleEngine:
    """Evaluates rules on the series of a tick. One thread uses it.

    `now_seconds` is a clock that never goes back; `wall_seconds` is Unix time.
    """

    def __init__(
        self,
        groups: Sequence[RuleGroup],
        *,
        default_interval_seconds: float = DEFAULT_INTERVAL_SECONDS,
        longest_gap_seconds: float = 0.0,
    ) -> None:
        """Begin without states. Evaluations further apart than `longest_gap_seconds` and 2.5 intervals have a gap."""
        self.longest_gap_seconds = longest_gap_seconds
        self._default_interval = default_interval_seconds
        self._recorded = RecordedSeries()
        self._wall_offset: float | None = None
        self._due: dict[str, float] = {}
        self._runners = self._make_runners(groups)
        self._selections: Mapping[RuleKey, Sequence[Selection]] = select(self._runners)
        self._reads_alerts = _reads_alerts(self._selections)

    @property
    def groups(self) -> Sequence[GroupRunner]:
        """The groups in force, with the state of their rules."""
        return tuple(self._runners)

    def rules(self) -> Iterable[RunningRule]:
        """Return all rules of all groups, in order."""
        return (running for runner in self._runners for running in runner.rules)

    def interrupt(self) -> None:
        """Note that series do not mean what they did: for how long anything has been true is not known any more."""
        for running in self.rules():
            if running.states is not None:
                running.states.interrupt()

    def recorded(self, now_seconds: float) -> list[Element]:
        """Return every series that rules have made; `ALERTS` too where a rule looks at it."""
        return [element for name in self._recorded.names() for element in self._recorded.elements(name, now_seconds)]

    def metric_names(self, now_seconds: float | None = None) -> frozenset[str] | None:
        """Return the metrics that rules read; None where one of them selects by something else than a name.

        With a time: those of the groups that are due then. A group may come every second and read little.
        """
        rules = [
            running.rule
            for runner in self._runners
            if now_seconds is None or self._is_due(runner, now_seconds)
            for running in runner.rules
        ]
        if any(selector.name is None for rule in rules for selector in rule.expression.selectors):
            return None
        return frozenset(name for rule in rules for name in rule.expression.metric_names)

    def is_due(self, now_seconds: float) -> bool:
        """Return whether some group has to be evaluated: otherwise there is no need for an index."""
        return any(self._is_due(runner, now_seconds) for runner in self._runners)

    def evaluate(
        self,
        measured: SeriesIndex,
        now_seconds: float,
        wall_seconds: float,
        missing: Missing,
        explain: Explain = no_explanation,
        is_over: EndTest = nothing_certain,
    ) -> GroupResult:
        """Evaluate the groups that are due, in order. `explain` and `is_over` know what is no series."""
        self._follow_wall_clock(wall_seconds - now_seconds)
        transitions: list[Transition] = []
        failures: list[tuple[RuleKey, str]] = []
        storage = _Storage(measured, self._recorded, now_seconds)

        def frozen_of(key: RuleKey) -> Frozen:
            return missing.frozen(self._selections[key])

        for runner in self._runners:
            if self._is_due(runner, now_seconds):
                self._set_due(runner, now_seconds)
                result = runner.evaluate(
                    storage, now_seconds, wall_seconds, frozen_of,
                    with_alert_series=self._reads_alerts, explain=explain, is_over=is_over,
                    is_unproven=missing.is_unproven,
                )  # fmt: skip
                transitions += result.transitions
                failures += result.failures
        return GroupResult(tuple(transitions), tuple(failures))

    def _follow_wall_clock(self, offset: float) -> None:
        """Keep for how long each alert has been what it is when the wall clock was set.

        `offset` is Unix time less the time of the clock that never goes back.
        """
        step = 0.0 if self._wall_offset is None else offset - self._wall_offset
        if self._wall_offset is None or abs(step) > CLOCK_STEP_SECONDS:  # drift adds up until it counts as a step
            self._wall_offset = offset
            for running in self.rules():
                if step and running.states is not None:
                    running.states.follow_wall_clock(step)

    def reload(self, groups: Sequence[RuleGroup], wall_seconds: float) -> list[Transition]:
        """Put other rules in force. A rule of the same group and name goes on where the old one was.

        Returns the alerts of rules that are no more: they have ended.
        """
        old = {runner.name: runner for runner in self._runners}
        self._runners = self._make_runners(groups)
        for runner in self._runners:
            before = old.get(runner.name)
            if before is not None:
                _take_over(runner, before)
                if self._interval(before) != self._interval(runner):
                    self._due.pop(runner.name, None)
        keys = {running.key for running in self.rules()}
        for owner in self._recorded.owners():
            if owner not in keys:
                self._recorded.forget(owner)
        self._due = {name: due for name, due in self._due.items() if name in {runner.name for runner in self._runners}}
        self._selections = select(self._runners)
        self._reads_alerts = _reads_alerts(self._selections)
        return [
            transition
            for runner in old.values()
            for running in runner.rules
            if running.states is not None
            for transition in running.states.drop(wall_seconds)
        ]

    def shape(self) -> Hashable:
        """Return what is equal as long as `dump` differs only in how far clocks have run, in texts and in values.

        A restart from the last dump of the same shape can then be late, by the age of the dump, but never early.
        """
        return tuple((running.key, running.states.shape()) for running in self.rules() if running.states is not None)

    def dump(self) -> list[InstanceRecord]:
        """Return every instance as of the last evaluation of its group, for a restart."""
        return [
            InstanceRecord(
                running.key.group,
                running.key.rule,
                instance.fingerprint,
                {**dump, _RULE_LABELS: running.rule.label_texts},
            )
            for running in self.rules()
            if running.states is not None
            for instance, dump in zip(running.states.instances, running.states.dump(), strict=True)
        ]

    def load(self, records: Iterable[InstanceRecord], now_seconds: float, wall_seconds: float) -> LoadResult:
        """Go on where `dump` stopped, before the first evaluation. The time in between does not count."""
        by_rule: dict[RuleKey, list[Mapping[str, object]]] = {running.key: [] for running in self.rules()}
        orphans: list[Mapping[str, object]] = []
        for record in records:
            running = self._rule_of(record)
            (by_rule[running.key] if running else orphans).append(record.dump)
        broken = 0
        for running in self.rules():
            if running.states is not None:
                broken += running.states.load(by_rule[running.key], now_seconds)
        return LoadResult(tuple(_end(orphans, now_seconds, wall_seconds)), broken)

    def _rule_of(self, record: InstanceRecord) -> RunningRule | None:
        candidates = [
            running
            for running in self.rules()
            if running.states is not None and (running.key.group, running.key.rule) == (record.group, record.rule)
        ]
        wanted = record.dump.get(_RULE_LABELS)
        same = [running for running in candidates if running.rule.label_texts == wanted]
        return next(iter(same or candidates), None)

    def _interval(self, runner: GroupRunner) -> float:
        return self._interval_of(runner.group)

    def _interval_of(self, group: RuleGroup) -> float:
        return group.interval_seconds or self._default_interval

    def _make_runners(self, groups: Iterable[RuleGroup]) -> list[GroupRunner]:
        return [
            GroupRunner.of(
                group, name, max(self.longest_gap_seconds, _GAP_INTERVALS * self._interval_of(group)), house_format=True
            )
            for name, group in _named_apart(groups)
        ]

    def _is_due(self, runner: GroupRunner, now_seconds: float) -> bool:
        due = self._due.get(runner.name)
        return due is None or now_seconds >= due - _EARLY * self._interval(runner)

    def _set_due(self, runner: GroupRunner, now_seconds: float) -> None:
        """Set the next moment of the group's own grid; what was missed is not made up for."""
        interval = self._interval(runner)
        due = self._due.get(runner.name, now_seconds)
        missed = max(0, math.floor((now_seconds - due) / interval))
        self._due[runner.name] = due + (missed + 1) * interval


class _Storage:
    """The tick's series, and what the rules have made so far."""

    def __init__(self, measured: SeriesIndex, recorded: RecordedSeries, now_seconds: float) -> None:
        self._index = SeriesWithRecorded(measured, recorded, now_seconds)
        self._recorded = recorded
        self._now = now_seconds

    def index(self) -> SeriesIndex:
        return self._index

    def publish(self, owner: Hashable, elements: Sequence[Element]) -> None:
        self._recorded.publish(owner, elements, self._now)


def _named_apart(groups: Iterable[RuleGroup]) -> Iterator[tuple[str, RuleGroup]]:
    """Yield groups by names of their own: a second one of a name gets a number.

    Prometheus tells them apart by their files. A file that is moved, as by an upgrade, would then lose its states.
    """
    taken: set[str] = set()
    for group in groups:
        name, number = group.name, 1
        while name in taken:
            number += 1
            name = f"{group.name} ({number})"
        taken.add(name)
        yield name, group


def _reads_alerts(selections: Mapping[RuleKey, Sequence[Selection]]) -> bool:
    return any(selection.metric in ALERT_SERIES for chosen in selections.values() for selection in chosen)


def _take_over(runner: GroupRunner, before: GroupRunner) -> None:
    """Hand over states: to the rule with the same name and labels, or else to the first of that name that has none."""
    old = [running for running in before.rules if running.states is not None]
    new = [running for running in runner.rules if running.states is not None]
    for exact in (True, False):
        for running in list(new):
            match = next((candidate for candidate in old if _is_same(running, candidate, exact=exact)), None)
            if match is not None and running.states is not None and match.states is not None:
                running.states.take_over(match.states)
                match.states = None
                old.remove(match)
                new.remove(running)


def _is_same(one: RunningRule, other: RunningRule, *, exact: bool) -> bool:
    return one.key.rule == other.key.rule and (not exact or one.rule.label_texts == other.rule.label_texts)


def _end(dumps: Iterable[Mapping[str, object]], now_seconds: float, wall_seconds: float) -> Iterator[Transition]:
    """Return what is left of a rule that is no more. What cannot be read was not told either."""
    for dump in dumps:
        with suppress(ValueError):
            instance = load_instance(dump, now_seconds)
            if instance.state is State.FIRING:
                ended = replace(instance.as_alert(Status.RESOLVED, wall_seconds), end_reason=RULE_REMOVED)
                yield Transition(Change.ENDED, ended)


LOOK_BACK_SECONDS = 300.0
"""The result of a rule that fails lives on for as long as Prometheus' look-back."""
_Key = frozenset[tuple[str, str]]


class _Entry(NamedTuple):
    element: Element
    time_seconds: float
    owner: Hashable


class RecordedSeries:
    """The last result of every rule, by metric name. A series that a rule no longer has is gone at once."""

    def __init__(self) -> None:
        self._by_name: dict[str, dict[_Key, _Entry]] = {}
        self._owned: dict[Hashable, list[tuple[str, _Key]]] = {}

    def publish(self, owner: Hashable, elements: Iterable[Element], now_seconds: float) -> None:
        """Replace what `owner` wrote before. A series that another has written at the same time stays the other's."""
        self.forget(owner)
        owned = self._owned.setdefault(owner, [])
        for element in elements:
            name, labels, _ = element
            entries = self._by_name.setdefault(name, {})
            known = entries.get(labels.key())
            if known is None or known.time_seconds < now_seconds:
                entries[labels.key()] = _Entry(element, now_seconds, owner)
                owned.append((name, labels.key()))

    def forget(self, owner: Hashable) -> None:
        """Remove what `owner` wrote."""
        for name, key in self._owned.pop(owner, ()):
            entries = self._by_name.get(name, {})
            if key in entries and entries[key].owner == owner:
                del entries[key]
            if not entries:
                self._by_name.pop(name, None)

    def owners(self) -> Sequence[Hashable]:
        """Return everybody who has written."""
        return tuple(self._owned)

    def names(self) -> Sequence[str]:
        """Return the metric names that there are."""
        return tuple(self._by_name)

    def elements(self, name: str, now_seconds: float) -> list[Element]:
        """Return the series of a metric."""
        return [
            entry.element
            for entry in self._by_name.get(name, {}).values()
            if now_seconds - entry.time_seconds <= LOOK_BACK_SECONDS
        ]


class SeriesWithRecorded(SeriesIndex):
    """Measured series, and recorded ones on top. Where both have a series, the measured one is seen."""

    def __init__(self, measured: SeriesIndex, recorded: RecordedSeries, now_seconds: float) -> None:
        super().__init__()
        self._measured = measured
        self._recorded = recorded
        self._now = now_seconds

    def names(self) -> Sequence[str]:
        return list(dict.fromkeys((*self._measured.names(), *self._recorded.names())))

    def elements(self, name: str) -> list[Element]:
        measured = self._measured.elements(name)
        recorded = self._recorded.elements(name, self._now)
        if not recorded or not measured:
            return recorded or measured
        seen = {labels.key() for _, labels, _ in measured}
        return [*measured, *(element for element in recorded if element[1].key() not in seen)]
