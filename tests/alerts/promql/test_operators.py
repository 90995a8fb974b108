"""Operators and selectors: which rows come out, with which labels and values."""

from __future__ import annotations

import pytest

from tests.alerts.promql.rows import evaluated, index, tidy

NODE = index(
    'used{gpu="0", mode="a"} 5',
    'used{gpu="1", mode="b"} 7',
    'used{gpu="2"} NaN',
    'limit{gpu="0"} 10',
    'limit{gpu="1"} 0',
    'process{gpu="0", pid="1"} 2',
    'process{gpu="0", pid="2"} 3',
    'process{gpu="9", pid="3"} 4',
    'info{gpu="0", unit="x.service"} 1',
    'info{gpu="1"} 1',
)

SELECTED = {
    'used{gpu="0"}': ['used{gpu="0", mode="a"} 5'],
    'used{gpu!="0"}': ['used{gpu="1", mode="b"} 7', 'used{gpu="2"} NaN'],
    'used{mode=""}': ['used{gpu="2"} NaN'],
    'used{mode!=""}': ['used{gpu="0", mode="a"} 5', 'used{gpu="1", mode="b"} 7'],
    'used{mode=~"a|b"}': ['used{gpu="0", mode="a"} 5', 'used{gpu="1", mode="b"} 7'],
    'used{mode=~"a|"}': ['used{gpu="0", mode="a"} 5', 'used{gpu="2"} NaN'],
    'used{mode!~"a"}': ['used{gpu="1", mode="b"} 7', 'used{gpu="2"} NaN'],
    'limit{gpu=~"."}': ['limit{gpu="0"} 10', 'limit{gpu="1"} 0'],
    '{__name__=~"lim.*", gpu="1"}': ['limit{gpu="1"} 0'],
    '{__name__="limit", gpu!~"1"}': ['limit{gpu="0"} 10'],
    '{__name__="limit", __name__!="limit"}': [],
    '{__name__="", gpu="0"}': [],
    '{gpu="0", pid=""}': ['used{gpu="0", mode="a"} 5', 'limit{gpu="0"} 10', 'info{gpu="0", unit="x.service"} 1'],
    '{gpu!="", mode="b"}': ['used{gpu="1", mode="b"} 7'],
    '{unit!=""}': ['info{gpu="0", unit="x.service"} 1'],
    '{unit!~"|y"}': ['info{gpu="0", unit="x.service"} 1'],
    "nothing": [],
}


@pytest.mark.parametrize(("expression", "rows"), SELECTED.items())
def test_selectors(expression: str, rows: list[str]) -> None:
    """Matchers look at whole values, and a missing label is an empty one."""
    assert evaluated(expression, NODE) == tidy(*rows)


WITH_NUMBERS = {
    "used * 2": ['{gpu="0", mode="a"} 10', '{gpu="1", mode="b"} 14', '{gpu="2"} NaN'],
    "12 / limit": ['{gpu="0"} 1.2', '{gpu="1"} inf'],
    "-limit": ['{gpu="0"} -10', '{gpu="1"} -0'],
    "-12 % limit": ['{gpu="0"} -2', '{gpu="1"} NaN'],
    "limit ^ -1": ['{gpu="0"} 0.1', '{gpu="1"} inf'],
    # 2.42 keeps the name here, and only here.
    "limit atan2 0": ['limit{gpu="0"} 1.5707963267948966', 'limit{gpu="1"} 0'],
    "used > 5": ['used{gpu="1", mode="b"} 7'],
    "5 < used": ['used{gpu="1", mode="b"} 7'],
    "used != 5": ['used{gpu="1", mode="b"} 7', 'used{gpu="2"} NaN'],
    "used >= bool 7": ['{gpu="0", mode="a"} 0', '{gpu="1", mode="b"} 1', '{gpu="2"} 0'],
    "7 <= bool limit": ['{gpu="0"} 1', '{gpu="1"} 0'],
    "used == NaN": [],
    "limit > -Inf": ['limit{gpu="0"} 10', 'limit{gpu="1"} 0'],
    "1 > bool 0": ["{} 1"],
    "2 ^ 3 ^ 2": ["{} 512"],
    "-2 ^ 2": ["{} -4"],
    "2 ^ -1 * 4": ["{} 2"],
    "10 - 4 - 3": ["{} 3"],
    "7 % 4 * 2": ["{} 6"],
    "1 + 2 * 3 == bool 7": ["{} 1"],
    "0x1F + 010 + .5 + 1e1": ["{} 49.5"],
    "0 / 0": ["{} NaN"],
    "-1 / 0": ["{} -inf"],
    "1 / -0": ["{} -inf"],
}


