"""What an alert says on a screen: what is, what may be while it is pending, and what was while it is only kept."""

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
    >>> summary_of({"state": "ending", "annotations": {"resolved_summary": "GPU 0 was full"}, "end_reason": "it ended"})
    'GPU 0 was full: it ended'
    """
    annotations = alert.get("annotations") or {}
    if alert.get("state") == "ending":
        what = annotations.get("resolved_summary") or f"{alert.get('name')} was true"
        return f"{what}: {alert.get('end_reason') or 'no longer true'}"
    if alert.get("state") != "pending":
        return str(annotations.get("summary") or "")
    if annotations.get("pending_summary"):
        return str(annotations["pending_summary"])
    left = alert.get("fires_in_seconds")
    when = f"fires in {format_duration(left)}" if left is not None else "fires"
    return f"{alert.get('name')} is true, {when} if it stays so"


def since_of(alert: Document, now: float) -> str:
    """For how long it has been in its state: `firing for 4 min 27 s`. `now` is the Unix time of the document.

    >>> since_of({"state": "pending", "active_seconds": 20.0}, 0.0)
    'pending for 20 s'
    >>> since_of({"state": "ending", "not_true_since_seconds": 50.0, "kept_until_seconds": 110.0}, 60.0)
    'not true for 10 s, its end is told in 50 s'
    """
    if alert.get("state") == "ending":
        ceased, until = alert.get("not_true_since_seconds"), alert.get("kept_until_seconds")
        since = f"not true for {format_duration(max(0.0, now - ceased))}" if ceased is not None else "not true now"
        return since + (f", its end is told in {format_duration(max(0.0, until - now))}" if until is not None else "")
    return f"{alert.get('state') or 'active'} for {format_duration(max(0.0, alert.get('active_seconds') or 0.0))}"
