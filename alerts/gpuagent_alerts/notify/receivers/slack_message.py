"""A message in Block Kit: what is pushed in one line, and below it in color what helps to decide.

Slack's limits: 50 blocks, 3,000 characters in a section, about 13,200 in all
(https://docs.slack.dev/reference/block-kit/blocks/section-block, https://github.com/slackapi/bolt-js/issues/2509). Ours
are below them. Blocks in an attachment have a bar of its color (https://docs.slack.dev/messaging/formatting-message-text).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from gpuagent.core.units import format_bytes, format_duration
from gpuagent_alerts.alert import Alert, Incident, Message, News, condition_times
from gpuagent_alerts.notify.outbox.attempt import MessageContext
from gpuagent_alerts.notify.receivers.text import (
    LINK_NAMES,
    SHOWS_ALL,
    alert_texts,
    digest_lines,
    distinct_alerts,
    format_holder,
    format_timestamp,
    headline,
    is_over,
    other_labels,
    severity_of,
)

MAX_SECTION = 2900
_MAX_SECTIONS = 8
_MAX_TOTAL = 10_000
_MAX_TEXT = 1000
_MAX_FOOTER = 500
_MAX_VALUE = 200
_MAX_LINE = 400
_MOST_REMEDIES = 4
_MOST_ALERTS = 6
_NEW_SECONDS = 300.0
"""Age of the youngest alert of a message from which on the message may be a reminder."""
_HIDDEN = frozenset({"uuid", "node", "simulated"})
"""Labels that nobody reads here: they are in the webhook's document."""
_COLORS = {"critical": "#d1242f", "error": "#d1242f", "warning": "#e3a008", "info": "#3b82f6", "none": "#8b949e"}
_RESOLVED = "#2da44e"
_OTHER = "#8b949e"


def payload(message: Message, context: MessageContext) -> dict[str, Any]:
    """Return what is posted. `text` is what notifications show, and screen readers read."""
    incident = message.incident
    if incident is not None and incident.briefing.headline:
        texts = [*_briefing(message, incident), *_alert_lines(distinct_alerts(message.alerts))]
    elif message.digest:
        texts = _digest(message)
    else:
        texts = _sections(message.alerts)
    blocks: list[dict[str, Any]] = [{"type": "section", "text": _marked(text)} for text in texts if text]
    blocks.append({"type": "context", "elements": [_marked(_footer(message, context))]})
    line = headline(message, context)
    attachment = {"color": color(message), "fallback": fit(line, _MAX_TEXT), "blocks": blocks}
    return {"text": literal(line, _MAX_TEXT), "attachments": [attachment]}


def _marked(text: str) -> dict[str, Any]:
    """Return a text with marks of ours; names of channels and people in it are no links (`verbatim`)."""
    return {"type": "mrkdwn", "text": text, "verbatim": True}


def color(message: Message) -> str:
    """Return the color of the bar: by severity, green once it is over."""
    if is_over(message):
        return _RESOLVED
    return _COLORS.get(severity_of(message), _OTHER)


def _is_reminder(message: Message, incident: Incident) -> bool:
    """Return whether nothing that the message tells is new: what has just begun is no reminder."""
    if incident.news is not News.REMINDER:
        return False
    began = max((alert.starts_at for alert in message.alerts if alert.holds), default=0.0)
    return message.written_at is None or message.written_at - began >= _NEW_SECONDS


