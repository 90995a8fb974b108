"""Processes: the apps with the client, what remedies did to a process, and what a person can ask for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gpuagent_exporters.api.answers import PID, Document, Handler, Refusal, answered, json_answer, json_body, not_found
from gpuagent_exporters.http.peers import peer_of

_TOLD_RUN = frozenset({
    "id", "time_seconds", "alertname", "fingerprint", "value", "values", "victim", "forced", "dry_run", "scope",
    "ladder", "waits_seconds", "pid", "name", "unit", "container_id", "container_name", "gpu", "gpu_uuid", "used_bytes",
})  # fmt: skip
_TOLD_STEP = frozenset({"time_seconds", "kind", "step", "disrupts", "dry_run", "used_bytes", "note", "ok", "errno"})
_TOLD_END = frozenset({"time_seconds", "result", "acted", "released_bytes", "seconds", "not_permitted"})
_TOLD_WITHHELD = frozenset({"fingerprint", "alertname", "since_seconds"})
"""What an address that everybody can reach tells: of a process what `/metrics` tells too, and no words of others.

A list of what is told, so that a key which is added later stays on the control socket until somebody decides.
"""


class NotDone(Exception):
    """What was asked for cannot be done, and why. `status` is that of HTTP."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class RemedySource(Protocol):
    """What was done, and what can be asked for; `gpuagent.service.remedies.RemedyCommands` is one."""

    async def remedies(self) -> Document:
        """Return the document of remedies. Raise NotDone."""
        ...

    async def identified(self) -> Document:
        """Return the GPU processes with what tells each from every other process."""
        ...

    async def kill(self, pid: int, request: Mapping[str, Any], uid: int) -> Document:
        """End a process. Raise NotDone, and ValueError for an invalid request."""
        ...

    async def release(self, pid: int, request: Mapping[str, Any], uid: int) -> Document:
        """Have an app empty its cache, by the same checks. Raises as `kill` does."""
        ...

    async def unload(self, pid: int, request: Mapping[str, Any], uid: int) -> Document:
        """Have an app unload what it registered for this. Raises as `kill` does."""
        ...

    async def stop(self, uid: int) -> str:
        """End all that rules do; return why that is not on record, "" if it is."""
        ...

    async def lift(self, uid: int) -> tuple[list[str], list[str]]:
        """Lift all memory limits that remedies have set; return what was lifted, and what was not. Raises NotDone."""
        ...

    async def reset(self, uid: int) -> None:
        """Let remedies go on. Raises NotDone."""
        ...


async def readable_remedies(source: RemedySource, *, show_commands: bool = True) -> Document:
    """Return the document of remedies. Raise NotDone.

    Without `show_commands` it says no more of a process than `/metrics` does.
    """
    document = await source.remedies()
    if show_commands:
        return document
    return {
        **document,
        "stopped_by": "",
        "limits": [],
        "left_alone": [],
        "withheld": [_only(each, _TOLD_WITHHELD) for each in document["withheld"]],
        "remedies": [_public(run) for run in document["remedies"]],
    }


def remedy_routes(source: RemedySource, *, show_commands: bool = True) -> Sequence[BaseRoute]:
    """Return the route that only reads."""

    async def remedies(_: Request) -> Response:
        return json_answer(await readable_remedies(source, show_commands=show_commands))

    return (Route("/api/v1/remedies", _remedy_answered(remedies), methods=["GET"]),)


def remedy_command_routes(source: RemedySource) -> Sequence[BaseRoute]:
    """For the control socket alone, and ahead of the routes of clients. The answer takes as long as the ladder does."""

    def acting(act: Callable[[int, Mapping[str, Any], int], Awaitable[Document]]) -> Handler:
        async def handle(request: Request) -> Response:
            body = await json_body(request)
            return json_answer(await act(request.path_params["pid"], body, _uid(request)))

        return _remedy_answered(handle)

    async def on_record(request: Request) -> Response:
        """Return the record of one process: a client that follows a kill asks each second."""
        document, pid = await source.remedies(), request.path_params["pid"]
        return json_answer({**document, "remedies": [run for run in document["remedies"] if run["pid"] == pid]})

    async def identified(_: Request) -> Response:
        """Return what a person is shown and sends back with a request: on the control socket only, like requests."""
        return json_answer(await source.identified())

    async def lift(request: Request) -> Response:
        await json_body(request, allowed=())
        lifted, failed = await source.lift(_uid(request))
        return json_answer({"lifted": lifted, "failed": failed})

    async def stop(request: Request) -> Response:
        await json_body(request, allowed=())
        why = await source.stop(_uid(request))
        return json_answer({"stopped": True, "recorded": not why, "message": why})

    async def reset(request: Request) -> Response:
        await json_body(request, allowed=())
        await source.reset(_uid(request))
        return json_answer({"reset": True})

    return (
        Route("/api/v1/processes/identified", _remedy_answered(identified), methods=["GET"]),
        Route(f"/api/v1/processes/{PID}/remedies", _remedy_answered(on_record), methods=["GET"]),
        Route(f"/api/v1/processes/{PID}/kill", acting(source.kill), methods=["POST"]),
        # What is asked of an app to give memory back is a remedy: there is no way past the refusals and the record.
        Route(f"/api/v1/clients/{PID}/release", acting(source.release), methods=["POST"]),
        Route(f"/api/v1/clients/{PID}/reset", acting(source.unload), methods=["POST"]),
        Route("/api/v1/remedies/lift", _remedy_answered(lift), methods=["POST"]),
        Route("/api/v1/remedies/stop", _remedy_answered(stop), methods=["POST"]),
        Route("/api/v1/remedies/reset", _remedy_answered(reset), methods=["POST"]),
    )


def _public(run: Document) -> Document:
    shown = _only(run, _TOLD_RUN) | {"steps": [_only(step, _TOLD_STEP) for step in run["steps"]]}
    return shown | {"end": _only(run["end"], _TOLD_END)} if "end" in run else shown


def _only(row: Mapping[str, Any], told: frozenset[str]) -> Document:
    return {key: value for key, value in row.items() if key in told}


def _remedy_answered(handler: Handler) -> Handler:
    return answered(handler, {NotDone: _remedy_refusal})


def _remedy_refusal(error: NotDone) -> Refusal:
    return error.status, {"error": "not done", "message": str(error)}


def _uid(request: Request) -> int:
    """Whoever is at the other end of the socket, by the kernel's word."""
    peer = peer_of(request.scope)
    if peer is None:
        raise NotDone(403, "the kernel does not tell who asks")
    return peer.uid


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
