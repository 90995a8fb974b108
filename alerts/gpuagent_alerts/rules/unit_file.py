"""promtool's unit-test files, read: https://prometheus.io/docs/prometheus/2.42/configuration/unit_testing_rules/.

The grammar of their series - `m{a="b"}`, and values such as `1+1x5 _ stale NaN` - is that of Prometheus 2.42
(`promql/parser`, series descriptions), with its oddities: a value may have one repetition, `NaN` and `stale` none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuagent.core.regular_files import MAX_FILE_BYTES, read_regular_file
from gpuagent.core.yaml_document import Place, YamlFault, YamlMapping, parse_yaml
from gpuagent_alerts.promql.lexer import read_string
from gpuagent_alerts.promql.values import ExpressionError
from gpuagent_alerts.rules.model import RuleFileError, quote_text
from gpuagent_alerts.rules.yaml_fields import (
    LIMITS,
    FaultCollector,
    MappingFields,
)

Labels = Mapping[str, str]
DEFAULT_INTERVAL_MILLISECONDS = 60_000
MAX_STEPS = 100_000
"""Evaluations of one test."""

_FLOAT = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)
_YAML_SPECIAL = {".inf": math.inf, "+.inf": math.inf, "-.inf": -math.inf, ".nan": math.nan}


@dataclass(frozen=True, slots=True)
class ExpectedAlert:
    """Labels without `alertname`."""

    labels: Labels
    annotations: Labels


@dataclass(frozen=True, slots=True)
class AlertCase:
    """Expected instances of one alert at one time."""

    at_milliseconds: int
    alertname: str
    expected: tuple[ExpectedAlert, ...]


@dataclass(frozen=True, slots=True)
class ExpressionCase:
    """Expected result of an expression at one time; labels as text, as they are only read when it is compared."""

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
    """Load a file. Raises RuleFileError with every fault of it."""
    sink = FaultCollector(str(path))
    top = None
    try:
        content = read_regular_file(path)
        if len(content) > MAX_FILE_BYTES:
            sink.add(0, "is larger than 1 MiB", remedy="split it into several files")
        else:
            root = parse_yaml(content.decode(), LIMITS)
            top = MappingFields(sink, root if isinstance(root, YamlMapping) else YamlMapping(Place(1, 1)))
            if root is not None and not isinstance(root, YamlMapping):
                sink.add(root.place.line, "a test file is a mapping with `rule_files:` and `tests:`")
    except OSError as error:
        sink.add(0, f"cannot be read: {error.strerror or error}")
    except UnicodeDecodeError:
        sink.add(0, "is not UTF-8 text")
    except YamlFault as fault:
        sink.add(fault.place.line, fault.problem)
    loaded = _file(sink, top, path) if top is not None else None
    if loaded is None or sink.faults:
        raise RuleFileError(sink.sorted())
    return loaded


def _file(sink: FaultCollector, top: MappingFields, path: Path) -> UnitTestFile:
    top.check_keys(("rule_files", "evaluation_interval", "group_eval_order", "tests"))
    interval = top.milliseconds("evaluation_interval") or DEFAULT_INTERVAL_MILLISECONDS
    order = top.scalars("group_eval_order")
    for number, name in enumerate(order):
        if name.text in {before.text for before in order[:number]}:
            top.fault(name.line, f"group name repeated in evaluation order: {name.text}")
    tests = []
    for node in top.sections("tests"):
        test = _test(MappingFields(sink, node))
        if test.last_milliseconds / interval > MAX_STEPS:
            sink.add(node.place.line, f"the test takes more than {MAX_STEPS} evaluations")
        tests.append(test)
    return UnitTestFile(
        str(path),
        tuple(path.parent / name.text for name in top.scalars("rule_files") if name.text),
        interval,
        tuple(name.text for name in order),
        tuple(tests),
    )


def _test(fields: MappingFields) -> UnitTest:
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


def _series(fields: MappingFields, gap: int) -> tuple[Labels, tuple[tuple[int, float | None], ...]]:
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


def _alert_case(fields: MappingFields) -> AlertCase:
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


def _expression_case(fields: MappingFields) -> ExpressionCase:
    fields.check_keys(("expr", "eval_time", "exp_samples"))
    expression = fields.text("expr")
    expected = []
    for node in fields.sections("exp_samples"):
        inner = fields.inner(node)
        inner.check_keys(("labels", "value"))
        labels = inner.text("labels")
        expected.append((labels.text if labels else "", _float(inner)))
    return ExpressionCase(fields.milliseconds("eval_time"), expression.text if expression else "", tuple(expected))


def _plain(fields: MappingFields, key: str) -> Labels:
    return {name: value.text for name, value in fields.texts(key).items()}


def _float(fields: MappingFields) -> float:
    found = fields.text("value")
    if found is None:
        return 0.0
    if _FLOAT.fullmatch(found.text):
        return float(found.text)
    if found.text.lower() not in _YAML_SPECIAL:
        fields.fault(
            found.line, f"value must be a number, not {quote_text(found.text)}", "write .nan, .inf or -.inf for those"
        )
    return _YAML_SPECIAL.get(found.text.lower(), 0.0)


STALE = object()
"""A marker: the series ends here."""
MAX_VALUES = 100_000
"""Most values of one series."""

_DECIMAL = r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_ITEM = re.compile(
    rf"(?:(?P<blank>_)|(?P<word>[+-]?[a-zA-Z]\w*)|(?P<number>[+-]?{_DECIMAL})(?P<step>[+-]{_DECIMAL})?)"
    r"(?:x(?P<times>\d+))?",
    re.ASCII,
)
_SPECIAL = {"nan": math.nan, "inf": math.inf}
_OCTAL = re.compile(r"0[0-7]+", re.ASCII)
_METRIC = re.compile(r"\s*([a-zA-Z_:][a-zA-Z0-9_:]*)?\s*(\{)?", re.ASCII)
_LABEL = re.compile(r"\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*", re.ASCII)
_COMMA = re.compile(r"\s*,")
_CLOSING = re.compile(r"\s*\}")
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|`[^`]*`')


class NotationFault(ValueError):
    """The text is no series, or no sequence of values."""


def parse_series(text: str) -> dict[str, str]:
    """Return the labels of `name{label="value"}`, the name as `__name__`. Raises NotationFault."""
    text = text.rstrip("\n")
    head = _METRIC.match(text)
    if head is None:
        raise NotationFault(f"{text!r} is no series")
    labels = {"__name__": head[1]} if head[1] else {}
    position = head.end()
    if head[2]:
        position = _braces(text, position, labels)
    if text[position:].strip():
        raise NotationFault(f'{text!r} is no series: write name{{label="value"}}')
    return {name: value for name, value in labels.items() if value}


def _braces(text: str, position: int, labels: dict[str, str]) -> int:
    while True:
        closing = _CLOSING.match(text, position)
        if closing:
            return closing.end()
        label = _LABEL.match(text, position)
        value = _STRING.match(text, label.end()) if label else None
        if label is None or value is None:
            raise NotationFault(f'{text!r} is no series: labels are written {{label="value"}}')
        try:
            labels[label[1]] = read_string(value[0])
        except ExpressionError as error:
            raise NotationFault(str(error)) from None
        position = value.end()
        comma = _COMMA.match(text, position)
        if comma:
            position = comma.end()
        elif not _CLOSING.match(text, position):
            raise NotationFault(f"{text!r} is no series: a comma or a closing brace is missing")


def parse_values(text: str) -> list[float | object | None]:
    """Return one entry for each step: a number, STALE, or None where there is no sample. Raises NotationFault."""
    values: list[float | object | None] = []
    if "\n" in text.rstrip("\n"):
        raise NotationFault("the values of a series stand on one line")
    for item in text.strip(" \t\n").replace("\t", " ").split(" "):
        if not item:
            continue
        for value in _expand(item):
            values.append(value)
            if len(values) > MAX_VALUES:
                raise NotationFault(f"a series has more than {MAX_VALUES} values")
    return values


def _expand(item: str) -> Iterator[float | object | None]:
    match = _ITEM.fullmatch(item)
    if match is None:
        raise NotationFault(f"{item!r} is no value: write 1, 1x3, 1+1x3, _, _x3, stale, NaN or Inf")
    if match["times"] and len(match["times"]) > len(str(MAX_VALUES)):
        raise NotationFault(f"{item!r} stands for too many values")
    times = int(match["times"] or 0)
    if match["blank"]:
        # As Prometheus has it: _x3 is three samples left out, where 1x3 is four times 1.
        yield from [None] * (times if match["times"] else 1)
    elif match["word"]:
        if match["times"]:
            raise NotationFault(f"{item!r}: {match['word']} cannot be repeated")
        yield STALE if match["word"] == "stale" else _word(match["word"])
    else:
        yield from _numbers(match, times)


def _word(word: str) -> float:
    sign, name = (word[0], word[1:]) if word[0] in "+-" else ("", word)
    value = _SPECIAL.get(name.lower())
    if value is None:
        raise NotationFault(f"{word!r} is no value: only stale, NaN and Inf are words")
    return -value if sign == "-" else value


def _numbers(match: re.Match[str], times: int) -> Iterator[float]:
    if match["step"] and not match["times"]:
        raise NotationFault(f"{match[0]!r} does not say how often: write it like 1+1x3")
    value, step = _number(match["number"]), _number(match["step"] or "0")
    for _ in range(times + 1):
        yield value
        value += step


def _number(text: str) -> float:
    sign, digits = (-1.0 if text[0] == "-" else 1.0), text.lstrip("+-")
    value = float(int(digits, 8)) if _OCTAL.fullmatch(digits) else float(digits)
    if math.isinf(value):
        raise NotationFault(f"{text!r} is too large")
    return sign * value
