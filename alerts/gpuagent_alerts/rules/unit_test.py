"""Unit tests of rules, as `promtool test rules` runs them: the same files, the same verdicts."""

from __future__ import annotations

import glob
import json
import struct
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

from gpuagent_alerts.promql.expression import compile_expression
from gpuagent_alerts.promql.series import SeriesIndex
from gpuagent_alerts.promql.values import Element, EvaluationError, ExpressionError, LabelSet, without_name
from gpuagent_alerts.rules.file import load_rule_file
from gpuagent_alerts.rules.formats import format_milliseconds, print_scientific
from gpuagent_alerts.rules.model import RuleFault, RuleFileError, RuleGroup
from gpuagent_alerts.rules.unit_file import (
    AlertCase,
    ExpressionCase,
    NotationFault,
    UnitTest,
    UnitTestFile,
    load_unit_tests,
    parse_series,
)
from gpuagent_alerts.states.group import GroupRunner
from gpuagent_alerts.states.instance import State
from gpuagent_alerts.states.machine import RuleFailure, nothing_missing

Labels = Mapping[str, str]
Told = tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]
"""Labels and annotations of a firing alert, each sorted."""


@dataclass(slots=True)
class UnitTestResult:
    """Result of one test file."""

    file: str
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether all tests passed."""
        return not self.problems


def run_unit_tests(path: Path) -> UnitTestResult:
    """Run all tests of a file."""
    verdict = UnitTestResult(str(path))
    try:
        tests = load_unit_tests(path)
        groups = _load_groups(tests, verdict)
    except RuleFileError as error:
        verdict.problems += map(str, error.faults)
        return verdict
    for test in tests.tests:
        verdict.problems += _problems(test, groups, tests.interval_milliseconds)
    return verdict


class Simulation:
    """Groups of rules over series, one evaluation after the other. Time begins at Unix 0."""

    def __init__(self, groups: Sequence[RuleGroup], test: UnitTest) -> None:
        self.storage = UnitStorage()
        self.runners = [GroupRunner.of(group, f"{group.file};{group.name}") for group in groups]
        for labels, samples in test.series:
            self.storage.set_input(labels, samples)

    def step(self, time_milliseconds: int) -> list[str]:
        """Evaluate every rule once; returns what failed."""
        self.storage.advance(time_milliseconds)
        seconds = time_milliseconds / 1000
        failures = [
            (key.rule, problem)
            for runner in self.runners
            for key, problem in runner.evaluate(self.storage, seconds, seconds, lambda _: nothing_missing).failures
        ]
        return [
            f"    rule: {rule}, time: {format_milliseconds(time_milliseconds)}, err: {problem}"
            for rule, problem in failures
        ]

    def firing(self, alertname: str) -> list[Told]:
        """Return what fires of an alert, in all groups."""
        return sorted(
            _told(instance.labels, instance.annotations)
            for runner in self.runners
            for running in runner.rules
            if running.states is not None and running.rule.name == alertname
            for instance in running.states.instances
            if instance.state is State.FIRING
        )


def _load_groups(tests: UnitTestFile, verdict: UnitTestResult) -> list[RuleGroup]:
    groups: list[RuleGroup] = []
    faults: list[RuleFault] = []
    for pattern in tests.rule_files:
        files = sorted(glob.glob(str(pattern)))  # noqa: PTH207  a pattern may be absolute
        if not files:
            verdict.warnings.append(f"  WARNING: no file match pattern {pattern}")
        for file in files:
            try:
                groups += load_rule_file(Path(file))
            except RuleFileError as error:
                faults += error.faults
    if faults:
        raise RuleFileError(faults)
    order = {name: number for number, name in enumerate(tests.group_order)}
    return sorted(groups, key=lambda group: order.get(group.name, 0))


def _problems(test: UnitTest, groups: Sequence[RuleGroup], interval: int) -> Iterator[str]:
    simulation = Simulation(groups, test)
    cases = sorted(test.alerts, key=lambda case: case.at_milliseconds)
    for time in range(0, test.last_milliseconds + 1, interval):
        failures = simulation.step(time)
        if failures:
            yield from failures
            return
        while cases and cases[0].at_milliseconds < time + interval:
            yield from _judge_alert(test, cases.pop(0), simulation)
    for case in test.expressions:
        yield from _judge_expression(case, simulation)


def _judge_alert(test: UnitTest, case: AlertCase, simulation: Simulation) -> Iterator[str]:
    expected = sorted(
        _told({**alert.labels, "alertname": case.alertname}, alert.annotations) for alert in case.expected
    )
    got = simulation.firing(case.alertname)
    if expected != got:
        name = f"    name: {test.name},\n" if test.name else ""
        yield (
            f"{name}    alertname: {case.alertname}, time: {format_milliseconds(case.at_milliseconds)}, \n"
            f"        exp:{_write_alerts(expected)}, \n        got:{_write_alerts(got)}"
        )


def _judge_expression(case: ExpressionCase, simulation: Simulation) -> Iterator[str]:
    time = format_milliseconds(case.at_milliseconds)
    place = f"    expr: {json.dumps(case.expression, ensure_ascii=False)}, time: {time},"
    try:
        got = _evaluate(case, simulation)
        expected = sorted((_sorted(parse_series(labels)), value) for labels, value in case.expected)
    except (ExpressionError, EvaluationError, NotationFault) as error:
        yield f"{place} err: {error}"
        return
    # Not by ==, which a list decides by identity first: NaN is never what was expected, as in promtool.
    same = len(got) == len(expected) and all(
        one[0] == other[0] and one[1] == other[1] for one, other in zip(expected, got, strict=True)
    )
    if not same:
        yield f"{place}\n        exp: {_write_samples(expected)}\n        got: {_write_samples(got)}"


def _evaluate(case: ExpressionCase, simulation: Simulation) -> list[tuple[tuple[tuple[str, str], ...], float]]:
    expression = compile_expression(case.expression)
    rows = expression.rows(simulation.storage.index_at(case.at_milliseconds), case.at_milliseconds / 1000)
    return sorted((_sorted(row.labels), row.value) for row in rows)


def _told(labels: Labels, annotations: Labels) -> Told:
    return _sorted(labels), _sorted(annotations)


def _sorted(labels: Labels) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


def _write_alerts(alerts: Sequence[Told]) -> str:
    if not alerts:
        return "[]"
    indent = " " * 12
    items = ",\n".join(
        f"{indent}{number}:\n{indent}  Labels:{_write_labels(labels)}\n{indent}  Annotations:{_write_labels(texts)}"
        for number, (labels, texts) in enumerate(alerts)
    )
    return f"[\n{items}\n{indent}]"


def _write_labels(labels: Iterable[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in labels) + "}"


def _write_samples(samples: Sequence[tuple[tuple[tuple[str, str], ...], float]]) -> str:
    return ", ".join(f"{_write_labels(labels)} {print_scientific(value)}" for labels, value in samples) or "nil"


LOOK_BACK_MILLISECONDS = 300_000
"""A sample is seen for so long, to the millisecond and with both ends, unless the series is marked stale."""
_Key = tuple[str, frozenset[tuple[str, str]]]


@dataclass(slots=True)
class _Track:
    """One series. None is the marker of staleness."""

    labels: LabelSet
    times: list[int] = field(default_factory=list)
    values: list[float | None] = field(default_factory=list)

    def append(self, time_milliseconds: int, value: float | None) -> str:
        """Append a sample; return what is wrong with it, in Prometheus' words."""
        if self.times and time_milliseconds < self.times[-1]:
            return "out of order sample"
        if self.times and time_milliseconds == self.times[-1]:
            return "" if _bits(value) == _bits(self.values[-1]) else "duplicate sample for timestamp"
        self.times.append(time_milliseconds)
        self.values.append(value)
        return ""

    def at(self, time_milliseconds: int) -> float | None:
        place = bisect_right(self.times, time_milliseconds) - 1
        if place < 0 or self.times[place] < time_milliseconds - LOOK_BACK_MILLISECONDS:
            return None
        return self.values[place]


