"""Kinds of values in a scenario file: amounts, durations, names of error codes."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field

from gpuagent.core.units import parse_bytes, parse_duration
from gpuagent.simulated.codes import parse_code

STRICT = ConfigDict(extra="forbid", frozen=True)


def _amount(value: object) -> float:
    """A plain number (bytes, percent, a count) or a size such as `-6GiB`."""
    if isinstance(value, bool):
        raise ValueError("expected a number or a size such as 6GiB")
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str):
        text = value.strip()
        return -float(parse_bytes(text[1:])) if text.startswith("-") else float(parse_bytes(text))
    raise ValueError("expected a number or a size such as 6GiB")


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("expected a duration such as 30s or 5m")
    return parse_duration(value)


def _code(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("expected an NVML error code such as gpu_is_lost or 15")
    return int(parse_code(value))


Amount = Annotated[float, BeforeValidator(_amount)]
Bytes = Annotated[int, BeforeValidator(lambda value: int(_amount(value))), Field(ge=0)]
Seconds = Annotated[float, BeforeValidator(_seconds)]
PositiveSeconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0)]
ErrorCode = Annotated[int, BeforeValidator(_code)]
