"""Values as harmless HTML, in the words of `gpuagent status`. What is not known is a dash, never a zero."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, TypeGuard

from gpuagent.core.units import MAX_SECONDS, format_bytes, format_duration, format_ratio

Document = Mapping[str, Any]

UNKNOWN = "\N{EN DASH}"
SEVERITIES = ("critical", "warning", "info")

_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})


def escape(value: str) -> str:
    """Return what `html.escape` does; the module `html` has a table of all entities, 0.3 MiB."""
    return value.translate(_ENTITIES)


def text(value: object) -> str:
    """Return a value as harmless HTML, isolated: right-to-left marks must not turn its neighbors."""
    return "" if value is None or value == "" else f"<bdi>{escape(str(value))}</bdi>"


_CODE = re.compile(r"`([^`]+)`")


def advice(value: object) -> str:
    """Return a sentence as harmless HTML, with what is between backquotes as code."""
    return _CODE.sub(r"<code>\1</code>", text(value))


def attribute(value: object) -> str:
    """Escape a value for between double quotes."""
    return escape("" if value is None else str(value))


def is_number(value: object) -> TypeGuard[float]:
    """Tell whether a figure can be shown: finite, and not below zero."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and math.isfinite(float(value))


def size(value: object) -> str:
    """Bytes, as `19.4 GiB`."""
    return format_bytes(value) if is_number(value) else UNKNOWN


def duration(value: object) -> str:
    """Seconds, as `2 h 14 min`."""
    return format_duration(value) if is_number(value) and value <= MAX_SECONDS else UNKNOWN


def percent(value: object) -> str:
    """Format a ratio as `75 %`."""
    return format_ratio(value) if is_number(value) else UNKNOWN


def number(value: object) -> str:
    """Format a figure without a unit, rounded."""
    return f"{value:.0f}" if is_number(value) else UNKNOWN


def share(part: object, whole: object) -> float:
    """From 0 to 1; 0 where either is unknown."""
    return min(part / whole, 1.0) if is_number(part) and is_number(whole) and whole else 0.0


def ago(then: object, now: object) -> str:
    """How long before `now` (both Unix time), as `5 min ago`."""
    if not is_number(then) or not is_number(now):
        return "at an unknown time"
    return f"{duration(max(0.0, now - then))} ago"


def count(many: object, one: str) -> str:
    """`1 process`, `2 processes`."""
    plural = f"{one}es" if one.endswith("s") else f"{one}s"
    return f"{number(many)} {one if many == 1 else plural}"


def chapter(name: str, title: str, body: str, tools: str = "") -> str:
    """Render a part of the page under a heading that the navigation leads to. `tools` stand beside the heading."""
    head = f'<h2 id="{name}-title">{title}</h2>'
    head = f'<div class="head">{head}{tools}</div>' if tools else head
    return f'<section id="{name}" aria-labelledby="{name}-title">{head}{body}</section>'
