"""The HTTP API as an OpenAPI 3.1 document, for programs that make clients and tests of it.

`openapi.yaml` beside this module is written by hand; `/api/v1/openapi.json` serves it. Run
`python -m gpuagent_exporters.api.openapi > docs/openapi.json` after a change of it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

PATH = "/api/v1/openapi.json"
_FILE = Path(__file__).with_name("openapi.yaml")


def openapi_routes() -> Sequence[BaseRoute]:
    """Return the route. The description is read when somebody asks, which hardly anybody does."""

    async def openapi(_: Request) -> Response:
        return Response(await asyncio.to_thread(render), media_type="application/json")

    return (Route(PATH, openapi, methods=["GET"]),)


def document() -> dict[str, Any]:
    """Return the description, JSON-ready."""
    import yaml  # noqa: PLC0415  no agent carries the parser around for this

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # four times as fast, where it was built
    read: dict[str, Any] = yaml.load(_FILE.read_bytes(), loader)  # noqa: S506  both of them are safe
    return read


@cache
def render() -> str:
    """Return the description as a file of JSON."""
    return json.dumps(document(), indent=1, ensure_ascii=True) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
