"""The series notation of promtool's unit tests: `m{a="b"}`, and values such as `1+1x5 _ stale NaN`.

The grammar is that of Prometheus 2.42 (`promql/parser`, series descriptions), with its oddities: a value may have
one repetition, `NaN` and `stale` none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from gpuagent_alerts.promql.lexer import read_string
from gpuagent_alerts.promql.values import ExpressionError

STALE = object()
"""A marker: the series ends here."""
MAX_VALUES = 100_000
"""Of one series."""

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
    """Labels of `name{label="value"}`, the name as `__name__`. Raises NotationFault."""
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
    """One entry for each step: a number, STALE, or None where there is no sample. Raises NotationFault."""
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
