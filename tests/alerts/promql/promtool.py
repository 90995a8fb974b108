"""promtool of Prometheus 2.42 as the judge of expressions: the same series, the same expressions, the same rows."""

from __future__ import annotations

import ast
import json
import math
import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from gpuagent_alerts.promql.expression import compile_expression
from gpuagent_alerts.promql.series import SeriesIndex
from gpuagent_alerts.promql.values import EvaluationError, ExpressionError

Labels = tuple[tuple[str, str], ...]
Series = tuple[str, Mapping[str, str], float]
Rows = list[tuple[Labels, float]]

EVALUATED_AT_SECONDS = 120
_FAILURE = re.compile(
    r'^ {4}expr: (?P<expr>"(?:[^"\\]|\\.)*"), time: [^,]*,'
    r"(?: err: (?P<error>.*)|\n {8}exp: (?P<expected>.*)\n {8}got: (?P<got>.*))$",
    re.MULTILINE,
)
_SAMPLE = re.compile(r'(?P<labels>\{(?:[^"{}]|"(?:[^"\\]|\\.)*")*\}) (?P<value>[^ ,]+)(?:, |$)')
_LABEL = re.compile(r'(?P<name>\w+)="(?P<value>(?:[^"\\]|\\.)*)"')


def is_newer() -> bool:
    """Whether it judges in another way: that of 2.45 still agrees with 2.42 in every test, that of 2.53 does not."""
    told = subprocess.run(["promtool", "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"version (\d+)\.(\d+)", told.stdout + told.stderr)
    assert found is not None, told
    return (int(found[1]), int(found[2])) > (2, 45)


def scratch(folder: Path) -> dict[str, str]:
    """The environment of `promtool test`, whose database stays in its temporary directory where a test has failed."""
    return os.environ | {"TMPDIR": str(folder)}


@dataclass(frozen=True, slots=True)
class Case:
    """Series, and expressions over them."""

    series: Sequence[Series]
    expressions: Sequence[str]
    series_of_promtool: Sequence[Series] | None = None
    """Where promtool gets others, to see that the difference is found."""


def our_rows(case: Case, expression: str) -> Rows | str:
    """What the agent makes of it: rows, or the text of an error."""
    try:
        rows = compile_expression(expression).rows(SeriesIndex(case.series), EVALUATED_AT_SECONDS)
    except (ExpressionError, EvaluationError) as error:
        return str(error)
    return [(tuple(sorted(row.labels.items())), row.value) for row in rows]


def disagreements(cases: Iterable[Case], directory: Path) -> list[str]:
    """Where promtool and the agent differ, both sides told. Floats may differ in their last digits."""
    ours: dict[str, Rows | str] = {}
    tests = []
    for number, case in enumerate(cases):
        checks = []
        for position, expression in enumerate(case.expressions):
            # The comment tells promtool's answers apart: it names the expression and nothing else.
            text = f"{expression} # {number}.{position}"
            ours[text] = our_rows(case, text)
            checks.append({"expr": text, "eval_time": f"{EVALUATED_AT_SECONDS}s", "exp_samples": _expected(ours[text])})
        tests.append(
            {
                "interval": "1m",
                "input_series": _input(case.series_of_promtool or case.series),
                "promql_expr_test": checks,
            }
        )
    path = directory / "expressions.test.yaml"
    path.write_text(yaml.safe_dump({"tests": tests}, allow_unicode=True))
    theirs = _failures(path)
    return [
        f"{text}\n  ours:   {rows}\n  theirs: {theirs.get(text, 'the rows that we told it')}"
        for text, rows in ours.items()
        if not _agree(rows, theirs.get(text))
    ]


def refused_by_prometheus(expressions: Sequence[str], directory: Path) -> list[str]:
    """Those that `promtool check rules` does not take, each with its reason."""
    path = directory / "expressions.rules.yaml"
    rules = [{"record": f"r{number}", "expr": expression} for number, expression in enumerate(expressions)]
    path.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}, allow_unicode=True))
    done = subprocess.run(
        ["promtool", "check", "rules", str(path)], capture_output=True, text=True, timeout=50, check=False
    )
    output = done.stdout + done.stderr
    refused = [
        f"{expressions[int(reason[1])]}: {reason[2]}" for reason in re.finditer(r'"r(\d+)": could not (.*)', output)
    ]
    assert (done.returncode == 0) == (not refused), output
    return refused


def _agree(ours: Rows | str, theirs: Rows | str | None) -> bool:
    if theirs is None:
        return not isinstance(ours, str)
    if isinstance(ours, str) or isinstance(theirs, str):
        return isinstance(ours, str) and isinstance(theirs, str)
    mine, other = dict(ours), dict(theirs)
    return (
        len(ours) == len(theirs)
        and mine.keys() == other.keys()
        and all(_close(mine[labels], other[labels]) for labels in mine)
    )


def _close(ours: float, theirs: float) -> bool:
    return math.isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-9) or (math.isnan(ours) and math.isnan(theirs))


def _failures(path: Path) -> dict[str, Rows | str]:
    """What promtool has to say about expressions whose rows are not exactly those that it was told."""
    done = subprocess.run(
        ["promtool", "test", "rules", str(path)],
        capture_output=True, text=True, timeout=50, check=False, env=scratch(path.parent),
    )  # fmt: skip
    output = done.stdout + done.stderr
    failures: dict[str, Rows | str] = {}
    for failure in _FAILURE.finditer(output):
        failures[ast.literal_eval(failure["expr"])] = failure["error"] or _rows(failure["got"])
    assert (done.returncode == 0) == (not failures), output
    return failures


def _rows(text: str) -> Rows:
    if text == "nil":
        return []
    return [
        (
            tuple(
                sorted(
                    (label["name"], ast.literal_eval(f'"{label["value"]}"'))
                    for label in _LABEL.finditer(sample["labels"])
                )
            ),
            float(sample["value"]),
        )
        for sample in _SAMPLE.finditer(text)
    ]


def _expected(rows: Rows | str) -> list[dict[str, object]]:
    return [] if isinstance(rows, str) else [{"labels": _metric(labels), "value": value} for labels, value in rows]


def _input(series: Sequence[Series]) -> list[dict[str, str]]:
    return [
        {"series": name + _metric(labels.items()), "values": " ".join([_number(value)] * 3)}
        for name, labels, value in series
    ]


def _metric(labels: Iterable[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in labels) + "}"


def _number(value: float) -> str:
    return "NaN" if math.isnan(value) else f"{value!r}".replace("inf", "Inf")