def _briefing(message: Message, incident: Incident) -> list[str]:
    said = incident.briefing
    numbers = " · ".join(part for part in (fit(said.numbers, 1200), _times(message, incident)) if part)
    holders = "\n".join(
        f"• {literal(format_holder(one), 200)} {format_bytes(one.used_bytes)}" for one in said.holders
    )  # fmt: skip
    done = "\n".join(f"*Remedy* {literal(text, _MAX_LINE)}" for text in said.remedies[:_MOST_REMEDIES])
    commands = [f"*Next* {code(said.next_command, _MAX_LINE)}" if said.next_command else ""]
    commands += [f"*Silence* {code(said.silence_command, _MAX_LINE)}" if said.silence_command else ""]
    return [
        numbers,
        f"*Largest holders*\n{holders}" if holders else "",
        f"*Line* {code(said.culprit, _MAX_LINE)}" if said.culprit else "",
        done,
        "\n".join(line for line in commands if line),
        " · ".join(link(url, LINK_NAMES.get(name, name)) for name, url in list(said.links.items())[:5]),
    ]


def _times(message: Message, incident: Incident) -> str:
    if incident.ends_at is None:
        which = "reminder, " if _is_reminder(message, incident) else ""
        return f"{which}since {date(incident.starts_at)}"
    return _span(incident.starts_at, incident.ends_at)


