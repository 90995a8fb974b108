"""Read a single value of a scenario: an amount, a duration, a number, an error code, a few words.

Numbers may stand in quotes, as a program that fills in a template may write them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated

from gpuagent.core.problems import kind_of, shown
from gpuagent.core.sections import ReadContext, ShortForm, ValueType
from gpuagent.core.units import parse_bytes, parse_duration
from gpuagent_simulator.abi import parse_code

_FLAGS: dict[object, bool] = {
    **dict.fromkeys((1, "1", "true", "yes", "on", "y", "t"), True),
    **dict.fromkeys((0, "0", "false", "no", "off", "n", "f"), False),
}
_PROCESS_KIND = re.compile("[CGM]{1,3}")


def _amount(value: object, _: ReadContext) -> float:
    """Return a plain number (bytes, percent, a count) or a size such as `-6GiB`."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("expected a number or a size such as 6GiB")
    if not isinstance(value, str):
        return float(value)
    text = value.strip()
    return -float(parse_bytes(text[1:])) if text.startswith("-") else float(parse_bytes(text))


def _bytes(value: object, context: ReadContext) -> int:
    amount = _amount(value, context)
    if not 0 <= amount < float("inf"):
        raise ValueError(f"{amount:g} is no number of bytes")
    return int(amount)


def _seconds(value: object, _: ReadContext) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("expected a duration such as 30s or 5m")
    return parse_duration(value)


def _positive_seconds(value: object, context: ReadContext) -> float:
    seconds = _seconds(value, context)
    if not seconds > 0:
        raise ValueError("must be longer than 0")
    return seconds


def _number(value: object, _: ReadContext) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"must be a number, not {kind_of(value)}")
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"{shown(str(value))} is not a number") from None


def _whole_number(value: object, context: ReadContext) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    number = _number(value, context)
    if not number.is_integer():
        raise ValueError(f"must be a whole number, not {number:g}")
    return int(number)


def _flag(value: object, _: ReadContext) -> bool:
    text_or_number = value.lower() if isinstance(value, str) else value if isinstance(value, int | float) else None
    found = _FLAGS.get(text_or_number)
    if found is None:
        raise ValueError(f"must be true or false, not {kind_of(value)}")
    return found


def _code(value: object, _: ReadContext) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("expected an NVML error code such as gpu_is_lost or 15")
    return int(parse_code(value))


def _process_kind(value: object, _: ReadContext) -> str:
    if not isinstance(value, str) or not _PROCESS_KIND.fullmatch(value):
        raise ValueError("must be one to three of the letters C, G and M")
    return value


def _name(value: object, _: ReadContext) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be text, not {kind_of(value)}")
    if not value:
        raise ValueError("must not be empty")
    return value


def _if_text(convert: Callable[[str], tuple[str, ...]]) -> Callable[[object], object]:
    return lambda value: convert(value) if isinstance(value, str) else value


Amount = Annotated[float, ValueType("a number or a size such as 6GiB", _amount)]
"""Bytes, percent or a count."""

Bytes = Annotated[int, ValueType("a size such as 6GiB", _bytes)]

Seconds = Annotated[float, ValueType("a duration such as 30s or 5m", _seconds)]

PositiveSeconds = Annotated[float, ValueType("a duration such as 30s or 5m, longer than 0", _positive_seconds)]

Number = Annotated[float, ValueType("a number", _number)]

Whole = Annotated[int, ValueType("a whole number", _whole_number)]

Flag = Annotated[bool, ValueType("true or false", _flag)]

ErrorCode = Annotated[int, ValueType("an NVML error code such as gpu_is_lost or 15", _code)]

ProcessKind = Annotated[str, ValueType("one to three of the letters C, G and M", _process_kind)]

Name = Annotated[str, ValueType("text", _name)]

Words = Annotated[tuple[str, ...], ShortForm("words, or a list of texts", _if_text(lambda text: tuple(text.split())))]

Texts = Annotated[tuple[str, ...], ShortForm("text, or a list of texts", _if_text(lambda text: (text,)))]
