"""Keeps addresses and secrets out of texts. The whole URL of a Slack or heartbeat receiver is a password."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

HIDDEN = "<hidden>"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")
_SHORTEST = 4
"""Of a piece that is hidden wherever it stands; shorter ones are words such as `v2`."""


def pieces(secret: str) -> set[str]:
    """A secret, and the parts of it that would give it away: of a URL its host, path, query and what is in them."""
    found = {secret}
    try:
        parts = urlsplit(secret)
        found |= {parts.netloc, parts.hostname or "", parts.username or "", parts.password or ""}
        found |= {parts.path, parts.query, *re.split(r"[/&=?]", f"{parts.path}&{parts.query}")}
    except ValueError:
        pass
    found |= {unquote(piece) for piece in found}
    return {piece for piece in found if len(piece) >= _SHORTEST}


def redact(text: str, secrets: Iterable[str]) -> str:
    """The text on one line, without these secrets, their parts, and whatever looks like a URL."""
    hidden = {piece for secret in secrets for piece in pieces(secret)}
    for piece in sorted(hidden, key=len, reverse=True):
        text = text.replace(piece, HIDDEN)
    text = _URL.sub(HIDDEN, text)
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