def _footer(message: Message, context: MessageContext) -> str:
    key = "" if message.incident is None else message.incident.key
    parts = [part for part in (context.node, key, message.id) if part]
    where = [link(context.external_url, "gpuagent") if context.external_url else "gpuagent"]
    return " · ".join([*where, *(literal(part, _MAX_FOOTER // len(parts)) for part in parts)])


def _digest(message: Message) -> list[str]:
    """Return a line for each incident that was held back, and the command that shows what there is now."""
    lines, left = [], MAX_SECTION - 60
    for place, line in enumerate(digest_lines(message)):
        shown = "• " + literal(line, _MAX_LINE)
        if length_of(shown) + 1 > left:
            lines.append(f"… and {len(message.digest) - place} more")
            break
        left -= length_of(shown) + 1
        lines.append(shown)
    return ["\n".join(lines), f"*Next* {code(SHOWS_ALL, _MAX_LINE)}"]


def _alert_lines(alerts: Sequence[Alert]) -> list[str]:
    """Return the alerts of an incident, a line for each, where there is more than the one of the headline."""
    return [_lines(alerts, MAX_SECTION // 2, _MOST_ALERTS)] if len(alerts) > 1 else []


def _sections(alerts: tuple[Alert, ...]) -> list[str]:
    """Return a text for each alert; if there are too many, the rest in one, a line for each."""
    whole = alerts if len(alerts) <= _MAX_SECTIONS else alerts[: _MAX_SECTIONS - 1]
    most = min(MAX_SECTION, _MAX_TOTAL // min(len(alerts), _MAX_SECTIONS) if alerts else MAX_SECTION)
    sections = [_section(alert, most) for alert in whole]
    rest = alerts[len(whole) :]
    if rest:
        sections.append(_lines(rest, most, len(rest)))
    return sections


def _section(alert: Alert, most: int) -> str:
    """Return an alert whole: what it is always stands, what it means is cut if it must be."""
    shown = {name: value for name, value in other_labels(alert).items() if name not in _HIDDEN}
    labels = fit(" ".join(f"`{_code(name, value)}`" for name, value in shown.items()), most // 3)
    last = _alert_times(alert)
    runbook = alert.annotations.get("runbook_url", "")
    if runbook and len(runbook) < most // 8:
        last += f" · {link(runbook, LINK_NAMES['runbook'])}"
    head = _head(alert, min(300, most // 4))
    fixed = "\n".join(part for part in (labels, last) if part)
    room = most - length_of(head) - length_of(fixed) - 2
    said = _fit_texts(alert, max(room, 0))
    return "\n".join(part for part in (head, said, fixed) if part)


def _fit_texts(alert: Alert, most: int) -> str:
    """Return what a rule says of an alert: its author's marks stand, but not those of a name that it repeats."""
    said = "\n".join(alert_texts(alert))
    foreign = (value for value in alert.labels.values() if _FORMATS.search(value) or _BREAKS.search(value))
    if not any(value in said for value in foreign) or most < len(_FENCE) * 2 + 2:
        return fit(said, most)
    return f"{_FENCE}{fit(said.replace('`', chr(39)), most - len(_FENCE) * 2)}{_FENCE}"


def _alert_times(alert: Alert) -> str:
    begins, ends = condition_times(alert)
    return f"since {date(begins)}" if ends is None else _span(begins, ends)


def _span(begins: float, ends: float) -> str:
    return f"{date(begins)} to {date(ends)} ({fit(format_duration(max(0.0, ends - begins)), 50)})"


def _head(alert: Alert, most: int) -> str:
    severity = alert.labels.get("severity", "")
    return f"*{alert.state.upper()}* " + fit(f"{alert.name} · {severity}" if severity else alert.name, most)


def _lines(alerts: Sequence[Alert], most: int, most_lines: int) -> str:
    lines: list[str] = []
    left = most - 60  # for the last line
    for place, alert in enumerate(alerts):
        line = "• " + _head(alert, 100) + " " + literal(", ".join(alert_texts(alert)[:1]), 160)
        if length_of(line) + 1 > left or place >= most_lines:
            firing = sum(other.holds for other in alerts[place:])
            lines.append(f"… and {len(alerts) - place} more" + (f", {firing} of them firing" if firing else ""))
            break
        left -= length_of(line) + 1
        lines.append(line)
    return "\n".join(lines)


def _code(name: str, value: str) -> str:
    value = value if len(value) <= _MAX_VALUE else value[: _MAX_VALUE - 1] + "…"
    return f"{name}={value}".replace("`", "'").replace("\n", " ")


_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_FORMATS = re.compile(r"(?<![^\W_])[*_~]|[*_~](?![^\W_])|`|:[\w+'-]*[A-Za-z][\w+'-]*:|(?<!\d):\d+:(?!\d)|^\s*>")
"""What Slack may take for a mark: bold, italic and struck out begin and end at a word's edge (`a_b` is none), code, an
emoji, and a quote."""
_BREAKS = re.compile(r"[\n\r\v\f\x85\u2028\u2029]+")
_FENCE = "```"
_LATEST = 253402300799
_WEB = re.compile(r"https?://[^\s]+\Z", re.ASCII)
_MAX_URL = 1000


def fit(text: str, most: int, *, escape: bool = True) -> str:
    """Escape what Slack reads as marks for links and mentions, and cut to a length that splits no escape."""
    kept: list[str] = []
    length = fitting = 0
    for character in text:
        piece = _ESCAPES.get(character, character) if escape else character
        length += length_of(piece)
        if length > most:
            return "".join(kept[:fitting]) + ("…" if most else "")
        kept.append(piece)
        if length < most:
            fitting = len(kept)
    return "".join(kept)


def length_of(text: str) -> int:
    """Return the length as JavaScript counts it, where a character may count for two."""
    return len(text) + sum(character > "\uffff" for character in text)


def literal(text: str, most: int) -> str:
    """Return one line of text from outside, which Slack shows as it is: as code where a mark in it would format it."""
    line = _BREAKS.sub(" ", text)
    return code(line, most - 2) if _FORMATS.search(line) else fit(line, most)


def code(text: str, most: int) -> str:
    """Return text as code: nothing in it ends the mark."""
    return f"`{fit(text.replace('`', chr(39)).replace(chr(10), ' '), most)}`"


def date(unix_seconds: float) -> str:
    """Return a time that Slack shows in the reader's own zone, and old clients in UTC."""
    seconds = int(min(max(unix_seconds, 0.0), _LATEST))
    return f"<!date^{seconds}^{{date_short_pretty}} {{time}}|{format_timestamp(seconds)}>"


def link(url: str, name: str) -> str:
    """Return a link; the name alone where the URL is none that Slack takes."""
    safe = quote(url, safe=":/?#[]@!$&'()*+,;=%-._~")
    if not _WEB.match(safe) or len(safe) > _MAX_URL:
        return fit(name, 50)
    return f"<{safe.replace('&', '&amp;')}|{fit(name, 50)}>"
