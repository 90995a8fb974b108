"""Arguments of commands as they come over HTTP: checked before any app is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Args = Mapping[str, Any]


def only(args: Args, *names: str) -> Args:
    """The arguments, if there are no others than these. Raises ValueError."""
    unknown = sorted(set(args) - set(names))
    if unknown:
        raise ValueError(f"{unknown[0][:50]!r} is unknown; there is: {', '.join(names) or 'nothing to give'}")
    return args


def flag(args: Args, name: str, *, default: bool = False) -> bool:
    """True or false. Raises ValueError."""
    value = args.get(name, default)
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false")
    return value


def number(args: Args, name: str, least: float, most: float, default: float | None = None) -> float:
    """A number within bounds. Raises ValueError."""
    value = args.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"{name} must be a number from {least:g} to {most:g}")
    return float(value)
