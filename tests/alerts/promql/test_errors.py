"""Series that do not suit an expression: an error with Prometheus' text, never wrong rows."""

from __future__ import annotations

import pytest

from gpuagent_alerts.promql.expression import compile_expression
from gpuagent_alerts.promql.values import EvaluationError
from tests.alerts.promql.rows import index

NODE = index(
    'used{gpu="0", pid="1"} 1',
    'used{gpu="0", pid="2"} 2',
    'limit{gpu="0", pid="3"} 10',
    'limit{gpu="0", pid="4"} 20',
    'same{pid="1"} 1',
    'other{pid="1"} 2',
    'name{unit="a"} 1',
)

SAME_LABELS = "vector cannot contain metrics with the same labelset"
MANY = "multiple matches for labels: many-to-one matching must be explicit (group_left/group_right)"
NOT_UNIQUE = "multiple matches for labels: grouping labels must ensure unique matches"

ERRORS = {
    "used / on(gpu) limit": (
        'found duplicate series for the match group {gpu="0"} on the right hand-side of the operation: '
        '[{__name__="limit", gpu="0", pid="4"}, {__name__="limit", gpu="0", pid="3"}];'
        "many-to-many matching not allowed: matching labels must be unique on one side"
    ),
    "used / on(gpu) group_right() limit": (
        'found duplicate series for the match group {gpu="0"} on the left hand-side of the operation: '
        '[{__name__="used", gpu="0", pid="2"}, {__name__="used", gpu="0", pid="1"}];'
        "many-to-many matching not allowed: matching labels must be unique on one side"
    ),
    "used / ignoring(pid) limit": (
        'found duplicate series for the match group {gpu="0"} on the right hand-side of the operation: '
        '[{__name__="limit", gpu="0", pid="4"}, {__name__="limit", gpu="0", pid="3"}];'
        "many-to-many matching not allowed: matching labels must be unique on one side"
    ),
    "used * on() name": MANY,
    "used * on() group_left(pid) name": NOT_UNIQUE,
    '-{__name__=~"same|other"}': SAME_LABELS,
    '{__name__=~"same|other"} * 2': SAME_LABELS,
    '{__name__=~"same|other"} > bool 0': SAME_LABELS,
    'abs({__name__=~"same|other"})': SAME_LABELS,
    '{__name__=~"same|other"} * on(__name__, pid) {__name__=~"same|other"}': SAME_LABELS,
    "-(same or on(nothing, pid, x) other or on(__name__) other)": SAME_LABELS,
    'label_replace(used, "pid", "x", "", "")': SAME_LABELS,
    'label_join(used, "pid", "")': SAME_LABELS,
    "topk(scalar(nothing), used)": "Scalar value NaN overflows int64",
    "topk(Inf, used)": "Scalar value +Inf overflows int64",
    # Errors are errors, though the other side has nothing.
    "nothing and used / on(gpu) limit": None,
    "nothing unless used / on(gpu) limit": None,
    "clamp(used / on(gpu) limit, 1, 0)": None,
    "topk(0, used / on(gpu) limit)": None,
}


@pytest.mark.parametrize(("expression", "text"), ERRORS.items())
def test_what_does_not_match_is_an_error(expression: str, text: str | None) -> None:
    """The whole expression fails, and says which labels are to blame."""
    with pytest.raises(EvaluationError) as caught:
        compile_expression(expression).evaluate(NODE, 0)

    assert str(caught.value) == (text or str(caught.value))


@pytest.mark.parametrize(
    "expression",
    [
        "used / on(gpu) nothing",
        "nothing / on(gpu) limit",
        "used > on() name and used > 1.5",
        "(used > 1) * on() name",
        'sum by (__name__, pid) ({__name__=~"same|other"})',
        '{__name__=~"same|other"} > 0',
    ],
)
def test_what_prometheus_lets_pass_passes(expression: str) -> None:
    """A side without series asks for nothing, and rows that a comparison leaves out do not count."""
    compile_expression(expression).evaluate(NODE, 0)
