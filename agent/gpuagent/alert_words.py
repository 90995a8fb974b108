"""What an alert says on a screen: what is the case while it fires, and what may become of it while it is pending."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuagent.units import format_duration

Document = Mapping[str, Any]


def summary_of(alert: Document) -> str:
    """The rule's own text for the alert's state; for a pending one without it, a sentence that is true of any rule.

    >>> summary_of({"state": "firing", "annotations": {"summary": "GPU 0 is full"}})
    'GPU 0 is full'
    >>> summary_of({"state": "pending", "name": "GpuMemoryFull", "annotations": {}, "fires_in_seconds": 280.0})
    'GpuMemoryFull is true, fires in 4 min 40 s if it stays so'
    """
    annotations = alert.get("annotations") or {}
    if alert.get("state") != "pending":
        return str(annotations.get("summary") or "")
    if annotations.get("pending_summary"):
        return str(annotations["pending_summary"])
    left = alert.get("fires_in_seconds")
    when = f"fires in {format_duration(left)}" if left is not None else "fires"
    return f"{alert.get('name')} is true, {when} if it stays so"


def since_of(alert: Document) -> str:
    """For how long it has been in its state: `firing for 4 min 27 s`.

    >>> since_of({"state": "pending", "active_seconds": 20.0})
    'pending for 20 s'
    """
    return f"{alert.get('state') or 'active'} for {format_duration(max(0.0, alert.get('active_seconds') or 0.0))}"