class UnitStorage:
    """Input series, which appear as time goes on, and the results of rules."""

    def __init__(self) -> None:
        self._tracks: dict[str, dict[_Key, _Track]] = {}
        self._input: dict[_Key, tuple[LabelSet, list[tuple[int, float | None]]]] = {}
        self._previous: dict[Hashable, set[_Key]] = {}
        self.now_milliseconds = 0

    def set_input(self, labels: Mapping[str, str], samples: Iterable[tuple[int, float | None]]) -> None:
        """Set a series of the test file. The same series again replaces the first."""
        name, others = without_name(labels)
        self._input[name, others.key()] = others, list(samples)

    def advance(self, time_milliseconds: int) -> None:
        """Let input samples up to this time be seen."""
        self.now_milliseconds = time_milliseconds
        for key, (labels, samples) in self._input.items():
            count = bisect_right(samples, time_milliseconds, key=itemgetter(0))
            for time, value in samples[:count]:
                self._track(key, labels).append(time, value)
            del samples[:count]

    def index(self) -> SeriesIndex:
        """Return the series as seen now."""
        return self.index_at(self.now_milliseconds)

    def index_at(self, time_milliseconds: int) -> SeriesIndex:
        """Return the series as seen at another time, with what has been loaded so far."""
        return _IndexAt(self._tracks, time_milliseconds)

    def publish(self, owner: Hashable, elements: Sequence[Element]) -> None:
        """Write a rule's result; what it had before and has no longer becomes stale."""
        written: set[_Key] = set()
        problem = ""
        for name, labels, value in elements:
            key = name, labels.key()
            wrong = self._track(key, labels).append(self.now_milliseconds, value)
            if wrong:
                problem = wrong
            else:
                written.add(key)
        for key in self._previous.get(owner, set()) - written:
            self._tracks[key[0]][key].append(self.now_milliseconds, None)
        self._previous[owner] = written
        if problem:
            raise RuleFailure(problem)

    def _track(self, key: _Key, labels: LabelSet) -> _Track:
        return self._tracks.setdefault(key[0], {}).setdefault(key, _Track(labels))


class _IndexAt(SeriesIndex):
    def __init__(self, tracks: Mapping[str, Mapping[_Key, _Track]], time_milliseconds: int) -> None:
        super().__init__()
        self._tracks = tracks
        self._time = time_milliseconds

    def names(self) -> Sequence[str]:
        return list(self._tracks)

    def elements(self, name: str) -> list[Element]:
        return [
            (name, track.labels, value)
            for track in self._tracks.get(name, {}).values()
            if (value := track.at(self._time)) is not None
        ]


def _bits(value: float | None) -> bytes:
    return b"" if value is None else struct.pack("d", value)