@pytest.mark.parametrize(("expression", "rows"), WITH_NUMBERS.items())
def test_numbers_and_vectors(expression: str, rows: list[str]) -> None:
    """Arithmetic drops the name, a comparison keeps the row, and IEEE 754 decides about zero and NaN."""
    assert evaluated(expression, NODE) == tidy(*rows)


BETWEEN_VECTORS = {
    "limit + limit": ['{gpu="0"} 20', '{gpu="1"} 0'],
    "used / on(gpu) limit": ['{gpu="0"} 0.5', '{gpu="1"} inf'],
    "used / ignoring(mode) limit": ['{gpu="0"} 0.5', '{gpu="1"} inf'],
    "used / limit": [],
    "used < on(gpu) limit": ['{gpu="0"} 5'],
    "used < ignoring(mode) limit": ['used{gpu="0"} 5'],
    "limit > ignoring(mode) used": ['limit{gpu="0"} 10'],
    "used <= bool on(gpu) limit": ['{gpu="0"} 1', '{gpu="1"} 0'],
    "process / on(gpu) group_left used": ['{gpu="0", pid="1"} 0.4', '{gpu="0", pid="2"} 0.6'],
    "process < on(gpu) group_left used": ['process{gpu="0", pid="1"} 2', 'process{gpu="0", pid="2"} 3'],
    "used > on(gpu) group_right process": ['process{gpu="0", pid="1"} 5', 'process{gpu="0", pid="2"} 5'],
    "process * on(gpu) group_left(unit) info": [
        '{gpu="0", pid="1", unit="x.service"} 2',
        '{gpu="0", pid="2", unit="x.service"} 3',
    ],
    # A label that the one side lacks is taken away from the other.
    "used * on(gpu) group_left(mode) limit": ['{gpu="0"} 50', '{gpu="1"} 0'],
    "used > on(gpu) group_left(__name__) limit": ['limit{gpu="1", mode="b"} 7'],
    "process and on(gpu) used": ['process{gpu="0", pid="1"} 2', 'process{gpu="0", pid="2"} 3'],
    "process unless on(gpu) used": ['process{gpu="9", pid="3"} 4'],
    "limit or on(gpu) used": ['limit{gpu="0"} 10', 'limit{gpu="1"} 0', 'used{gpu="2"} NaN'],
    "limit or used": [
        'limit{gpu="0"} 10', 'limit{gpu="1"} 0',
        'used{gpu="0", mode="a"} 5', 'used{gpu="1", mode="b"} 7', 'used{gpu="2"} NaN',
    ],
    "limit and on() vector(1)": ['limit{gpu="0"} 10', 'limit{gpu="1"} 0'],
    "limit and on(__name__) limit": ['limit{gpu="0"} 10', 'limit{gpu="1"} 0'],
    "limit unless nothing": ['limit{gpu="0"} 10', 'limit{gpu="1"} 0'],
    "limit or nothing and nothing": ['limit{gpu="0"} 10', 'limit{gpu="1"} 0'],
    "limit + on() nothing": [],
}  # fmt: skip


@pytest.mark.parametrize(("expression", "rows"), BETWEEN_VECTORS.items())
def test_vectors_and_vectors(expression: str, rows: list[str]) -> None:
    """Rows that belong together are joined, and their labels are those that Prometheus gives them."""
    assert evaluated(expression, NODE) == tidy(*rows)
