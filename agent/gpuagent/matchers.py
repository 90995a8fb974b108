"""Label matchers as Alertmanager writes them: `severity="critical"`, `unit!=""`, `gpu=~"0|1"`.

Their form is read here, and what they look for: https://prometheus.io/docs/alerting/latest/configuration/#matcher.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from gpuagent.regexes import RegexError, compile_regex

MATCHER_HELP = 'name="value", name!="value", name=~"regex" or name!~"regex"'

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
_HEAD = re.compile(r"([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)", re.ASCII)
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_PARTS = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*")+', re.DOTALL)
_SECOND = re.compile(r"[\s,][a-zA-Z_][a-zA-Z0-9_]*\s*(?:=|!)")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_UNESCAPED = {"n": "\n", '"': '"', "\\": "\\"}


class MatchOperator(StrEnum):
    """How a label's value is compared."""

    EQUAL = "="
    NOT_EQUAL = "!="
    MATCHES = "=~"
    """The whole value matches the regular expression."""
    MATCHES_NOT = "!~"

    @property
    def is_pattern(self) -> bool:
        """Whether it takes a regular expression."""
        return self in {MatchOperator.MATCHES, MatchOperator.MATCHES_NOT}


class Matcher(NamedTuple):
    """One condition on one label. A label that is missing has the value ""."""

    name: str
    op: MatchOperator
    value: str

    def __str__(self) -> str:
        value = self.value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'{self.name}{self.op}"{value}"'


def parse_matcher(text: str) -> Matcher:
    r"""Read one matcher. The quotes may be left out; inside them `\"`, `\\` and `\n` are escapes.

    Raises ValueError, in words for the person who wrote it.
    """
    text = text.strip()
    if text.startswith("{"):
        raise ValueError("a matcher stands alone: write one per list item, without braces")
    head = _HEAD.match(text)
    if head is None:
        raise ValueError(f"this is no matcher: write {MATCHER_HELP}")
    return Matcher(head[1], MatchOperator(head[2]), _unquote(text[head.end() :].strip()))


def parse_matchers(text: str) -> list[Matcher]:
    """Read one matcher, or several between braces, as `amtool` takes them: `{alertname="GpuLost", gpu="0"}`.

    Raises ValueError, in words for the person who wrote it.
    """
    inner = text.strip()
    if not inner.startswith("{"):
        return [parse_matcher(text)]
    if not inner.endswith("}"):
        raise ValueError("the brace of these matchers is not closed")
    parts = _PARTS.findall(inner[1:-1])
    return [parse_matcher(part) for part in parts if part.strip()]


def _unquote(value: str) -> str:
    quoted = _QUOTED.fullmatch(value)
    if quoted is not None:
        # What is no escape stays as it is, as in Alertmanager: regular expressions are full of it.
        return _ESCAPE.sub(lambda escape: _UNESCAPED.get(escape[1], escape[0]), quoted[1])
    if '"' in value:
        raise ValueError(f"the quotes of this matcher do not fit: write {MATCHER_HELP}")
    if _SECOND.search(value):
        raise ValueError("these are several matchers in one word: write each as a word of its own, or quote the value")
    return value


def compile_pattern(matcher: Matcher) -> Callable[[str], object]:
    """By RE2: from a text to its match as a whole, or None. Raises ValueError for what RE2 does not take."""
    try:
        return compile_regex(matcher.value).fullmatch
    except RegexError as error:
        raise ValueError(f"{matcher}: not a regular expression as RE2 has them: {error}") from None


def is_label_name(text: str) -> bool:
    """Whether Prometheus takes it as the name of a label."""
    return _LABEL.fullmatch(text) is not None
