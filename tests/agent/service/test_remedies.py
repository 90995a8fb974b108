"""What is asked over the control socket is checked before anything is looked at."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from gpuagent.service.remedies import RemedyCommands

NOTHING = cast("Any", None)
"""Whoever is refused has met no process, no limit and no record."""


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"steps": []}, "steps must be a list"),
        ({"steps": "kill"}, "steps must be a list"),
        ({"steps": ["poke"]}, "steps must be a list"),
        ({"steps": [{}]}, "steps must be a list"),
        ({"steps": [["kill"]]}, "steps must be a list"),
        ({"steps": [None]}, "steps must be a list"),
        ({"gpu": 0}, "gpu must be a text"),
        ({"force": "yes"}, "force must be true or false"),
        ({"dry_run": 1}, "dry_run must be true or false"),
        ({"dryrun": True}, "unknown: dryrun"),
    ],
)
def test_what_is_no_request_is_refused(request_: dict[str, Any], says: str) -> None:
    """Also where a value is of a kind that cannot even be looked up: a fault of the caller's is no fault of ours."""
    with pytest.raises(ValueError, match=says):
        asyncio.run(RemedyCommands(NOTHING).kill(1, request_, 0))
