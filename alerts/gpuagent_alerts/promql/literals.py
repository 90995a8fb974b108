"""Numbers and strings as Go reads them for Prometheus 2.42: what Python would read otherwise is told apart here."""

from __future__ import annotations

import re

from gpuagent_alerts.promql.errors import ExpressionError

_OCTAL = re.compile(r"0[0-7]+")
_DECIMAL = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_HEXADECIMAL = re.compile(r"0[xX][0-9a-fA-F]+")
_MAX_INTEGER = 2**63 - 1

_ESCAPE = re.compile(
    r"\\(?:(?P<simple>[abfnrtv\\\"'])|(?P<octal>[0-3][0-7]{2})|x(?P<byte>[0-9a-fA-F]{2})"
    r"|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8})|)",
    re.DOTALL,
)
_SIMPLE = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def read_number(text: str) -> float:
    """`010` is eight and `0x10` sixteen, as in Go; `1e` and `1e999` are refused. `Inf` and `NaN` in any case.

    Raises ExpressionError.
    """
    if text.lower() in {"inf", "nan"}:
        return float(text)
    if _HEXADECIMAL.fullmatch(text):
        base, digits = 16, text[2:]
    elif _OCTAL.fullmatch(text):
        base, digits = 8, text
    elif _DECIMAL.fullmatch(text):
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
    r"""A string literal with its quotes. In `"` and `'` Go's escapes hold; nothing is special inside backquotes.

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
