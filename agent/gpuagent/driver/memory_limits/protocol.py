"""What the agent and the helper say to each other: one line of JSON each way on a connection."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

SOCKET = "/run/gpuagent-limit/socket"
MOST_REQUEST_BYTES = 16 * 2**10
MOST_ANSWER_BYTES = 2**20
LEDGER_NAME = "ledger.json"
"""Beside the socket: what the helper has set."""
SET, LIFT, LIMITS = "set", "lift", "limits"
UNTIL = "until"
"""CLOCK_BOOTTIME at which whoever asks gives up: what is later is not done any more."""


def line_of(document: Mapping[str, Any]) -> bytes:
    """Return a document as a line."""
    return json.dumps(document).encode("ascii") + b"\n"


def document_of(line: bytes) -> dict[str, Any]:
    """Return the document of a line. Raises ValueError for what is none."""
    if not line.endswith(b"\n"):
        raise ValueError("no whole line")
    document = json.loads(line)
    if not isinstance(document, dict):
        raise ValueError("no object")
    return document
