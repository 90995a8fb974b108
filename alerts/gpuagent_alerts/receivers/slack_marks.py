"""Text in Slack's mark-up: escaped, cut to a length, with links and dates in the reader's own time.

https://docs.slack.dev/messaging/formatting-message-text
"""

from __future__ import annotations

import re
from urllib.parse import quote

from gpuagent_alerts.receivers.text import when

_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
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


def code(text: str, most: int) -> str:
    """Return text as code: nothing in it ends the mark."""
    return f"`{fit(text.replace('`', chr(39)).replace(chr(10), ' '), most)}`"


def date(unix_seconds: float) -> str:
    """Return a time that Slack shows in the reader's own zone, and old clients in UTC."""
    seconds = int(min(max(unix_seconds, 0.0), _LATEST))
    return f"<!date^{seconds}^{{date_short_pretty}} {{time}}|{when(seconds)}>"


def link(url: str, name: str) -> str:
    """Return a link; the name alone where the URL is none that Slack takes."""
    safe = quote(url, safe=":/?#[]@!$&'()*+,;=%-._~")
    if not _WEB.match(safe) or len(safe) > _MAX_URL:
        return fit(name, 50)
    return f"<{safe.replace('&', '&amp;')}|{fit(name, 50)}>"
