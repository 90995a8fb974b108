"""What was done to give memory back, for everybody to read; and killing by hand, on the control socket alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gpuagent_exporters.answers import Document, Handler, Refusal, answered, json_answer, json_body
from gpuagent_exporters.peers import peer_of

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
        return json_answer(document)

    return (Route("/api/v1/remedies", _answered(remedies), methods=["GET"]),)


def remedy_command_routes(source: RemedySource) -> Sequence[BaseRoute]:
    """For the control socket alone. The answer takes as long as the ladder does."""

    async def kill(request: Request) -> Response:
        body = await json_body(request)
        return json_answer(await source.kill(request.path_params["pid"], body, _uid(request)))

    async def reset(request: Request) -> Response:
        await source.reset(_uid(request))
        return json_answer({"reset": True})

    return (
        Route("/api/v1/processes/{pid:int}/kill", _answered(kill), methods=["POST"]),
        Route("/api/v1/remedies/reset", _answered(reset), methods=["POST"]),
    )


def _answered(handler: Handler) -> Handler:
    return answered(handler, {NotDone: _refusal})


def _refusal(error: NotDone) -> Refusal:
    return error.status, {"error": "not done", "message": str(error)}


def _uid(request: Request) -> int:
    """Whoever is at the other end of the socket, by the kernel's word."""
    peer = peer_of(request.scope)
    if peer is None:
        raise NotDone(403, "the kernel does not tell who asks")
    return peer.uid
