"""Commands to the agent, on the control socket alone: who may connect there may command."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from gpuagent_exporters.api.alert_routes import caller_of
from gpuagent_exporters.api.answers import answered, json_body
from gpuagent_exporters.http.middleware import error_response

_LONGEST_PAUSE_SECONDS = 24 * 3600.0


class Commands(Protocol):
    """What the service can be told."""

    @property
    def notes(self) -> list[str]:
        """Notes on the configuration that was read last."""
        ...

    @property
    def released(self) -> bool:
        """Nothing of the driver is held."""
        ...

    def pause(self, seconds: float, by: str) -> None:
        """Give the GPUs back to the driver for a while; `by` is the user who asked."""
        ...

    def resume(self) -> None:
        """Measure again."""
        ...

    async def reload(self) -> str:
        """Read the configuration again; returns what is wrong with it, "" if nothing is."""
        ...


def control_routes(commands: Commands) -> Sequence[BaseRoute]:
    """Routes beside the read-only ones."""

    async def pause(request: Request) -> Response:
        if request.method != "POST":
            return JSONResponse({"released": commands.released})
        await json_body(request, allowed=())
        try:
            seconds = float(request.query_params.get("seconds", ""))
        except ValueError:
            seconds = 0.0
        if not 0 < seconds <= _LONGEST_PAUSE_SECONDS:
            text = f"seconds must be a number above 0, at most {_LONGEST_PAUSE_SECONDS:.0f}"
            return error_response(HTTPStatus.BAD_REQUEST, text)
        commands.pause(seconds, await caller_of(request))
        return JSONResponse({"paused_seconds": seconds, "released": commands.released})

    async def resume(request: Request) -> Response:
        await json_body(request, allowed=())
        commands.resume()
        return JSONResponse({"resumed": True})

    async def reload(request: Request) -> Response:
        await json_body(request, allowed=())
        fault = await commands.reload()
        if fault:
            return JSONResponse({"reloaded": False, "error": fault}, 409)
        return JSONResponse({"reloaded": True, "error": "", "notes": commands.notes})

    return (
        # One route for both: of two with one path, a 405 would name the methods of the first alone.
        Route("/api/v1/pause", answered(pause, {}), methods=["GET", "POST"]),
        Route("/api/v1/resume", answered(resume, {}), methods=["POST"]),
        Route("/api/v1/reload", answered(reload, {}), methods=["POST"]),
    )
