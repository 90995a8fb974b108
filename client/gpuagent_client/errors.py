"""Keep the client's own errors away from the app: an app must never fail because it is watched.

Under pytest, or with GPUAGENT_STRICT=1, they are raised instead, so that whoever develops with the client sees them.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger("gpuagent_client")


class Refused(Exception):
    """A command of the agent was not carried out; the text is the answer."""


_MAX_REMEMBERED = 64
_reported: set[tuple[str, str]] = set()


def strict() -> bool:
    """Return whether errors are raised: as GPUAGENT_STRICT says, else under pytest."""
    asked = os.environ.get("GPUAGENT_STRICT", "")
    return asked not in {"", "0"} if asked else "pytest" in sys.modules


@contextmanager
def suppress_errors(doing: str) -> Iterator[None]:
    """Turn an error into one line of the log, the first time that it happens."""
    try:
        yield
    except Exception as error:
        if strict():
            raise
        warn_once(doing, f"{type(error).__name__}: {error}")


def warn_once(doing: str, problem: str) -> None:
    """Log a problem, and be silent about it from then on: what fails each second must not fill the app's log."""
    if (doing, problem) in _reported or len(_reported) >= _MAX_REMEMBERED:
        return
    _reported.add((doing, problem))
    log.warning("gpuagent_client could not %s (%s); the app is not affected", doing, problem)
