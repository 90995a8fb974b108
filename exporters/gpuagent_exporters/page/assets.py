"""The files that the page loads: style and scripts, all from the wheel. Nothing comes from elsewhere.

They are few and small, so they stay in memory. A browser asks each time whether its copy is still the one (ETag), so
that after an upgrade page and scripts are of one version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

_MEDIA_TYPES = {
    "hover.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "morph.js": "text/javascript",
    "page.css": "text/css",
    "page.js": "text/javascript",
    "view.js": "text/javascript",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as it is sent."""

    body: bytes
    media_type: str
    etag: str


_FOLDER = Path(__file__).with_name("assets")


def _load(name: str, media_type: str) -> Asset:
    body = _FOLDER.joinpath(name).read_bytes()
    return Asset(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


ASSETS = {name: _load(name, media_type) for name, media_type in _MEDIA_TYPES.items()}


def asset_routes() -> Sequence[BaseRoute]:
    """`/assets/NAME`."""

    async def asset(request: Request) -> Response:
        found = ASSETS.get(request.path_params["name"])
        if found is None:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        headers = {"etag": found.etag, "cache-control": "no-cache"}
        if found.etag in request.headers.get("if-none-match", ""):  # gzip in between makes it weak: W/"..."
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        return Response(found.body, media_type=found.media_type, headers=headers)

    return (Route("/assets/{name}", asset, methods=["GET"]),)
