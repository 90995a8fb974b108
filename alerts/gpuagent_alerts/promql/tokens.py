"""The words of an expression, cut as Prometheus 2.42 cuts them (its promql/parser/lex.go).

promql-parser cuts by the rules of later versions: it takes names in quotes, `or` between matchers and more. So the text
is cut here first, and what 2.42 has no word for is refused with its place.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

from gpuagent_alerts.promql.errors import ExpressionError


class Kind(StrEnum):
    """Of a word."""

    NUMBER = "number"
    DURATION = "duration"
    STRING = "string"
    NAME = "name"
    SYMBOL = "symbol"


class Token(NamedTuple):
    """A word and where it begins."""

    kind: Kind
    text: str
    offset: int
    in_braces: bool = False


# Possessive (`++`, `*+`), so that thousands of digits that end in a letter are gone through once.
_DECIMAL = r"(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]*+)?"
_NUMBER = rf"(?:0[xX][0-9a-fA-F]*+(?:\.[0-9a-fA-F]*+)?|{_DECIMAL})(?![A-Za-z0-9_])"
_DURATION = r"[0-9]++(?:\.[0-9]*+)?(?:ms|[smhdwy])(?:[0-9]++(?:ms|[smhdw]))*(?![A-Za-z0-9_])"
_STRING = r""""(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`[^`]*`"""
_SPECIAL_NUMBERS = frozenset(["inf", "nan"])
_BLANK = r"[ \t\r\n]+|\#[^\r\n]*"

_OUTSIDE = re.compile(
    rf"(?P<blank>{_BLANK})|(?P<number>{_NUMBER})|(?P<duration>{_DURATION})|(?P<string>{_STRING})"
    r"|(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)|(?P<symbol>==|!=|<=|>=|=(?!~)|[<>+\-*/%^(){}\[\],@])",
    re.DOTALL,
)
_IN_BRACES = re.compile(
    rf"(?P<blank>{_BLANK})|(?P<string>{_STRING})|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<symbol>=~|!~|!=|=|,|\}})",
    re.DOTALL,
)


def place(text: str, offset: int) -> str:
    """Line and column, as Prometheus counts them."""
    return f"{text.count(chr(10), 0, offset) + 1}:{offset - text.rfind(chr(10), 0, offset)}"


def tokenize(text: str) -> list[Token]:
    """Cut a text into words; blanks and comments are left out.

    Raises ExpressionError for what is no word of PromQL.
    """
    tokens: list[Token] = []
    in_braces = False
    offset = 0
    while offset < len(text):
        match = (_IN_BRACES if in_braces else _OUTSIDE).match(text, offset)
        if match is None or match.lastgroup is None:
            raise ExpressionError(f"{place(text, offset)}: {_no_word(text, offset, in_braces=in_braces)}")
        if match.lastgroup != "blank":
            special = not in_braces and match[0].lower() in _SPECIAL_NUMBERS
            kind = Kind.NUMBER if special else Kind(match.lastgroup)
            tokens.append(Token(kind, match[0], offset, in_braces))
            if match[0] in {"{", "}"}:
                in_braces = match[0] == "{"
        offset = match.end()
    if in_braces:
        raise ExpressionError(f"{place(text, offset)}: a brace {{ is not closed")
    return tokens


def _no_word(text: str, offset: int, *, in_braces: bool) -> str:
    rest = text[offset:]
    if rest[0] in "\"'`":
        return "this string is not closed" if rest[0] == "`" else "this string is not closed on its line"
    if rest[0].isascii() and rest[0].isdigit() and not in_braces:
        shown = re.match(r"[\w.]+", rest)
        return f"{shown[0][:20] if shown else rest[0]!r} is no number: write it in decimal digits, such as 1.5e9"
    if rest.startswith(("=~", "!~")):
        return f'{rest[:2]} stands between a label and a string inside braces, such as {{gpu=~"0|1"}}'
    where = " inside braces" if in_braces else ""
    return f"{rest[0]!r} is no character of PromQL{where}"
