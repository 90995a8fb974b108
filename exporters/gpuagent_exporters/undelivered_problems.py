"""Receivers that are not told what they should be, as problems: where nobody is told, everybody sees it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuagent.core.metrics.alerting import Undelivered, UndeliveredReason
from gpuagent.core.units import format_duration
from gpuagent_exporters.severity import Problem, Severity

_TRY_NOW = "`gpuagent receivers list` shows what waits, `gpuagent receivers test {name}` tries it now."
_ADVICE = {
    UndeliveredReason.FAILING: _TRY_NOW,
    UndeliveredReason.OFF: "Put its address right, then `gpuagent receivers test {name}` switches it on.",
    UndeliveredReason.WAITING: _TRY_NOW,
    UndeliveredReason.DEAD: "`gpuagent alerts --dead` shows them, `gpuagent receivers replay` queues them again.",
}


def undelivered_problems(undelivered: Iterable[Undelivered], now_seconds: float) -> Iterator[Problem]:
    """Yield one problem for each; `now_seconds` is CLOCK_BOOTTIME."""
    for one in undelivered:
        severity = Severity.WARNING if one.why is UndeliveredReason.DEAD else Severity.CRITICAL
        yield Problem(severity, "undelivered", describe(one, now_seconds), _ADVICE[one.why].format(name=one.receiver))


def describe(one: Undelivered, now_seconds: float) -> str:
    """Return it as one line: who is not told, since when and why."""
    name, reason = f"receiver {one.receiver}", f": {one.reason}" if one.reason else ""
    since = "" if one.since_seconds is None else f" for {format_duration(max(0.0, now_seconds - one.since_seconds))}"
    waiting = f", {_messages(one.messages)} waiting" if one.messages else ""
    if one.why is UndeliveredReason.FAILING:
        return f"{name} has been failing{since}{waiting}{reason}"
    if one.why is UndeliveredReason.OFF:
        return f"{name} is switched off{waiting}{reason}"
    if one.why is UndeliveredReason.WAITING:
        return f"{name} has not been told{since}{waiting}{reason}"
    return f"{name}: {_messages(one.messages)} could not be delivered"


def _messages(number: int) -> str:
    return f"{number} message{'' if number == 1 else 's'}"
