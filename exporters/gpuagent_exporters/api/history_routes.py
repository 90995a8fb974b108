"""The points of the page's charts: everything once, then what is new since."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gpuagent_exporters.http.middleware import error_response

TOP = 6
"""Lines that a person can still tell apart in one chart."""
MOST = 16
"""Of each GPU: an hour of many more would hold up the loop for too long."""


class Points(Protocol):
    """What was measured in the last hour; `gpuagent.history.History` is one."""

    def document(self, since: str = "", top: int = TOP) -> Mapping[str, Any]:
        """Everything, or what came after a cursor; lines for the `top` processes of each GPU.

        Raises ValueError for a cursor that was never given.
        """
        ...


class HistorySource(Protocol):
    """Who has the points; `gpuagent.view.View` is one."""

    @property
    def history(self) -> Points: ...


def history_routes(source: HistorySource) -> Sequence[BaseRoute]:
    """`/api/v1/history?since=CURSOR&top=N`. It names processes, never users or commands."""
    asking = asyncio.Lock()

    async def history(request: Request) -> Response:
        query = request.query_params
        async with asking:  # one at a time, then the loop's turn: a crowd of browsers must not delay a tick
            try:
                document = source.history.document(query.get("since", ""), _top(query.get("top", str(TOP))))
            except ValueError as error:
                return error_response(HTTPStatus.BAD_REQUEST, str(error))
            body = json.dumps(document, allow_nan=False, separators=(",", ":")) + "\n"
            await asyncio.sleep(0)
        return Response(body, media_type="application/json")

    return (Route("/api/v1/history", history, methods=["GET"]),)


def _top(text: str) -> int:
    plain = text.isascii() and text.isdigit() and len(text) <= 3
    if not plain or int(text) > MOST:
        raise ValueError(f"top must be a whole number from 0 to {MOST}")
    return int(text)
