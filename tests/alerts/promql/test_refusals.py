"""Everything that is refused, and the words in which it is."""

from __future__ import annotations

import pytest

from gpuagent_alerts.promql.expression import compile_expression
from gpuagent_alerts.promql.values import ExpressionError

HISTORY = {
    "rate(used[5m])": (
        "1:10: rate(...) needs history, which the agent does not have: a range vector or a subquery is made of past "
        "values; export a *_per_second series or evaluate this rule in Prometheus"
    ),
    "max_over_time((used > 1)[5m:1m])": "max_over_time(...) needs history",
    "used[5m]": "1:5: this needs history",
    "used offset 5m": (
        "1:6: offset needs history, which the agent does not have; "
        "write seconds as a number, or evaluate this rule in Prometheus"
    ),
    "used OFFSET -5m": "OFFSET needs history",
    "used > 5m": "1:8: 5m needs history",
    "used @ 1600000000": "1:6: the @ modifier needs history",
    "used @ end()": "the @ modifier needs history",
}

NEWER = {
    '{"used.bytes"}': "1:2: a name is not quoted: Prometheus 2.42 takes plain names only",
    '{"used", gpu="0"}': "a name is not quoted",
    '{gpu="0" or gpu="1"}': "1:10: matchers are separated by commas, and all of them have to match",
    'sum by ("gpu") (used)': "1:9: a label is not quoted",
    'used + on("gpu") limit': "a label is not quoted",
    "limitk(1, used)": "limitk(...) is not available in the agent, and Prometheus 2.42 does not know it",
    "limit_ratio(0.5, used)": "limit_ratio(...) is not available in the agent",
    "used + fill(0) limit": "an operator or a comma is missing before limit",
    "used + on(gpu) fill_left(0) (limit)": "fill is not available in the agent",
    "info(used)": "info(...) is not available in the agent",
    'sort_by_label(used, "gpu")': "sort_by_label(...) is not available in the agent",
    "step()": "step(...) is not available in the agent",
    "1_000": "1:1: '1_000' is no number: write it in decimal digits",
    "0b11": "is no number",
    "0o17": "is no number",
    "0x1.8": "1:1: 0x1.8 is no number",
    "1e": "1e is no number",
    "1e999": "1e999 is too large for a number",
    "0xFFFFFFFFFFFFFFFFFF": "is too large: write it in decimal digits",
    'used{gpu=~"(?<name>a)"}': "has (?<, which Prometheus does not know",
    'used{gpu=~"\\\\C"}': "has \\C, which Prometheus does not know",
    'used{gpu=~"a)|(b"}': "the regular expression 'a)|(b' is wrong: unexpected ): a)|(b",
    'used{gpu=~"(?=a)"}': "is wrong: invalid perl operator: (?=",
    'used{gpu=~"x{1001}"}': "is wrong: invalid repetition size: {1001}",
    'used{gpu="\\xff"}': "1:10: the bytes of the string",
    'used{gpu="\\ud800"}': "\\u is no escape in a string",
    'used{gpu="\\q"}': (
        "1:10: \\q is no escape in a string: write \\\\ for a backslash, or put the string in backquotes"
    ),
    "used{gpu=\"\\'\"}": "\\' is no escape in a string",
    'used{gpu="\ufffd"}': "a string has U+FFFD",
    "absent(+used)": "1:8: the plus sign before this operand does nothing: leave it out",
}  # fmt: skip

