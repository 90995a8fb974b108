"""What every surface says in the same words: of growth, of alerts, and of figures that are not believed.

`Document` is a part of the status document, where null is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuagent.core.growth import GrowthState, Verdict
from gpuagent.core.identity import NO_INSTANCE
from gpuagent.core.units import (
    FORECAST_RANGE_SECONDS,
    MAX_SECONDS,
    format_duration,
    format_forecast,
    format_forecast_range,
    format_rate,
    format_time,
)

Document = Mapping[str, Any]

_UNTIL = {GrowthState.STOPPED.value: " until it stopped", GrowthState.FULL.value: " until the GPU was full"}
_STOPPED = frozenset(_UNTIL)
_SAME_FORECAST = 1.1
"""Ratio of two forecasts up to which they are one: both are taken at readings of their own."""
_INSTANCE_FULL = "stopped: MIG instance full"


def _is_of_instance(part: Document) -> bool:
    """Return whether it grows into the memory of a MIG instance, and not into that of its GPU."""
    return part.get("gpu_instance_id", NO_INSTANCE) not in {None, NO_INSTANCE}


def state_words(part: Document) -> str:
    """Return whether it rises, and of what has stopped why: a full GPU, or the full MIG instance that it is in.

    >>> state_words({"growth_state": "stopped: GPU full", "gpu_instance_id": 1}), state_words({})
    ('stopped: MIG instance full', '')
    >>> state_words({"growth_state": "stopped: GPU full", "gpu_instance_id": -1})
    'stopped: GPU full'
    """
    state = part.get("growth_state")
    return _INSTANCE_FULL if state == GrowthState.FULL.value and _is_of_instance(part) else str(state or "")


def verdict_words(part: Document) -> str:
    """Return the verdict with its evidence, and why it has stopped where it has.

    >>> verdict_words({"verdict": "leaking", "evidence": "strict", "growth_state": "stopped: GPU full"})
    'leaking (strict), stopped: GPU full'
    >>> verdict_words({"verdict": "cached"}), verdict_words({"verdict": None})
    ('cached, not leaked', '')
    """
    verdict = part.get("verdict")
    if not verdict:
        return ""
    words = "cached, not leaked" if verdict == Verdict.CACHED.value else str(verdict)
    words += f" ({part['evidence']})" if part.get("evidence") else ""
    state = part.get("growth_state")
    return f"{words}, {state_words(part)}" if state in _STOPPED else words


def growth_words(part: Document) -> str:
    """Return the pace now: `+1.2 GiB/h`, `stopped`, `0 B/h`.

    >>> growth_words({"growth_bytes_per_second": 350_000}), growth_words({"growth_bytes_per_second": None})
    ('+1.2 GiB/h', '')
    >>> growth_words({"growth_bytes_per_second": 0}), growth_words({"growth_bytes_per_second": -5})
    ('0 B/h', '0 B/h')
    >>> growth_words({"growth_bytes_per_second": 350_000, "growth_state": "stopped"})
    'stopped'
    """
    pace = part.get("growth_bytes_per_second")
    if pace is None:
        return ""
    if part.get("growth_state") in _STOPPED:
        return "stopped"
    return f"+{format_rate(pace)}" if pace * 3600 >= 1 else format_rate(0)


def pace_words(part: Document) -> str:
    """Return the pace in a sentence, in the past where it is over; empty while it cannot be said.

    >>> pace_words({"growth_bytes_per_second": 350_000, "growth_state": "stopped: GPU full"})
    '1.2 GiB/h until the GPU was full'
    """
    pace = part.get("growth_bytes_per_second")
    if not pace or pace <= 0:
        return ""
    until = _UNTIL.get(str(part.get("growth_state")), "")
    return format_rate(pace) + (until.replace("the GPU", "its MIG instance") if _is_of_instance(part) else until)


def assessment_words(part: Document) -> str:
    """Return verdict, pace and forecast in one line, each once.

    >>> assessment_words({"verdict": "leaking", "evidence": "strict", "growth_state": "stopped: GPU full",
    ...                   "growth_bytes_per_second": 350_000, "exhaustion_seconds": 0.0})
    'leaking (strict), 1.2 GiB/h until the GPU was full'
    >>> assessment_words({"verdict": "growing", "growth_bytes_per_second": 350_000, "exhaustion_seconds": 495.0})
    'growing, 1.2 GiB/h, full in 8 min 15 s'
    """
    pace, forecast = pace_words(part), forecast_words(part)
    if pace and part.get("growth_state") in _STOPPED:  # the pace says so
        forecast = "" if part["growth_state"] == GrowthState.FULL.value else forecast
        part = {**part, "growth_state": None}
    return ", ".join(filter(None, (verdict_words(part), pace, forecast)))


def forecast_words(part: Document) -> str:
    """Say when the GPU is full, or the MIG instance, whoever else grows there: `full in 8 min 15 s`, `full now`.

    Empty where that will not come.

    >>> forecast_words({"exhaustion_seconds": 495.0}), forecast_words({"exhaustion_seconds": 0.0})
    ('full in 8 min 15 s', 'full now')
    >>> forecast_words({"exhaustion_seconds": None})
    ''
    >>> forecast_words({"exhaustion_seconds": 9.0, "gpu_exhaustion_seconds": None})
    ''

    What is hours or days away is told as a range, where it is its own:

    >>> forecast_words({"exhaustion_seconds": 4e5, "exhaustion_range_seconds": [2e5, 8e5]})
    'full in about 2 to 9 days'
    """
    # An older agent does not tell that of the GPU.
    seconds = part.get("gpu_exhaustion_seconds", part.get("exhaustion_seconds"))
    if seconds is None or seconds > MAX_SECONDS:
        return ""
    low, high = part.get("exhaustion_range_seconds") or (None, None)
    if seconds >= FORECAST_RANGE_SECONDS and seconds == part.get("exhaustion_seconds") and low and high:
        return format_forecast_range(low, high)
    return format_forecast(seconds)


def usable_bytes(part: Document) -> float | None:
    """Return the memory of a GPU, or MIG instance, that programs can have: what is used and what is free.

    The rest is the driver's own, which nobody can allocate. Every screen shows what is used of this.

    >>> usable_bytes({"memory_used_bytes": 70, "memory_free_bytes": 9, "memory_total_bytes": 80})
    79
    >>> usable_bytes({"memory_used_bytes": None, "memory_free_bytes": 9, "memory_total_bytes": 80})
    80
    """
    used, free, total = part["memory_used_bytes"], part.get("memory_free_bytes"), part["memory_total_bytes"]
    if used is None or free is None or not total or not used + free:
        return None if total is None else total
    return min(total, used + free)  # type: ignore[no-any-return]


def unmeasured_words(known: Document) -> str:
    """Say that processes are not measured now, why, and that what follows is how they were.

    >>> unmeasured_words({"gpus": [0], "reason": "measuring is paused by root", "age_seconds": 435.0,
    ...                   "processes": [{}]})
    'GPU 0: not measured now, last known 7 min 15 s ago (measuring is paused by root):'
    >>> unmeasured_words({"gpus": [0, 1], "reason": "", "age_seconds": None, "processes": []})
    'GPUs 0, 1: not measured now, and nothing is known of their processes.'
    """
    gpus = known["gpus"]
    place = f"GPU{'s' if len(gpus) > 1 else ''} {', '.join(map(str, gpus))}"
    why = f" ({known['reason']})" if known["reason"] else ""
    said, age = f"{place}: not measured now", known["age_seconds"]
    if age is None:
        return f"{said}{why}, and nothing is known of {'their' if len(gpus) > 1 else 'its'} processes."
    ago = f"last known {format_duration(age)} ago{why}"
    return f"{said}, {ago}:" if known["processes"] else f"{said}; no process held its memory, {ago}."


def alone_words(part: Document) -> str:
    """Say how long it would take by itself, where the others there fill the memory sooner; empty elsewhere.

    >>> alone_words({"exhaustion_seconds": 1140.0, "gpu_exhaustion_seconds": 540.0})
    '19 min by itself'
    >>> alone_words({"exhaustion_seconds": 550.0, "gpu_exhaustion_seconds": 540.0})
    ''
    """
    own, whole = part.get("exhaustion_seconds"), part.get("gpu_exhaustion_seconds")
    if own is None or whole is None or own > MAX_SECONDS or own <= _SAME_FORECAST * whole:
        return ""
    return f"{format_duration(own)} by itself"


def full_in_words(part: Document) -> str:
    """Return the same for a column that is called so.

    >>> full_in_words({"exhaustion_seconds": 495.0}), full_in_words({"exhaustion_seconds": 0.0})
    ('8 min 15 s', 'full now')
    """
    return forecast_words(part).removeprefix("full in ")


def since_words(part: Document, now_seconds: float | None) -> str:
    """Say for how long it has been growing: `2 h 10 min`; empty where that is not known. `now_seconds` is Unix time.

    >>> since_words({"growth_since_seconds": 1000.0}, 8800.0), since_words({}, 8800.0)
    ('2 h 10 min', '')
    """
    since = part.get("growth_since_seconds")
    if since is None or now_seconds is None:
        return ""
    return format_duration(max(0.0, now_seconds - since))


def summary_of(alert: Document) -> str:
    """Return the rule's text for the alert's state; for a pending one without it, a sentence true of any rule.

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
    """Say for how long it has been in its state, and when it was measured last where it is not measured now.

    `now` is the Unix time of the document.

    >>> since_of({"state": "pending", "active_seconds": 20.0}, 0.0)
    'pending for 20 s'
    >>> since_of({"state": "ending", "not_true_since_seconds": 50.0, "kept_until_seconds": 110.0}, 60.0)
    'not true for 10 s, its end is told in 50 s'
    >>> since_of({"state": "firing", "active_seconds": 80.0, "as_of_seconds": 1_795_781_100.0}, 0.0)
    'firing for 1 min 20 s, as of 2026-11-27 12:05 UTC'
    """
    if alert.get("state") == "ending":
        ceased, until = alert.get("not_true_since_seconds"), alert.get("kept_until_seconds")
        since = f"not true for {format_duration(max(0.0, now - ceased))}" if ceased is not None else "not true now"
        return since + (f", its end is told in {format_duration(max(0.0, until - now))}" if until is not None else "")
    as_of = "" if alert.get("as_of_seconds") is None else f", as of {format_time(alert['as_of_seconds'])}"
    return (
        f"{alert.get('state') or 'active'} for {format_duration(max(0.0, alert.get('active_seconds') or 0.0))}{as_of}"
    )


WITHHELD = "cannot be true; withheld"
"""Part of the reason of a collector run whose answer was not believed; `GpuReading.act_refusal` says why."""
NOT_ON_LAST_LIST = (
    "it was not there at the last reading, so nothing here can end it: end it with what started it (systemctl, its job"
    " manager, its container runtime)"
)
"""What is said of a pid that a request names, where a GPU cannot be read."""
SHUFFLED_LIST = "this driver's process list has another form than documented (535.43 to 535.98, 550.127.08)"
"""Refusal to act where `GpuReading.processes_trusted` is False."""
MPS_UNKNOWN = "the MPS list may not be read: clients of MPS cannot be told"
"""Refusal to act where a process without "M" among its kinds may be a client of MPS all the same."""
NO_PCI_ADDRESS = "the driver has not told the GPU's PCI address: which GPU this is, is not certain"
"""Refusal to act on a GPU that is known by its UUID alone."""
