"""The timeline of an incident: it began, became worse, was told to somebody, something was done, it ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuagent.core.units import MAX_SECONDS, format_time
from gpuagent_exporters.page.html import Document, attribute, duration, is_number, size, text

_MOST = 12
_SAME_SECONDS = 90.0
"""Messages to several receivers within this time are one line."""
_SENT = {"told": "told", "queued": "being told", "dead": "not told"}
_REASONS = {"firing": "", "repeat": "again", "resolved": "that it ended"}


def timeline(incident: Document, runs: Sequence[Document], now: object, *, hidden: bool) -> str:
    """Render the events by time; empty where none is known. `runs` are remedies, `now` is Unix time."""
    events = [*_told(incident, hidden=hidden), *_acted(incident, runs)]
    events.sort(key=lambda event: event[0])
    left_out = len(events) - _MOST
    if left_out > 0:
        half = _MOST // 2
        between = (events[half][0], "", f"{left_out} more")
        events = [*events[:half], between, *events[len(events) - half :]]
    items = "".join(
        f'<li><time datetime="{attribute(_iso(at))}">{text(_when(at, now))}</time><b>{text(what)}</b>'
        f"<span>{text(words)}</span></li>"
        for at, what, words in events
    )
    return f'<ol class="timeline">{items}</ol>' if items else ""


def _told(incident: Document, *, hidden: bool) -> Iterator[tuple[float, str, str]]:
    """Yield what the agent tells of it: time, what happened, and more about that."""
    sent: dict[tuple[str, str], tuple[float, list[str]]] = {}
    for event in incident.get("timeline") or ():
        at, kind = event.get("time_seconds"), str(event.get("event"))
        if not is_number(at) or at > MAX_SECONDS:
            continue
        if kind in _SENT:
            key = (kind, str(event.get("reason")))
            if key in sent and at - sent[key][0] > _SAME_SECONDS:
                yield _message(key, sent.pop(key))
            sent.setdefault(key, (at, []))[1].append(str(event.get("receiver")))
        elif kind == "began":
            yield at, "began", str(event.get("severity") or "")
        elif kind == "worsened":
            yield at, "worsened", f"{event.get('severity')}: {event.get('alert')}"
        elif kind == "acknowledged":
            yield at, "acknowledged", "" if hidden else f"by {event.get('by')}"
        elif kind == "ended":
            yield at, "ended", ""
    for key, found in sent.items():
        yield _message(key, found)


def _message(key: tuple[str, str], found: tuple[float, list[str]]) -> tuple[float, str, str]:
    (kind, reason), (at, receivers) = key, found
    words = ", ".join(dict.fromkeys(receivers))
    return at, _SENT[kind], " ".join(filter(None, (words, _REASONS.get(reason, ""))))


def _acted(incident: Document, runs: Sequence[Document]) -> Iterator[tuple[float, str, str]]:
    """Yield what was done: to the process that it is about, or by one of its alerts, while it went on."""
    begins, ends = incident.get("starts_at_seconds") or 0.0, incident.get("ends_at_seconds")
    pid = str((incident.get("labels") or {}).get("pid") or "")
    alerts = set(incident.get("alerts") or ())
    for run in runs:
        at = run.get("time_seconds")
        if not is_number(at) or at < begins or (ends is not None and at > ends):
            continue
        if run.get("fingerprint") not in alerts and str(run.get("pid")) != pid:
            continue
        end = run.get("end")
        result = "under way" if end is None else str(end.get("result") or "").replace("_", " ")
        freed = "" if end is None or end.get("released_bytes") is None else f"{size(end['released_bytes'])} came back"
        dry = "dry run" if run.get("dry_run") else ""
        who = f"{run.get('name') or 'process'} (pid {run.get('pid')})"
        yield at, "acted", ", ".join(filter(None, (f"{who}: {result}", freed, dry)))


def _when(at: float, now: object) -> str:
    return f"{duration(max(0.0, now - at))} ago" if is_number(now) else format_time(at)


def _iso(at: float) -> str:
    day, clock, _ = format_time(at).split(" ")
    return f"{day}T{clock}Z"
