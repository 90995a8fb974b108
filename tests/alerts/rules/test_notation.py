"""promtool's notation of series and their values."""

from __future__ import annotations

import math
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpuagent_alerts.rules.unit_file import STALE, NotationFault, parse_series, parse_values
from gpuagent_alerts.rules.unit_test import run_unit_tests
from tests.alerts.rules import promtool

PIECES = (
    "1",
    "_",
    "x",
    "3",
    "+",
    "-",
    "stale",
    "NaN",
    "Inf",
    ".5",
    "1e3",
    "0",
    "10",
    " ",
    " ",
    " ",
    "08",
    "0x1",
    "\t",
    "e",
)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", []),
        ("1 2", [1, 2]),
        ("1x2", [1, 1, 1]),
        ("1+2x2", [1, 3, 5]),
        ("-1-1x1 _ 5", [-1, -2, None, 5]),
        ("_x2 stale", [None, None, STALE]),
        ("_x0 1", [1]),
        ("Inf -inf", [math.inf, -math.inf]),
        ("1e3 .5 1. 010 08", [1000, 0.5, 1, 8, 8]),
        ("\t1   2 \n", [1, 2]),
    ],
)
def test_values(text: str, values: list[object]) -> None:
    """Repetitions, ramps, gaps, markers and numbers in all their forms."""
    assert parse_values(text) == values


def test_nan() -> None:
    """It is a value like others."""
    (value,) = parse_values("NaN")
    assert isinstance(value, float)
    assert math.isnan(value)


@pytest.mark.parametrize(
    "text",
    [
        "1x", "1 x3", "1+1", "a", "NaNx2", "stalex2", "1,2", "- 1", "1x-1", "1x2.5", "1e", "1e999", "0x1f", "--1",
        "1_0", "_1", "1 2\n3", "1x999999999", "_x99999999", "{{}}",
    ],
)  # fmt: skip
def test_what_is_no_value(text: str) -> None:
    """Each is a fault in words; none costs more than its bound."""
    with pytest.raises(NotationFault):
        parse_values(text)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("m", {"__name__": "m"}),
        ("", {}),
        ("{}", {}),
        (" m { a = \"b\" , c='d', } ", {"__name__": "m", "a": "b", "c": "d"}),
        ('m{a="}", b="\\"\\u00e9", c=`\\`, d=""}', {"__name__": "m", "a": "}", "b": '"é', "c": "\\"}),
        ('{__name__="m"}', {"__name__": "m"}),
    ],
)
def test_series(text: str, labels: dict[str, str]) -> None:
    """A name and labels; one without a value is none."""
    assert parse_series(text) == labels


@pytest.mark.parametrize(
    "text", ["m{", "m{a}", 'm{a="b"', 'm{a="b" c="d"}', 'm{a=~"b"}', "m n", 'm{a-b="c"}', "1m", 'm{a="\\q"}']
)
def test_what_is_no_series(text: str) -> None:
    """Likewise."""
    with pytest.raises(NotationFault):
        parse_series(text)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    """Nothing raises anything else."""
    for parse in (parse_values, parse_series):
        with suppress(NotationFault):
            parse(text)


@pytest.mark.needs("promtool")
def test_random_values_are_read_as_by_promtool(tmp_path: Path) -> None:
    """200 seeded sequences: what is taken, what is refused, and every value at every step."""
    rnd = random.Random(5)
    files = []
    for number in range(200):
        text = "".join(rnd.choice(PIECES) for _ in range(rnd.randint(1, 8)))
        files.append(tmp_path / f"{number}.yaml")
        files[-1].write_text(yaml.safe_dump(_test_of(text)))
    reports = promtool.run_unit_tests(files)
    read = 0
    for file in files:
        verdict = run_unit_tests(file)
        assert verdict.passed == (not reports[file]), f"{file.read_text()}\n{reports[file]}\n{verdict.problems}"
        read += verdict.passed
    assert 20 < read < 180


def _test_of(text: str) -> dict[str, Any]:
    """A test that passes if the values are what we read; one step apart, with nothing to look back to."""
    try:
        values = parse_values(text)
    except NotationFault:
        values = []
    cases = [
        {
            "expr": "m == m or m != m",
            "eval_time": f"{step * 6}m",
            "exp_samples": [{"labels": "m", "value": value}] if isinstance(value, float) else [],
        }
        for step, value in enumerate(values[:50])
        # promtool can expect no NaN.
        if not (isinstance(value, float) and math.isnan(value))
    ]
    return {
        "evaluation_interval": "6m",
        "tests": [{"interval": "6m", "input_series": [{"series": "m", "values": text}], "promql_expr_test": cases}],
    }
