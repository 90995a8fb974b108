"""promtool's unit-test files, read: https://prometheus.io/docs/prometheus/2.42/configuration/unit_testing_rules/."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping as Dict
from dataclasses import dataclass
from pathlib import Path

from gpuagent.core.regular_files import read_regular_file
from gpuagent_alerts.rules.faults import RuleFileError, shown
from gpuagent_alerts.rules.fields import Fields, Sink
from gpuagent_alerts.rules.nodes import MAX_FILE_BYTES, Mapping, YamlFault, parse_yaml
from gpuagent_alerts.rules.notation import NotationFault, parse_series, parse_values

Labels = Dict[str, str]
DEFAULT_INTERVAL_MILLISECONDS = 60_000
MAX_STEPS = 100_000
"""Evaluations of one test."""

_FLOAT = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)
_SPECIAL = {".inf": math.inf, "+.inf": math.inf, "-.inf": -math.inf, ".nan": math.nan}


@dataclass(frozen=True, slots=True)
class ExpectedAlert:
    """Labels without `alertname`."""

    labels: Labels
    annotations: Labels


@dataclass(frozen=True, slots=True)
class AlertCase:
    """What of one alert fires at one time."""

    at_milliseconds: int
    alertname: str
    expected: tuple[ExpectedAlert, ...]


@dataclass(frozen=True, slots=True)
class ExpressionCase:
    """What an expression gives at one time; labels as text, as they are only read when it is compared."""

    at_milliseconds: int
    expression: str
    expected: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class UnitTest:
    """Series and what rules make of them. Samples are (milliseconds, value); None marks a series stale."""

    name: str
    series: tuple[tuple[Labels, tuple[tuple[int, float | None], ...]], ...]
    alerts: tuple[AlertCase, ...]
    expressions: tuple[ExpressionCase, ...]

    @property
    def last_milliseconds(self) -> int:
        """The latest time that is looked at."""
        times = [case.at_milliseconds for case in self.alerts]
        return max(times + [case.at_milliseconds for case in self.expressions], default=0)


@dataclass(frozen=True, slots=True)
class UnitTestFile:
    """A file of tests. `rule_files` are patterns, made absolute."""

    file: str
    rule_files: tuple[Path, ...]
    interval_milliseconds: int
    group_order: tuple[str, ...]
    tests: tuple[UnitTest, ...]


def load_unit_tests(path: Path) -> UnitTestFile:
    """Raises RuleFileError with every fault of the file."""
    sink = Sink(str(path))
    top = None
    try:
        content = read_regular_file(path, MAX_FILE_BYTES)
        if len(content) > MAX_FILE_BYTES:
            sink.add(0, "is larger than 1 MiB", remedy="split it into several files")
        else:
            root = parse_yaml(content.decode())
            top = Fields(sink, root if isinstance(root, Mapping) else Mapping(1))
            if root is not None and not isinstance(root, Mapping):
                sink.add(root.line, "a test file is a mapping with `rule_files:` and `tests:`")
    except OSError as error:
        sink.add(0, f"cannot be read: {error.strerror or error}")
    except UnicodeDecodeError:
        sink.add(0, "is not UTF-8 text")
    except YamlFault as fault:
        sink.add(fault.line, fault.problem)
    loaded = _file(sink, top, path) if top is not None else None
    if loaded is None or sink.faults:
        raise RuleFileError(sink.sorted())
    return loaded


def _file(sink: Sink, top: Fields, path: Path) -> UnitTestFile:
    top.check_keys(("rule_files", "evaluation_interval", "group_eval_order", "tests"))
    interval = top.milliseconds("evaluation_interval") or DEFAULT_INTERVAL_MILLISECONDS
    order = top.scalars("group_eval_order")
    for number, name in enumerate(order):
        if name.text in {before.text for before in order[:number]}:
            top.fault(name.line, f"group name repeated in evaluation order: {name.text}")
    tests = []
    for node in top.sections("tests"):
        test = _test(Fields(sink, node))
        if test.last_milliseconds / interval > MAX_STEPS:
            sink.add(node.line, f"the test takes more than {MAX_STEPS} evaluations")
        tests.append(test)
    return UnitTestFile(
        str(path),
        tuple(path.parent / name.text for name in top.scalars("rule_files") if name.text),
        interval,
        tuple(name.text for name in order),
        tuple(tests),
    )


def _test(fields: Fields) -> UnitTest:
    fields.check_keys(
        ("interval", "input_series", "alert_rule_test", "promql_expr_test", "external_labels", "external_url", "name")
    )
    # Templates that would show these are refused with the rule file, so they change nothing.
    fields.texts("external_labels")
    fields.text("external_url")
    name = fields.text("name")
    gap = fields.milliseconds("interval")
    return UnitTest(
        name.text if name else "",
        tuple(_series(fields.inner(node), gap) for node in fields.sections("input_series")),
        tuple(_alert_case(fields.inner(node)) for node in fields.sections("alert_rule_test")),
        tuple(_expression_case(fields.inner(node)) for node in fields.sections("promql_expr_test")),
    )


def _series(fields: Fields, gap: int) -> tuple[Labels, tuple[tuple[int, float | None], ...]]:
    fields.check_keys(("series", "values"))
    series, values = fields.text("series"), fields.text("values")
    labels: Labels = {}
    samples: list[tuple[int, float | None]] = []
    try:
        labels = parse_series(series.text if series else "")
        for number, value in enumerate(parse_values(values.text if values else "")):
            if value is not None:
                samples.append((number * gap, value if isinstance(value, float) else None))
    except NotationFault as fault:
        fields.fault(fields.line_of("values"), str(fault))
    return labels, tuple(samples)


def _alert_case(fields: Fields) -> AlertCase:
    fields.check_keys(("eval_time", "alertname", "exp_alerts"))
    name = fields.text("alertname")
    if name is None or not name.text:
        fields.fault(fields.line, "an item under alert_rule_test misses required attribute alertname")
    expected = []
    for node in fields.sections("exp_alerts"):
        inner = fields.inner(node)
        inner.check_keys(("exp_labels", "exp_annotations"))
        expected.append(ExpectedAlert(_plain(inner, "exp_labels"), _plain(inner, "exp_annotations")))
    return AlertCase(fields.milliseconds("eval_time"), name.text if name else "", tuple(expected))


def _expression_case(fields: Fields) -> ExpressionCase:
    fields.check_keys(("expr", "eval_time", "exp_samples"))
    expression = fields.text("expr")
    expected = []
    for node in fields.sections("exp_samples"):
        inner = fields.inner(node)
        inner.check_keys(("labels", "value"))
        labels = inner.text("labels")
        expected.append((labels.text if labels else "", _float(inner)))
    return ExpressionCase(fields.milliseconds("eval_time"), expression.text if expression else "", tuple(expected))


def _plain(fields: Fields, key: str) -> Labels:
    return {name: value.text for name, value in fields.texts(key).items()}


def _float(fields: Fields) -> float:
    found = fields.text("value")
    if found is None:
        return 0.0
    if _FLOAT.fullmatch(found.text):
        return float(found.text)
    if found.text.lower() not in _SPECIAL:
        fields.fault(
            found.line, f"value must be a number, not {shown(found.text)}", "write .nan, .inf or -.inf for those"
        )
    return _SPECIAL.get(found.text.lower(), 0.0)
