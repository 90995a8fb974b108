"""Aggregations and functions."""

from __future__ import annotations

import math

import pytest

from gpuagent_alerts.promql.expression import compile_expression
from tests.alerts.promql.rows import evaluated, index, tidy

NODE = index(
    'used{gpu="0", pid="1"} 1',
    'used{gpu="0", pid="2"} 4',
    'used{gpu="1", pid="3"} NaN',
    'used{gpu="1", pid="4"} -2.5',
    'one{gpu="0"} 1000',
    'tied{pid="1"} 2',
    'tied{pid="2"} 2',
    'tied{pid="3"} 2',
    'tied{pid="4"} 1',
    'rising{pid="1"} 1',
    'rising{pid="2"} 2',
    'rising{pid="3"} 2',
    'rising{pid="4"} 3',
    'huge{pid="1"} inf',
    'huge{pid="2"} 5',
)

AGGREGATED = {
    'sum(used{gpu="0"})': ["{} 5"],
    "sum by (gpu) (used)": ['{gpu="0"} 5', '{gpu="1"} NaN'],
    "sum without (pid) (used)": ['{gpu="0"} 5', '{gpu="1"} NaN'],
    "min by (gpu) (used)": ['{gpu="0"} 1', '{gpu="1"} -2.5'],
    "max(used) by (gpu)": ['{gpu="0"} 4', '{gpu="1"} -2.5'],
    "count by (gpu, nothing) (used)": ['{gpu="0"} 2', '{gpu="1"} 2'],
    'count by (__name__) ({gpu="0"})': ["used{} 2", "one{} 1"],
    "group by (gpu) (used)": ['{gpu="0"} 1', '{gpu="1"} 1'],
    "avg by (gpu) (used)": ['{gpu="0"} 2.5', '{gpu="1"} NaN'],
    "avg(huge)": ["{} inf"],
    'stdvar by (gpu) (used{gpu="0"})': ['{gpu="0"} 2.25'],
    'stddev(used{gpu="0"})': ["{} 1.5"],
    "sum(nothing)": [],
    "count(nothing) or vector(0)": ["{} 0"],
    'quantile(0.5, used{gpu="0"})': ["{} 2.5"],
    "quantile(0, used)": ["{} NaN"],
    "quantile(1.5, used)": ["{} inf"],
    "quantile(-1, used)": ["{} -inf"],
    "topk(1, used)": ['used{gpu="0", pid="2"} 4'],
    "topk(3, used)": ['used{gpu="0", pid="2"} 4', 'used{gpu="0", pid="1"} 1', 'used{gpu="1", pid="4"} -2.5'],
    "topk by (gpu) (1, used)": ['used{gpu="0", pid="2"} 4', 'used{gpu="1", pid="4"} -2.5'],
    "bottomk(2, used)": ['used{gpu="1", pid="4"} -2.5', 'used{gpu="0", pid="1"} 1'],
    'bottomk(9, used{gpu="1"})': ['used{gpu="1", pid="4"} -2.5', 'used{gpu="1", pid="3"} NaN'],
    "topk(0, used)": [],
    # Of equal values the first stay, unless a better one comes: then Go's heap gives up the one on top.
    "topk(2, tied)": ['tied{pid="1"} 2', 'tied{pid="2"} 2'],
    "topk(2, rising)": ['rising{pid="4"} 3', 'rising{pid="3"} 2'],
    "bottomk(2, -rising)": ['{pid="4"} -3', '{pid="3"} -2'],
    'count_values("value", used)': ['{value="1"} 1', '{value="4"} 1', '{value="NaN"} 1', '{value="-2.5"} 1'],
    'count_values by (gpu) ("value", one * 1e18)': ['{gpu="0", value="1000000000000000000000"} 1'],
    'count_values without (pid, gpu) ("value", huge)': ['{value="+Inf"} 1', '{value="5"} 1'],
}  # fmt: skip


@pytest.mark.parametrize(("expression", "rows"), AGGREGATED.items())
def test_aggregations(expression: str, rows: list[str]) -> None:
    """Groups, their labels and their values, with NaN where Prometheus has it."""
    assert evaluated(expression, NODE) == tidy(*rows)


