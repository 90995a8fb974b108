"""`/api/v1/openapi.json`: what the API has, for programs that make clients and tests of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

PATH = "/api/v1/openapi.json"


def openapi_routes() -> Sequence[BaseRoute]:
    """The route. The description is made when somebody asks, which hardly anybody does: no agent carries it around."""

    async def openapi(_: Request) -> Response:
        return Response(await asyncio.to_thread(_render), media_type="application/json")

    return (Route(PATH, openapi, methods=["GET"]),)


def _render() -> bytes:
    from gpuagent_exporters.openapi.document import render  # noqa: PLC0415  see above

    return render().encode()
