"""Matchers are read as Alertmanager reads them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.core.matchers import Matcher, MatchOperator, is_label_name, parse_matcher
from tests.tables import table


@table(
    "text, matcher",
    [
        ('severity="critical"', ("severity", "=", "critical")),
        ('unit!=""', ("unit", "!=", "")),
        ('gpu=~"0|1"', ("gpu", "=~", "0|1")),
        ('user!~"svc-.*"', ("user", "!~", "svc-.*")),
        (' a = "b" ', ("a", "=", "b")),
        ("a=b c", ("a", "=", "b c")),
        ("a=", ("a", "=", "")),
        (r'a="x\"y\\z\n"', ("a", "=", 'x"y\\z\n')),
        (r'a=~"\d+"', ("a", "=~", r"\d+")),
        ('a=~"x=y"', ("a", "=~", "x=y")),
        ('a="é"', ("a", "=", "é")),
    ],
)
def test_matchers(text: str, matcher: tuple[str, str, str]) -> None:
    """Names, the four operators, quotes, escapes and bare values."""
    name, operator, value = matcher
    assert parse_matcher(text) == Matcher(name, MatchOperator(operator), value)


@table(
    "text, words",
    [
        ("", "no matcher"),
        ("severity", "no matcher"),
        ('="x"', "no matcher"),
        ('a-b="x"', "no matcher"),
        ('1a="x"', "no matcher"),
        ('é="x"', "no matcher"),
        ('a=="b"', "no operator"),
        ('a="b', "quotes"),
        ('a="b" c="d"', "quotes"),
        ('{a="b"}', "without braces"),
    ],
)
def test_no_matchers(text: str, words: str) -> None:
    """What is no matcher is refused with the form that is."""
    with pytest.raises(ValueError, match=words):
        parse_matcher(text)


_NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]*", fullmatch=True)


@given(st.builds(Matcher, _NAMES.filter(is_label_name), st.sampled_from(MatchOperator), st.text()))
def test_matchers_come_back(matcher: Matcher) -> None:
    """A matcher that is written is read back as the same, whatever is in its value."""
    assert parse_matcher(str(matcher)) == matcher


@given(st.text())
def test_nothing_but_a_value_error(text: str) -> None:
    """Any text is a matcher or a ValueError."""
    with contextlib.suppress(ValueError):
        assert is_label_name(parse_matcher(text).name)
