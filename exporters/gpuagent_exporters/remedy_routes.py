"""What was done to give memory back, for everybody to read; and killing by hand, on the control socket alone."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gpuagent_exporters.peers import peer_of

Document = dict[str, Any]

_HIDDEN = ("command", "user", "uid", "asked_by", "cgroup", "program", "labels")
"""What an address that everybody can reach does not tell."""


class NotDone(Exception):
    """What was asked for cannot be done, and why. `status` is that of HTTP."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class RemedySource(Protocol):
    """What was done, and what can be asked for; `gpuagent.acting.commands.RemedyCommands` is one."""

    async def remedies(self) -> Document:
        """Raises NotDone."""
        ...

    async def kill(self, pid: int, request: Mapping[str, Any], uid: int) -> Document:
        """Raises NotDone, and ValueError for a request that is none."""
        ...

    async def reset(self, uid: int) -> None:
        """Raises NotDone."""
        ...


def remedy_routes(source: RemedySource, *, show_commands: bool = True) -> Sequence[BaseRoute]:
    """The route that only reads."""

    async def remedies(_: Request) -> Response:
        document = await source.remedies()
        if not show_commands:
            runs = [{key: value for key, value in run.items() if key not in _HIDDEN} for run in document["remedies"]]
            document = {**document, "remedies": runs}
        return _json(document)

    return (Route("/api/v1/remedies", _answered(remedies), methods=["GET"]),)


def remedy_command_routes(source: RemedySource) -> Sequence[BaseRoute]:
    """For the control socket alone. The answer takes as long as the ladder does."""

    async def kill(request: Request) -> Response:
        body = await _body(request)
        return _json(await source.kill(request.path_params["pid"], body, _uid(request)))

    async def reset(request: Request) -> Response:
        await source.reset(_uid(request))
        return _json({"reset": True})

    return (
        Route("/api/v1/processes/{pid:int}/kill", _answered(kill), methods=["POST"]),
        Route("/api/v1/remedies/reset", _answered(reset), methods=["POST"]),
    )


Handler = Callable[[Request], Awaitable[Response]]


def _answered(handler: Handler) -> Handler:
    """What was wrong with a request is its answer."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except ValueError as error:
            return _json({"error": "Bad Request", "message": str(error)}, 400)
        except NotDone as error:
            return _json({"error": "not done", "message": str(error)}, error.status)

    return answer


def _uid(request: Request) -> int:
    """Whoever is at the other end of the socket, by the kernel's word."""
    peer = peer_of(request.scope)
    if peer is None:
        raise NotDone(403, "the kernel does not tell who asks")
    return peer.uid


def _json(content: Document, status: int = 200) -> Response:
    """In ASCII: a name may hold half of a surrogate pair, of which there is no UTF-8."""
    return Response(json.dumps(content), status, media_type="application/json")


async def _body(request: Request) -> Document:
    received = await request.body()
    try:
        body = json.loads(received or b"{}")
    except (ValueError, RecursionError):
        raise ValueError("the body is not JSON") from None
    if not isinstance(body, dict):
        raise ValueError("the body is not a JSON object")
    return body
