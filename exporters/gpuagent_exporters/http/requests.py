"""What a request asks for: `Accept` and `Accept-Encoding` (RFC 9110), and arguments that no route may pass over.

Only as much as a metrics endpoint needs. What cannot be understood counts as not asked for, so that
nobody is ever refused: plain text is always an answer.

`POST .../kill?dry_run=true` must not end a process: whoever wrote that meant a dry run. So every request that may
change something is looked at here, before its route, also at a path that is added later.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from gpuagent_exporters.http.middleware import error_response

PLAIN_TEXT = "text/plain; version=0.0.4; charset=utf-8"
"""https://prometheus.io/docs/instrumenting/exposition_formats/"""
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
"""https://prometheus.io/docs/specs/om/open_metrics_spec/"""

_MAX_CHOICES = 32
"""Prometheus sends five; a header of 16 KiB full of commas shall not be an hour's work."""


class _Choice(NamedTuple):
    """One element of the header: a media range or a coding, with its parameters and its weight."""

    name: str
    parameters: dict[str, str]
    weight: float


def wants_openmetrics(accept: str) -> bool:
    """Return whether OpenMetrics 1.0 is liked at least as much as the plain text format.

    Prometheus 2.42 asks for `version=1.0.0` without a weight, 3.x with `escaping=allow-utf-8` and
    0.6; both also name 0.0.1, which is another format and not ours. A wildcard means plain text, as
    everywhere.
    """
    openmetrics = plain = 0.0
    for choice in _choices(accept):
        if choice.name == "application/openmetrics-text":
            if choice.parameters.get("version", "1.0.0").startswith("1."):
                openmetrics = max(openmetrics, choice.weight)
        elif choice.name in {"text/plain", "text/*", "*/*"}:
            plain = max(plain, choice.weight)
    return openmetrics > 0 and openmetrics >= plain


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether a gzip body is welcome. `gzip;q=0` is a refusal, and is stronger than `*`."""
    weights = {choice.name: choice.weight for choice in _choices(accept_encoding)}
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def _choices(header: str) -> list[_Choice]:
    return [_choice(element) for element in header.split(",", _MAX_CHOICES)[:_MAX_CHOICES]]


def _choice(element: str) -> _Choice:
    name, *rest = element.split(";")
    pairs = (part.partition("=") for part in rest)
    parameters = {key.strip().lower(): value.strip().strip('"') for key, _, value in pairs}
    return _Choice(name.strip().lower(), parameters, _weight(parameters.get("q", "1")))


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0.0 <= weight <= 1.0 else 0.0


_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
QUERY_ARGUMENTS: Final[Mapping[tuple[str, str], frozenset[str]]] = {
    ("POST", "/api/v1/pause"): frozenset({"seconds"}),
    ("POST", "/api/v1/receivers/replay"): frozenset({"id"}),
}
"""By method and path. All other commands take their arguments in the body, if they take any."""


class CheckQuery:
    """Answers 400 to a command with arguments in its query that it does not take there."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = _refusal(scope) if scope["type"] == "http" else ""
        if refusal:
            await error_response(HTTPStatus.BAD_REQUEST, refusal)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _is_routed(scope: Scope) -> bool:
    return any(route.matches(scope)[0] is Match.FULL for route in scope["app"].routes)


def _refusal(scope: Scope) -> str:
    """Return why this query is not taken; "" if it is. A key that is there twice says two things."""
    if scope["method"] in _READS or not _is_routed(scope):  # where there is no such command, that is the answer
        return ""
    allowed = QUERY_ARGUMENTS.get((scope["method"], scope["path"]), frozenset())
    names = [name for name, _ in parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)]
    if unknown := sorted(set(names) - allowed):
        there_is = f"allowed in the query: {', '.join(sorted(allowed))}" if allowed else "the query takes none"
        shown = ", ".join(repr(name[:50]) for name in unknown[:5])
        return f"unknown arguments in the query: {shown}; {there_is}. Arguments go in the body, as JSON."
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        return f"{', '.join(doubled)}: given more than once"
    return ""