TYPES = {
    "1 == 1": "comparisons between scalars must use BOOL modifier",
    "used + bool 1": "bool modifier can only be used on comparison operators",
    "used and 1": "set operator 'and' not allowed in binary scalar expression",
    "used and on(gpu) group_left() limit": "no grouping allowed for 'and' operation",
    "1 + on(gpu) used": "vector matching only allowed between",
    "used + on(gpu) group_left(gpu) limit": "must not occur in ON and GROUP clause at once",
    '"text"': "a rule needs an instant vector or a scalar, and this expression is a string",
    '-"text"': "unary expression only allowed on expressions of type scalar or vector, got: string",
    'used + "text"': "binary expression must contain only scalar and instant vector types",
    "abs(1)": "expected type vector in call to function 'abs', got scalar",
    "rate(used)": "expected type matrix in call to function 'rate', got vector",
    "sum(1)": "expected type vector in aggregation expression, got scalar",
    "sum()": "no arguments for aggregate expression 'sum' provided",
    "sum(used, used)": "wrong number of arguments for aggregate expression provided, expected 1, got 2",
    "topk(used, used)": "expected type scalar in aggregation expression, got vector",
    "topk(used)": "wrong number of arguments for aggregate expression provided, expected 2, got 1",
    "time(1)": "expected 0 argument(s) in call to 'time', got 1",
    "abs(used,)": "trailing commas not allowed in function call args",
    'count_values("a-b", used)': "invalid label name 'a-b' in count_values",
    'count_values("__name__", used)': "invalid label name '__name__' in count_values",
    'label_replace(used, "a-b", "x", "gpu", "y")': "invalid destination label name in label_replace(): 'a-b'",
    'label_replace(used, "a", "x", "gpu", "(")': "the regular expression '(' is wrong: missing ): (",
    'label_join(used, "a", "-", "b-c")': "invalid source label name in label_join(): 'b-c'",
    'label_join(used, "", "-", "b")': "invalid destination label name in label_join(): ''",
    "{}": "vector selector must contain at least one non-empty matcher",
    '{gpu=~".*"}': "a selector needs a metric's name, or a matcher that does not match an empty label",
    '{gpu=""}': "a selector needs a metric's name",
    '{gpu!="0"}': "a selector needs a metric's name",
    'used{__name__="limit"}': "1:6: the metric's name is set twice",
    "unknown(used)": "unknown function with name 'unknown'",
    "ABS(used)": "unknown function with name 'ABS'",
    "sin(used)": "sin(...) is not available in the agent: evaluate this rule in Prometheus, or use abs, absent, ceil",
    "pi()": "pi(...) is not available in the agent: write 3.141592653589793",
    "timestamp(used)": "timestamp(...) is not available in the agent: the agent's series are all of the same moment",
    "histogram_quantile(0.9, used)": "histogram_quantile(...) is not available in the agent: the agent has no histo",
}

WORDS = {
    "": "the expression is empty",
    " # only a comment": "the expression is empty",
    "used >": "1:6: nothing follows >",
    "used\n  >= > 1": "this is no PromQL",
    "used limit": "1:6: an operator or a comma is missing before limit",
    "used 1": "an operator or a comma is missing before 1",
    "used = 1": "1:6: = stands inside braces only: values are compared with ==",
    "used =~ 1": "1:6: =~ stands between a label and a string inside braces",
    "(used": "a parenthesis ( is not closed",
    "used)": "1:5: this parenthesis ) closes none",
    "used{": "1:6: a brace { is not closed",
    'used{gpu="0}': "1:10: this string is not closed on its line",
    'used{gpu=="0"}': "unexpected '=' in label matching, expected string",
    "used{0}": "1:6: '0' is no character of PromQL inside braces",
    "used ! limit": "1:6: '!' is no character of PromQL",
    "used\n> 1\n; limit": "3:1: ';' is no character of PromQL",
    "used > 1\xa0": "is no character of PromQL",
    "sum(used) by": "this is no PromQL",
    "used == on gpu": "this is no PromQL: look at its operators, parentheses and label lists",
    'used{gpu="\ud800"}': "the expression has half of a character",
}  # fmt: skip


@pytest.mark.parametrize(("expression", "words"), [*HISTORY.items(), *NEWER.items(), *TYPES.items(), *WORDS.items()])
def test_what_is_refused_is_told_in_words(expression: str, words: str) -> None:
    """The construct, where it stands, and the way out."""
    with pytest.raises(ExpressionError) as caught:
        compile_expression(expression)

    assert words in str(caught.value)


@pytest.mark.parametrize(
    "expression",
    [
        "offset > 1",
        "sum by (offset, on, bool, and) (used)",
        "SUM(used) BY (gpu) > BOOL 1",
        'used unless {__name__="limit"}',
        "used == +Inf or used == -Inf or used == nan",
        "used{gpu=~`[0-9]\\d`, unit='x',}",
        'a:b{c="d"} + :e',
        "1 + on() used",
        "used * ON (gpu) Group_Left (unit) limit",
        'used{unit="\\u00e9\\x41\\101\\n\\"é"}',
        'used # comment "\n> 1',
        "start + end",
    ],
)  # fmt: skip
def test_what_looks_odd_and_is_promql_is_taken(expression: str) -> None:
    """Keywords as names, both cases, trailing commas, comments: as Prometheus takes them."""
    compile_expression(expression)
