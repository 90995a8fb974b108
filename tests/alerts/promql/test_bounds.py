"""Text from outside is bounded before anything else: in length, in depth, and in the time it takes."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuagent_alerts.promql.expression import compile_expression
from gpuagent_alerts.promql.series import SeriesIndex
from gpuagent_alerts.promql.values import ExpressionError
from tests.alerts.promql.spoil import WORDS

DEEP = "the expression is nested more than 64 deep (parentheses and operators count): split it with recording rules"


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 500 + "a" + ")" * 500,
        "abs(" * 500 + "a" + ")" * 500,
        "-" * 500 + "a",
        "a" + " + a" * 500,
        "a" + " or a" * 500,
        "(" * 33 + "a" + " + a" * 33 + ")" * 33,
        "(" * 33 + "a" + ")" * 33 + " + a" * 33,
        "(" * 32 + "a" + ")" * 32 + " + " + "-(" * 32 + "a" + ")" * 32,
        "abs(" * 2000,
    ],
)
def test_deep_nesting_is_refused_before_it_is_parsed(expression: str) -> None:
    """Parentheses, calls, signs and chains of operators: the parser's stack would overflow."""
    with pytest.raises(ExpressionError) as caught:
        compile_expression(expression)

    assert str(caught.value) == DEEP


@pytest.mark.parametrize(
    "expression",
    [
        "(" * 64 + "a" + ")" * 64,
        "a" + " or a" * 64,
        " or ".join(["((a + 1))"] * 60),
        '{a="((((", b="' + "-" * 900 + '"}',
    ],
)
def test_what_people_write_is_not_deep(expression: str) -> None:
    """Sixty alternatives are fine, and strings do not count."""
    compile_expression(expression)


@pytest.mark.parametrize(
    ("expression", "length"),
    [("a" * 8193, 8193), ("a # " + "é" * 4095, 8194), ("(" * 100_000, 100_000), ('a{b="' + "\\" * 200_000, 200_005)],
)
def test_long_text_is_refused(expression: str, length: int) -> None:
    """More than 8 KiB is no rule that a person wrote."""
    with pytest.raises(ExpressionError) as caught:
        compile_expression(expression)

    assert str(caught.value) == (f"the expression has {length} bytes and may have 8192: split it with recording rules")


def test_the_longest_text_is_read() -> None:
    """8 KiB exactly."""
    compile_expression("a #" + "x" * 8189)


@pytest.mark.timeout(4)
@pytest.mark.parametrize(
    "expression",
    ["1" * 8000 + "a", "1." * 4000, '"' * 8001, 'a{b=~"' + "[" * 8000 + '"}', 'a{b=~"' + "[[:" * 2000 + '"}'],
)
def test_long_text_takes_no_long_time(expression: str) -> None:
    """What tempts an engine for regular expressions to go back: our own patterns go forward only."""
    with pytest.raises(ExpressionError):
        compile_expression(expression)


def test_a_pattern_takes_linear_time() -> None:
    """The classic that makes backtracking engines hang: RE2 answers at once."""
    matches = compile_expression('a{b=~"(a*)*(a|a)*(x+x+)+y"}')

    assert matches.rows(SeriesIndex([("a", {"b": "a" * 200 + "x" * 20_000}, 1.0)]), 0) == ()


_ODD = ["\ud800", "\x00", "\n", "\\", '"', "#", '"\\', "\N{NO-BREAK SPACE}", "label_replace(a, "]
_PARTS = st.sampled_from([*WORDS, *_ODD])


@settings(max_examples=400)
@given(st.text(max_size=60) | st.lists(_PARTS, max_size=25).map(" ".join) | st.lists(_PARTS, max_size=25).map("".join))
def test_any_text_compiles_or_is_refused(text: str) -> None:
    """Nothing but ExpressionError comes of text, whatever it is."""
    with suppress(ExpressionError):
        compile_expression(text)


@settings(max_examples=100)
@given(st.text(max_size=20), st.sampled_from(["=", "=~", "!~"]), st.sampled_from("\"'`"))
def test_any_string_compiles_or_is_refused(text: str, operator: str, quote: str) -> None:
    """Matchers take what people put between quotes: escapes, broken patterns, other scripts."""
    with suppress(ExpressionError):
        compile_expression(f"a{{b{operator}{quote}{text}{quote}}}")


def test_the_interpreter_survives_what_would_overflow_its_stack() -> None:
    """A stack overflow in the parser is no exception: it would end the agent."""
    program = (
        "from gpuagent_alerts.promql.expression import compile_expression\n"
        "from gpuagent_alerts.promql.values import ExpressionError\n"
        "for text in ('(' * 4000 + 'a' + ')' * 4000, '-' * 8000 + 'a', 'a' + '+a' * 4000, 'a' + '^a' * 4000):\n"
        "    try:\n"
        "        compile_expression(text)\n"
        "    except ExpressionError:\n"
        "        print('refused')\n"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)

    assert done.stdout.split() == ["refused"] * 4
