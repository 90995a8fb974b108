"""Alerts, for everybody to read; and what people do to them, on the control socket alone."""

from __future__ import annotations

import json
import pwd
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gpuagent.units import MAX_SECONDS
from gpuagent_exporters.peers import peer_of

Document = dict[str, Any]


class NotNow(Exception):
    """What was asked for cannot be done for now, and why."""


class AlertCommands(Protocol):
    """What can be asked and done; `gpuagent.alerting.commands.AlertCommands` is one.

    ValueError, KeyError and NotNow are answers, with words for the person who asked.
    """

    async def alerts(self) -> Document: ...

    async def dead(self) -> Document: ...

    async def add_silence(self, matchers: Sequence[str], seconds: float, comment: str, creator: str) -> Document: ...

    async def expire_silence(self, silence_id: str) -> Document: ...

    async def acknowledge(self, which: str, comment: str, creator: str) -> list[str]: ...

    async def unacknowledge(self, which: str) -> list[str]: ...

    async def test_receiver(self, name: str) -> tuple[bool, str]: ...

    async def replay(self, letter_id: str | None) -> int: ...


class Alerts(Protocol):
    """What there is to read."""

    async def alerts(self) -> Document: ...


def read_routes(source: Alerts) -> Sequence[BaseRoute]:
    """What any address may serve: the same document everywhere."""

    async def alerts(_: Request) -> Response:
        return _json(await source.alerts())

    return (Route("/api/v1/alerts", _answered(alerts), methods=["GET"]),)


def alert_routes(commands: AlertCommands) -> Sequence[BaseRoute]:
    """Routes beside those of `control`. The caller of a command is the peer of the socket, not what it says."""

    async def dead(_: Request) -> Response:
        return _json(await commands.dead())

    async def silence(request: Request) -> Response:
        body = await _body(request)
        matchers = body.get("matchers")
        if not isinstance(matchers, list) or not all(isinstance(text, str) for text in matchers):
            raise ValueError("matchers must be a list of texts")
        matchers, comment = [_writable(text) for text in matchers], _text(body, "comment")
        seconds = _seconds(body.get("seconds"))
        return _json(await commands.add_silence(matchers, seconds, comment, _caller(request)), 201)

    async def expire(request: Request) -> Response:
        return _json(await commands.expire_silence(request.path_params["id"]))

    async def acknowledge(request: Request) -> Response:
        body = await _body(request)
        which, comment = _text(body, "alert"), _text(body, "comment")
        return _json({"acknowledged": await commands.acknowledge(which, comment, _caller(request))}, 201)

    async def unacknowledge(request: Request) -> Response:
        return _json({"removed": await commands.unacknowledge(request.path_params["alert"])})

    async def test(request: Request) -> Response:
        taken, words = await commands.test_receiver(request.path_params["name"])
        return _json({"taken": taken, "outcome": words}, 200 if taken else 502)

    async def replay(request: Request) -> Response:
        return _json({"replayed": await commands.replay(request.query_params.get("id"))})

    return (
        *read_routes(commands),
        Route("/api/v1/alerts/dead", _answered(dead), methods=["GET"]),
        Route("/api/v1/silences", _answered(silence), methods=["POST"]),
        Route("/api/v1/silences/{id}", _answered(expire), methods=["DELETE"]),
        Route("/api/v1/acks", _answered(acknowledge), methods=["POST"]),
        Route("/api/v1/acks/{alert:path}", _answered(unacknowledge), methods=["DELETE"]),
        Route("/api/v1/receivers/replay", _answered(replay), methods=["POST"]),
        Route("/api/v1/receivers/{name:path}/test", _answered(test), methods=["POST"]),
    )


Handler = Callable[[Request], Awaitable[Response]]


def _answered(handler: Handler) -> Handler:
    """What was wrong with a request is its answer."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except KeyError as error:
            return _json({"error": "Not Found", "message": str(error.args[0])}, 404)
        except ValueError as error:
            return _json({"error": "Bad Request", "message": str(error)}, 400)
        except NotNow as error:
            return _json({"error": "Service Unavailable", "message": str(error)}, 503)

    return answer


def _json(content: Document, status: int = 200) -> Response:
    """In ASCII: a label may hold half of a surrogate pair, of which there is no UTF-8."""
    return Response(json.dumps(content), status, media_type="application/json")


async def _body(request: Request) -> Document:
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise ValueError("the body is not JSON") from None
    if not isinstance(body, dict):
        raise ValueError("the body is not a JSON object")
    return body


def _text(body: Document, key: str) -> str:
    text = body.get(key, "")
    if not isinstance(text, str):
        raise ValueError(f"{key} must be a text")
    return _writable(text)


def _writable(text: str) -> str:
    """JSON may hold half of a surrogate pair, which can neither be stored nor sent."""
    return text.encode("utf-8", "replace").decode()


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_SECONDS:
        raise ValueError("seconds must be a number above 0, below 292 years")
    return float(value)


def _caller(request: Request) -> str:
    """The user at the other end of the socket."""
    peer = peer_of(request.scope)
    if peer is None:
        return "unknown"
    try:
        return pwd.getpwuid(peer.uid).pw_name
    except KeyError:
        return str(peer.uid)
