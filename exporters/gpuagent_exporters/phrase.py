"""What an HTTP status is called: the same words under every Python."""

from __future__ import annotations

from http import HTTPStatus

_RENAMED = {HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "Content Too Large"}
"""Python 3.13 took over the names of RFC 9110 (https://docs.python.org/3/library/http.html#http-status-codes)."""


def phrase_of(status: int) -> str:
    """As RFC 9110 has it. Raises ValueError for a number that is no status."""
    return _RENAMED.get(HTTPStatus(status), HTTPStatus(status).phrase)
