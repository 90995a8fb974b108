"""What the page shows besides the status: the very documents that the same address serves as JSON.

Asking the address's own routes means that what is hidden there is hidden on the page too, and that the page shows
nothing that programs cannot have.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

Document = dict[str, Any]

logger = logging.getLogger(__name__)


class Documents:
    """The documents behind some routes, read without a request of their own."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self._routes = {
            route.path: route
            for route in routes
            if isinstance(route, Route) and "GET" in (route.methods or ()) and "{" not in route.path
        }
        self._last_fault: dict[str, str] = {}

    async def read(self, path: str, request: Request) -> Document | None:
        """Read a document; None where there is no such route, and `{"message": ...}` where it could not be read.

        A part that fails must not cost the page, so a fault becomes a value, and is logged when it is new.
        """
        route = self._routes.get(path)
        if route is None:
            return None
        try:
            response: Response = await route.endpoint(request)
            document: Document = json.loads(bytes(response.body))
        except Exception as fault:
            text = f"{type(fault).__name__}: {fault}"
            if self._last_fault.get(path) != text:
                logger.exception("the page could not read %s", path)
            self._last_fault[path] = text
            return {"message": "this is a fault of gpuagent; its log has the details"}
        self._last_fault.pop(path, None)
        return document
