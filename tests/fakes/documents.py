"""Status documents, as an agent would send them, from snapshots made by hand."""

from __future__ import annotations

import json
from typing import Any

from gpuagent.core.snapshot import Snapshot
from gpuagent.core.units import GIB
from gpuagent_exporters.status.document import status_document
from tests.fakes.readings import NOW

HISTORY = {
    "GPU-00000000": [GIB * (4 + step / 2) for step in range(24)] + [None, None] + [18.0 * GIB, 18.5 * GIB, 19.5 * GIB]
}


def document(snapshot: Snapshot | None, now: float = NOW + 0.4, **changes: Any) -> dict[str, Any]:
    """What arrives at the command: JSON's types only."""
    arguments = {
        "now_seconds": now,
        "version": "0.1.0",
        "pid": 77,
        "uptime_seconds": 3600.0,
        "poll_interval_seconds": 1.0,
        "history": HISTORY,
        "history_interval_seconds": 10.0,
        **changes,
    }
    arrived: dict[str, Any] = json.loads(json.dumps(status_document(snapshot, **arguments), allow_nan=False))
    return arrived
