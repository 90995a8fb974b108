"""The HTTP API as an OpenAPI 3.1 document, for programs that make clients and tests of it.

`openapi.yaml` beside this module is written by hand; `/api/v1/openapi.json` serves it. Where it says `{process labels}`
the labels of `gpuagent.core.process_labels` are filled in. Run
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

from gpuagent.core.process_labels import ORIGIN_LABELS

PATH = "/api/v1/openapi.json"
_LABELS = "{process labels}"
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
    for schema in read["components"]["schemas"].values():
        _fill_in_labels(schema)
    return read


def _fill_in_labels(schema: dict[str, Any]) -> None:
    """Put the labels of processes into the place that a schema keeps for them."""
    if _LABELS not in schema.get("properties", ()):
        return
    labels = {
        label.document_key: {"type": "string"} | ({"description": label.help} if label.help else {})
        for label in ORIGIN_LABELS
    }
    properties: dict[str, Any] = {}
    for name, value in schema["properties"].items():
        properties |= labels if name == _LABELS else {name: value}
    schema["properties"] = properties
    place = schema["required"].index(_LABELS)
    schema["required"][place : place + 1] = labels


@cache
def render() -> str:
    """Return the description as a file of JSON."""
    return json.dumps(document(), indent=1, ensure_ascii=True) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
