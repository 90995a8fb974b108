"""Reading what a server answered: a JSON document, or Prometheus' text format. It may be anything."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator
from typing import Any

_SAMPLE = re.compile(rb"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{.*\})?[ \t]+([^ \t\n]+)", re.MULTILINE)
_MOST = 2**63 - 1


class BadAnswer(ValueError):
    """An answer of another form, and what was missing."""


def document(body: bytes) -> Any:  # noqa: ANN401  whatever JSON can hold
    """The JSON in a body. Raises BadAnswer."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise BadAnswer("the answer is not JSON") from None


def samples(body: bytes, names: Collection[str]) -> Iterator[tuple[str, float]]:
    """The finite values of metrics by these names, whatever their labels."""
    wanted = {name.encode() for name in names}
    for line in body.splitlines():
        found = _SAMPLE.match(line)
        if found is None or found[1] not in wanted:
            continue
        try:
            value = float(found[2])
        except ValueError:
            continue
        if math.isfinite(value):
            yield found[1].decode(), value


def count(value: object) -> int | None:
    """A count or a size in bytes; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
        return None
    return int(value)
