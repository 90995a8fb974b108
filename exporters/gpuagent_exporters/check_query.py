"""Arguments of commands: those in the query, which no route may pass over in silence.

`POST .../kill?dry_run=true` must not end a process: whoever wrote that meant a dry run. So every request that may
change something is looked at here, before its route, also at a path that is added later.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl

from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from gpuagent_exporters.guards import error_response

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
