"""Apps with the embedded client: every door shows them, and only the control socket asks them to do something."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gpuagent_exporters.api.answers import PID, Document, Handler, Refusal, answered, json_answer, json_body, not_found

_HIDDEN: Document = {"user": "", "uid": None, "command": "", "events": []}
"""What an address that everybody can reach does not tell."""
_STATUS = {"absent": 404, "forbidden": 403, "busy": 409, "late": 504}
"""By the reason of a failed command; any other is the app's (502)."""


class CommandFailure(Exception):
    """What an app did not do: `reason` is one word, the text says why."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class ClientSource(Protocol):
    """What there is to tell of apps, and to ask of them; `gpuagent.clients.commands.ClientCommands` is one."""

    def clients(self) -> Document:
        """Return the apps that are connected, from memory."""
        ...

    async def command(self, pid: int, name: str, args: Mapping[str, Any]) -> Document:
        """Have an app do something. Raises KeyError (no such command), ValueError (bad arguments), CommandFailure."""
        ...


def client_routes(source: ClientSource, *, show_commands: bool = True) -> Sequence[BaseRoute]:
    """Return the route that only reads."""

    async def clients(_: Request) -> Response:
        document = source.clients()
        if not show_commands:
            document = document | {"clients": [client | _HIDDEN for client in document["clients"]]}
        return json_answer(document, allow_nan=False)

    return (Route("/api/v1/clients", clients, methods=["GET"]),)


def client_command_routes(source: ClientSource) -> Sequence[BaseRoute]:
    """For the control socket alone. The answer may take as long as the command does."""

    async def command(request: Request) -> Response:
        name, pid = request.path_params["command"], request.path_params["pid"]
        return json_answer(await source.command(pid, name, await json_body(request)), allow_nan=False)

    return (Route("/api/v1/clients/" + PID + "/{command}", _answered(command), methods=["POST"]),)


def _answered(handler: Handler) -> Handler:
    return answered(handler, {KeyError: not_found, CommandFailure: _refusal})


def _refusal(failure: CommandFailure) -> Refusal:
    body = {"error": "the app did not do it", "reason": failure.reason, "message": str(failure)}
    return _STATUS.get(failure.reason, 502), body
