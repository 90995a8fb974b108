"""Alerts, for everybody to read; and what people do to them, on the control socket alone."""

from __future__ import annotations

import pwd
from collections.abc import Sequence
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gpuagent.core.units import MAX_SECONDS
from gpuagent_exporters.api.answers import Document, Handler, Refusal, answered, json_answer, json_body, not_found
from gpuagent_exporters.http.peers import peer_of


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


def read_routes(source: Alerts, *, show_commands: bool = True) -> Sequence[BaseRoute]:
    """Return the routes that any address may serve. Without `show_commands` they hold no text that may name anybody."""

    async def alerts(_: Request) -> Response:
        document = await source.alerts()
        return json_answer(document if show_commands else _without_names(document))

    return (Route("/api/v1/alerts", _answered(alerts), methods=["GET"]),)


def alert_routes(commands: AlertCommands) -> Sequence[BaseRoute]:
    """Routes beside those of `control`. The caller of a command is the peer of the socket, not what it says."""

    async def dead(_: Request) -> Response:
        return json_answer(await commands.dead())

    async def silence(request: Request) -> Response:
        body = await json_body(request, may_be_empty=False, allowed=("matchers", "seconds", "comment"))
        matchers = body.get("matchers")
        if not isinstance(matchers, list) or not all(isinstance(text, str) for text in matchers):
            raise ValueError("matchers must be a list of texts")
        matchers, comment = [_writable(text) for text in matchers], text_of(body, "comment")
        seconds = _seconds(body.get("seconds"))
        return json_answer(await commands.add_silence(matchers, seconds, comment, caller_of(request)), 201)

    async def expire(request: Request) -> Response:
        await json_body(request, allowed=())
        return json_answer(await commands.expire_silence(request.path_params["id"]))

    async def acknowledge(request: Request) -> Response:
        body = await json_body(request, may_be_empty=False, allowed=("alert", "comment"))
        which, comment = text_of(body, "alert"), text_of(body, "comment")
        return json_answer({"acknowledged": await commands.acknowledge(which, comment, caller_of(request))}, 201)

    async def unacknowledge(request: Request) -> Response:
        await json_body(request, allowed=())
        return json_answer({"removed": await commands.unacknowledge(request.path_params["alert"])})

    async def test(request: Request) -> Response:
        await json_body(request, allowed=())
        taken, words = await commands.test_receiver(request.path_params["name"])
        return json_answer({"taken": taken, "outcome": words}, 200 if taken else 502)

    async def replay(request: Request) -> Response:
        await json_body(request, allowed=())
        return json_answer({"replayed": await commands.replay(request.query_params.get("id"))})

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


def _without_names(document: Document) -> Document:
    """Return an alert with the labels of `/metrics` only, without its text, its owner and receivers' answers."""
    hidden: Document = {"annotations": {}, "end_reason": ""}
    alerts = [{**_hiding(alert, "acknowledged_by"), **hidden} for alert in document.get("alerts", ())]
    incidents = [{**_hiding(incident, "acknowledged_by"), "headline": ""} for incident in document.get("incidents", ())]
    silences = [{**silence, "comment": "", "creator": ""} for silence in document.get("silences", ())]
    receivers = [_hiding(receiver, "last", "off") for receiver in document.get("receivers", ())]
    heartbeats = [_hiding(heartbeat, "last") for heartbeat in document.get("heartbeats", ())]
    shown = {"alerts": alerts, "incidents": incidents, "silences": silences}
    return {**document, **shown, "receivers": receivers, "heartbeats": heartbeats}


def _hiding(row: Document, *keys: str) -> Document:
    """Return whether there is something to tell is seen, and not what."""
    return row | {key: "hidden" if row.get(key) else "" for key in keys}


def _answered(handler: Handler) -> Handler:
    return answered(handler, {KeyError: not_found, NotNow: _unavailable})


def _unavailable(error: NotNow) -> Refusal:
    return 503, {"error": "Service Unavailable", "message": str(error)}


def text_of(body: Document, key: str) -> str:
    """Return a text of a body, "" where it has none. Raises ValueError."""
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


def caller_of(request: Request) -> str:
    """Return the user at the other end of the socket."""
    peer = peer_of(request.scope)
    if peer is None:
        return "unknown"
    try:
        return pwd.getpwuid(peer.uid).pw_name
    except KeyError:
        return str(peer.uid)
