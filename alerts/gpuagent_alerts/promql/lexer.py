"""The words of an expression, cut and read as Prometheus 2.42 does (promql/parser/lex.go), and how many there may be.

The text is cut here before promql-parser gets it, as its tree cannot tell:

- where anything stands: its nodes have no positions, and faults of the agent do;
- `absent(+x)` from `absent(x)`, which are not the same: it leaves a plus sign out;
- `5m` from `300`: it reads a duration as a number, as later versions of Prometheus do;
- `{"a"}` from `a`, and `sum by ("a")` from `sum by (a)`, of which 2.42 knows the latter alone;
- `1e999`, which Go refuses, from an infinity; escapes and U+FFFD in strings that Go reads otherwise;
- patterns that RE2 takes and the parser's engine does not, such as `[[a]` and a `Q..E` quotation: it compiles them.

It also overflows the stack on deep nesting, so length and depth are bounded here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from gpuagent_alerts.promql.values import ExpressionError


class Kind(StrEnum):
    """Type of a token."""

    NUMBER = "number"
    DURATION = "duration"
    STRING = "string"
    NAME = "name"
    SYMBOL = "symbol"


class Token(NamedTuple):
    """Token, and where it begins in the expression."""

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
    """Return line and column, as Prometheus counts them."""
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


MAX_BYTES = 8 * 1024
MAX_DEPTH = 64

_OPERATORS = frozenset(["+", "-", "*", "/", "%", "^", "==", "!=", "<", "<=", ">", ">="])
_OPERATOR_WORDS = frozenset(["and", "or", "unless", "atan2"])


def check_length(text: str) -> None:
    """Raise ExpressionError for a text that is too long, or that is no Unicode."""
    try:
        # A character has one byte at least: what is much too long is not even encoded.
        length = len(text) if len(text) > MAX_BYTES else len(text.encode())
    except UnicodeEncodeError:
        raise ExpressionError("the expression has half of a character (a lone surrogate)") from None
    if length > MAX_BYTES:
        raise ExpressionError(
            f"the expression has {length} bytes and may have {MAX_BYTES}: split it with recording rules"
        )


def check_depth(tokens: Iterable[Token]) -> None:
    """Raise ExpressionError where the tree could be deeper than MAX_DEPTH.

    Each operator on one level of parentheses may add one to the depth, and so does each pair of parentheses.
    """
    # Per open parenthesis: the operators since it, and how deep its insides went where they are closed again.
    levels = [(0, 0)]
    open_operators = 0
    for token in tokens:
        if token.in_braces or token.kind in {Kind.STRING, Kind.NUMBER, Kind.DURATION}:
            continue
        operators, inside = levels[-1]
        if token.text == "(":
            levels.append((0, 0))
        elif token.text == ")" and len(levels) > 1:
            levels.pop()
            open_operators -= operators
            outer_operators, outer_inside = levels[-1]
            levels[-1] = (outer_operators, max(outer_inside, operators + inside + 1))
        elif token.text in _OPERATORS or token.text.lower() in _OPERATOR_WORDS:
            levels[-1] = (operators + 1, inside)
            open_operators += 1
        if open_operators + levels[-1][1] + len(levels) - 1 > MAX_DEPTH:
            raise ExpressionError(
                f"the expression is nested more than {MAX_DEPTH} deep (parentheses and operators count): "
                "split it with recording rules"
            )


_OCTAL = re.compile(r"0[0-7]+")
_PLAIN_DECIMAL = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_HEXADECIMAL = re.compile(r"0[xX][0-9a-fA-F]+")
_MAX_INTEGER = 2**63 - 1

_ESCAPE = re.compile(
    r"\\(?:(?P<simple>[abfnrtv\\\"'])|(?P<octal>[0-3][0-7]{2})|x(?P<byte>[0-9a-fA-F]{2})"
    r"|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8})|)",
    re.DOTALL,
)
_SIMPLE = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def read_number(text: str) -> float:
    """Read a number as Go does: `010` is eight, `0x10` sixteen; `1e` and `1e999` are refused.

    Raises ExpressionError.
    """
    if text.lower() in {"inf", "nan"}:
        return float(text)
    if _HEXADECIMAL.fullmatch(text):
        base, digits = 16, text[2:]
    elif _OCTAL.fullmatch(text):
        base, digits = 8, text
    elif _PLAIN_DECIMAL.fullmatch(text):
        value = float(text)
        if value == float("inf"):
            raise ExpressionError(f"{text} is too large for a number")
        return value
    else:
        raise ExpressionError(f"{text} is no number: write it in decimal digits, such as 1.5e9")
    integer = int(digits, base)
    if integer > _MAX_INTEGER:
        # Go then reads the text as a decimal: octal digits change their meaning, hexadecimal ones are an error.
        raise ExpressionError(f"{text} is too large: write it in decimal digits")
    return float(integer)


def read_string(text: str) -> str:
    r"""Return a string literal with its quotes. In `"` and `'` Go's escapes hold; nothing is special inside backquotes.

    Raises ExpressionError for an escape that Go does not know, and where bytes written as `\x..` are no UTF-8.
    """
    quote, body = text[0], text[1:-1]
    if "\N{REPLACEMENT CHARACTER}" in body:
        raise ExpressionError("a string has U+FFFD, which Prometheus takes for broken UTF-8")
    if quote == "`" or "\\" not in body:
        return body
    parts: list[bytes] = []
    end = 0
    for escape in _ESCAPE.finditer(body):
        parts += (body[end : escape.start()].encode(), _unescape(escape, quote, body))
        end = escape.end()
    parts.append(body[end:].encode())
    try:
        return b"".join(parts).decode()
    except UnicodeDecodeError:
        raise ExpressionError(f"the bytes of the string {text} are no UTF-8: write the characters themselves") from None


def _unescape(escape: re.Match[str], quote: str, body: str) -> bytes:
    kind, digits = escape.lastgroup, escape[escape.lastgroup or 0]
    if kind == "simple" and (digits not in {'"', "'"} or digits == quote):
        return _SIMPLE.get(digits, digits).encode()
    if kind in {"octal", "byte"}:
        return bytes([int(digits, 8 if kind == "octal" else 16)])
    if kind in {"short", "long"}:
        point = int(digits, 16)
        if point <= 0x10FFFF and not 0xD800 <= point < 0xE000:
            return chr(point).encode()
    shown = body[escape.start() : escape.start() + 2]
    raise ExpressionError(
        f"{shown} is no escape in a string: write \\\\ for a backslash, or put the string in backquotes"
    )
