"""A Slack channel by its incoming webhook, in Block Kit.

Slack's limits: 50 blocks, 3,000 characters in a section, 150 in a header, about 13,200 in all, 1 message per second
(https://docs.slack.dev/reference/block-kit/blocks/section-block, https://docs.slack.dev/apis/web-api/rate-limits,
https://github.com/slackapi/bolt-js/issues/2509). Ours are below them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from gpuagent_alerts.alert import Alert, Message, Status
from gpuagent_alerts.outbox.outcome import Outcome
from gpuagent_alerts.outbox.sender import Context
from gpuagent_alerts.receivers.http import Http, Request
from gpuagent_alerts.receivers.secret import Secret
from gpuagent_alerts.receivers.text import duration, headline, other_labels, says

MAX_SECTION = 2900
_MAX_SECTIONS = 8  # with the headline and the footer 10 blocks
_MAX_TOTAL = 11_000
_MAX_HEADER = 150
_MAX_TEXT = 1000
_MAX_FOOTER = 1500
_MAX_VALUE = 200
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


@dataclass(frozen=True, slots=True)
class Slack:
    """Posts to an incoming webhook."""

    http: Http
    url: Secret

    async def send(self, message: Message, context: Context) -> Outcome:
        """Raises Misconfigured."""
        body = json.dumps(payload(message, context)).encode()
        return await self.http.send(Request(self.url.line(), body, {"Content-Type": "application/json"}))


def payload(message: Message, context: Context) -> dict[str, Any]:
    """What is posted. `text` is what notifications show, and screen readers read."""
    head = headline(message, context)
    first = says(message.alerts[0])[:1] if len(message.alerts) == 1 else []
    blocks = [
        {"type": "header", "text": {"type": "plain_text", "text": _fit(head, _MAX_HEADER, escape=False)}},
        *({"type": "section", "text": {"type": "mrkdwn", "text": text}} for text in _sections(message.alerts)),
        {"type": "context", "elements": [{"type": "mrkdwn", "text": _fit(_footer(message, context), _MAX_FOOTER)}]},
    ]
    return {"text": _fit(": ".join([head, *first]), _MAX_TEXT), "blocks": blocks}


def _footer(message: Message, context: Context) -> str:
    return " · ".join(part for part in ("gpuagent", context.node, context.external_url, message.id) if part)


def _sections(alerts: tuple[Alert, ...]) -> list[str]:
    """One for each alert; if there are too many, the rest in one, a line for each."""
    whole = alerts if len(alerts) <= _MAX_SECTIONS else alerts[: _MAX_SECTIONS - 1]
    most = min(MAX_SECTION, _MAX_TOTAL // min(len(alerts), _MAX_SECTIONS) if alerts else MAX_SECTION)
    sections = [_section(alert, most) for alert in whole]
    rest = alerts[len(whole) :]
    if rest:
        sections.append(_lines(rest, most))
    return sections


def _section(alert: Alert, most: int) -> str:
    """What it is always stands; what it means is cut if it must be."""
    last = _fit(duration(alert), 200)
    labels = _fit(" ".join(f"`{_code(name, value)}`" for name, value in other_labels(alert).items()), most // 3)
    head = _head(alert, min(300, most // 4))
    fixed = "\n".join(part for part in (labels, last) if part)
    room = most - _length(head) - _length(fixed) - 2
    said = _fit("\n".join(says(alert)), max(room, 0))
    return "\n".join(part for part in (head, said, fixed) if part)


def _head(alert: Alert, most: int) -> str:
    severity = alert.labels.get("severity", "")
    return f"*{alert.status.upper()}* " + _fit(f"{alert.name} · {severity}" if severity else alert.name, most)


def _lines(alerts: tuple[Alert, ...], most: int) -> str:
    lines: list[str] = []
    left = most - 60  # for the last line
    for place, alert in enumerate(alerts):
        line = "• " + _head(alert, 100) + " " + _fit(", ".join(says(alert)[:1]), 120)
        if _length(line) + 1 > left:
            firing = sum(other.status is Status.FIRING for other in alerts[place:])
            lines.append(f"… and {len(alerts) - place} more, {firing} of them firing")
            break
        left -= _length(line) + 1
        lines.append(line)
    return "\n".join(lines)


def _code(name: str, value: str) -> str:
    value = value if len(value) <= _MAX_VALUE else value[: _MAX_VALUE - 1] + "…"
    return f"{name}={value}".replace("`", "'").replace("\n", " ")


def _fit(text: str, most: int, *, escape: bool = True) -> str:
    """Escape what Slack reads as marks for links and mentions, and cut to a length that splits no escape.

    https://docs.slack.dev/messaging/formatting-message-text#escaping
    """
    kept: list[str] = []
    length = fitting = 0
    for character in text:
        piece = _ESCAPES.get(character, character) if escape else character
        length += _length(piece)
        if length > most:
            return "".join(kept[:fitting]) + ("…" if most else "")
        kept.append(piece)
        if length < most:
            fitting = len(kept)
    return "".join(kept)


def _length(text: str) -> int:
    """As JavaScript counts it, where a character may count for two."""
    return len(text) + sum(character > "\uffff" for character in text)