COMPUTED = {
    'abs(used{pid="4"})': ['{gpu="1", pid="4"} 2.5'],
    'ceil(used{pid="4"})': ['{gpu="1", pid="4"} -2'],
    'floor(used{pid="4"})': ['{gpu="1", pid="4"} -3'],
    "1 / ceil(vector(-0.5))": ["{} -inf"],
    "floor(vector(Inf))": ["{} inf"],
    "sgn(used)": ['{gpu="0", pid="1"} 1', '{gpu="0", pid="2"} 1', '{gpu="1", pid="3"} NaN', '{gpu="1", pid="4"} -1'],
    "round(vector(2.5))": ["{} 3"],
    "round(vector(-2.5))": ["{} -2"],
    "round(vector(7), 5)": ["{} 5"],
    "round(vector(7), 0)": ["{} NaN"],
    'clamp(used{gpu="0"}, 2, 3)': ['{gpu="0", pid="1"} 2', '{gpu="0", pid="2"} 3'],
    "clamp(used, 3, 2)": [],
    "clamp_min(vector(NaN), 1)": ["{} NaN"],
    "clamp_min(vector(NaN), Inf)": ["{} inf"],
    "clamp_max(vector(5), 1)": ["{} 1"],
    "sqrt(vector(-1))": ["{} NaN"],
    "exp(vector(1000))": ["{} inf"],
    "ln(vector(0))": ["{} -inf"],
    "log2(vector(8))": ["{} 3"],
    "scalar(one)": ["{} 1000"],
    "scalar(used)": ["{} NaN"],
    "vector(7)": ["{} 7"],
    "time()": ["{} 1677715200.5"],
    'sort(used{gpu="0"})': ['used{gpu="0", pid="1"} 1', 'used{gpu="0", pid="2"} 4'],
    'sort_desc(used{gpu="1"})': ['used{gpu="1", pid="4"} -2.5', 'used{gpu="1", pid="3"} NaN'],
    "hour()": ["{} 0"],
    "year(vector(951782400))": ["{} 2000"],
    "day_of_month(vector(951782400))": ["{} 29"],
    "day_of_week(vector(951782400))": ["{} 2"],
    "day_of_year(vector(951782400))": ["{} 60"],
    "days_in_month(vector(951782400))": ["{} 29"],
    "month(vector(-1))": ["{} 12"],
    "minute(vector(59))": ["{} 0"],
    'hour(used{pid="1"})': ['{gpu="0", pid="1"} 0'],
    # What an integer cannot hold becomes the lowest one, 292 billion years away.
    "year(vector(NaN)) == bool year(vector(1e300))": ["{} 1"],
}  # fmt: skip


@pytest.mark.parametrize(("expression", "rows"), COMPUTED.items())
def test_functions(expression: str, rows: list[str]) -> None:
    """Values of functions; those of one vector drop the metric's name."""
    assert evaluated(expression, NODE, 1_677_715_200.5) == tidy(*rows)


ABSENT = {
    "absent(used)": [],
    "absent(nothing)": ["{} 1"],
    'absent(((nothing{gpu="0"})))': ['{gpu="0"} 1'],
    'absent(nothing{gpu="0", pid=~"1", unit!="x"})': ['{gpu="0"} 1'],
    'absent(nothing{gpu="0", gpu="1", pid="2"})': ['{pid="2"} 1'],
    'absent(nothing{gpu=""})': ["{} 1"],
    'absent({__name__="nothing", gpu="0"})': ['{gpu="0"} 1'],
    'absent(sum(nothing{gpu="0"}))': ["{} 1"],
    'absent(-nothing{gpu="0"})': ["{} 1"],
}  # fmt: skip


@pytest.mark.parametrize(("expression", "rows"), ABSENT.items())
def test_absent(expression: str, rows: list[str]) -> None:
    """The row has the labels that the selector asks for by equality."""
    assert evaluated(expression, NODE) == tidy(*rows)


RELABELLED = {
    'label_replace(one, "card", "GPU $1", "gpu", "(.)")': ['one{gpu="0", card="GPU 0"} 1000'],
    'label_replace(one, "card", "$card-${1}x$1x$$", "gpu", "(.*)")': ['one{gpu="0", card="-0x$"} 1000'],
    'label_replace(one, "card", "$digit", "gpu", "(?P<digit>[0-9])")': ['one{gpu="0", card="0"} 1000'],
    'label_replace(one, "card", "x", "gpu", "1")': ['one{gpu="0"} 1000'],
    'label_replace(one, "card", "x", "gpu", "")': ['one{gpu="0"} 1000'],
    'label_replace(one, "gpu", "", "gpu", ".*")': ["one{} 1000"],
    'label_replace(one, "__name__", "two", "", "")': ['two{gpu="0"} 1000'],
    'label_replace(one, "card", "$1", "__name__", "o(.*)")': ['one{gpu="0", card="ne"} 1000'],
    'label_replace(one, "card", "$", "gpu", "0")': ['one{gpu="0", card="$"} 1000'],
    'label_join(one, "card", "-", "gpu", "nothing", "gpu")': ['one{gpu="0", card="0--0"} 1000'],
    'label_join(one, "gpu", "-")': ["one{} 1000"],
    'label_join(one, "__name__", "_", "__name__", "__name__")': ['one_one{gpu="0"} 1000'],
}


@pytest.mark.parametrize(("expression", "rows"), RELABELLED.items())
def test_relabelling(expression: str, rows: list[str]) -> None:
    """Replacements are expanded by Go's rules; an empty value takes the label away."""
    assert evaluated(expression, NODE) == tidy(*rows)


def test_a_logarithm_is_rounded_as_in_go() -> None:
    """Go's log10(1000) is a little below 3: a rule that compares with 3 is false there, so it is here."""
    rows = compile_expression("log10(one)").rows(NODE, 0)

    assert rows[0].value == 2.9999999999999996


def test_powers_at_the_edges() -> None:
    """Where C's library reports an error, Go has an infinity with the right sign, or NaN."""
    values = [
        compile_expression(text).rows(NODE, 0)[0].value
        for text in (
            "10 ^ 400",
            "(-10) ^ 401",
            "(-10) ^ 400",
            "0 ^ -1",
            "-0 ^ -1",
            "(-0) ^ -1",
            "0 ^ -2",
            "(-8) ^ (1/3)",
        )
    ]

    assert values[:7] == [math.inf, -math.inf, math.inf, math.inf, -math.inf, -math.inf, math.inf]
    assert math.isnan(values[7])
