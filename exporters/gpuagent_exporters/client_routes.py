"""Apps with the embedded client: every door shows them, and only the control socket asks them to do something."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

Document = dict[str, Any]

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
        """The apps that are connected, from memory."""
        ...

    async def command(self, pid: int, name: str, args: Mapping[str, Any]) -> Document:
        """Have an app do something. Raises KeyError (no such command), ValueError (bad arguments), CommandFailure."""
        ...


def client_routes(source: ClientSource, *, show_commands: bool = True) -> Sequence[BaseRoute]:
    """The route that only reads."""

    async def clients(_: Request) -> Response:
        document = source.clients()
        if not show_commands:
            document = document | {"clients": [client | _HIDDEN for client in document["clients"]]}
        return _json(document)

    return (Route("/api/v1/clients", clients, methods=["GET"]),)


def client_command_routes(source: ClientSource) -> Sequence[BaseRoute]:
    """For the control socket alone. The answer may take as long as the command does."""

    async def command(request: Request) -> Response:
        name, pid = request.path_params["command"], request.path_params["pid"]
        return _json(await source.command(pid, name, await _body(request)))

    return (Route("/api/v1/clients/{pid:int}/{command}", _answered(command), methods=["POST"]),)


Handler = Callable[[Request], Awaitable[Response]]


def _answered(handler: Handler) -> Handler:
    """What was wrong with a request, or with the app, is the answer."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except KeyError as error:
            return _json({"error": "Not Found", "message": str(error.args[0])}, 404)
        except ValueError as error:
            return _json({"error": "Bad Request", "message": str(error)}, 400)
        except CommandFailure as failure:
            body = {"error": "the app did not do it", "reason": failure.reason, "message": str(failure)}
            return _json(body, _STATUS.get(failure.reason, 502))

    return answer


def _json(content: Document, status: int = 200) -> Response:
    """In ASCII: what an app says may hold half of a surrogate pair, of which there is no UTF-8."""
    return Response(json.dumps(content, allow_nan=False), status, media_type="application/json")


async def _body(request: Request) -> Document:
    """The arguments; no body is none."""
    received = await request.body()
    if not received:
        return {}
    try:
        body = json.loads(received)
    except (ValueError, RecursionError):
        raise ValueError("the body is not JSON") from None
    if not isinstance(body, dict):
        raise ValueError("the body is not a JSON object")
    return body
