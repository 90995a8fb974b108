"""The route behind `gpuagent usage`: who has used the GPUs. It tells no more of anybody than `/metrics` does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gpuagent.core.units import parse_duration
from gpuagent.core.usage import LONGEST_SUMMARY_SECONDS
from gpuagent_exporters.api.alert_routes import NotNow
from gpuagent_exporters.api.answers import Document, Refusal, answered, json_answer

_DEFAULT_BY, _DEFAULT_SINCE = "user", "7d"


class UsageSource(Protocol):
    """What there is to tell of usage; `gpuagent.service.usage.UsageCommands` is one."""

    async def usage(self, by: str, since_seconds: float) -> Document:
        """Return the summary. Raises ValueError for a grouping that there is none of, and NotNow."""
        ...


def usage_routes(source: UsageSource) -> Sequence[BaseRoute]:
    """Return the route that only reads."""

    async def usage(request: Request) -> Response:
        since = parse_duration(request.query_params.get("since", _DEFAULT_SINCE))
        if not 0 < since <= LONGEST_SUMMARY_SECONDS:
            raise ValueError("since must be a duration above 0, at most 400d")
        return json_answer(await source.usage(request.query_params.get("by", _DEFAULT_BY), since))

    return (Route("/api/v1/usage", answered(usage, {NotNow: _unavailable}), methods=["GET"]),)


def _unavailable(error: NotNow) -> Refusal:
    return 503, {"error": "not now", "message": str(error)}
