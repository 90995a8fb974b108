"""Alerts and the evidence of leaks, for everybody to read; what people do about them, on the control socket alone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Final, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gpuagent.core.accounts import user_name
from gpuagent.core.plot.drawing import to_svg
from gpuagent.core.plot.evidence import plot_of_evidence
from gpuagent.core.plot.memory_plot import draw
from gpuagent.core.units import MAX_SECONDS
from gpuagent_exporters.api.answers import PID, Document, Handler, Refusal, answered, json_answer, json_body, not_found
from gpuagent_exporters.http.peers import peer_of


class NotNow(Exception):
    """What was asked for cannot be done for now, and why."""


class AlertSource(Protocol):
    """What can be asked and done; `gpuagent.service.alert_commands.AlertCommands` is one.

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


async def readable_alerts(source: Alerts, *, show_commands: bool = True) -> Document:
    """Return the document of alerts; without `show_commands` it holds no text that may name anybody. Raise NotNow."""
    document = await source.alerts()
    return document if show_commands else _without_names(document)


def read_routes(source: Alerts, *, show_commands: bool = True) -> Sequence[BaseRoute]:
    """Return the routes that any address may serve."""

    async def alerts(_: Request) -> Response:
        return json_answer(await readable_alerts(source, show_commands=show_commands))

    return (Route("/api/v1/alerts", _answered(alerts), methods=["GET"]),)


def alert_routes(commands: AlertSource) -> Sequence[BaseRoute]:
    """Routes beside those of `control`. The caller of a command is the peer of the socket, not what it says."""

    async def dead(_: Request) -> Response:
        return json_answer(await commands.dead())

    async def silence(request: Request) -> Response:
        body = await json_body(request, may_be_empty=False, allowed=("matchers", "seconds", "comment"))
        matchers = body.get("matchers")
        if not isinstance(matchers, list) or not all(isinstance(text, str) for text in matchers):
            raise ValueError("matchers must be a list of texts")
        matchers, comment = [_writable(text) for text in matchers], text_of(body, "comment")
        seconds, creator = _seconds(body.get("seconds")), await caller_of(request)
        return json_answer(await commands.add_silence(matchers, seconds, comment, creator), 201)

    async def expire(request: Request) -> Response:
        await json_body(request, allowed=())
        return json_answer(await commands.expire_silence(request.path_params["id"]))

    async def acknowledge(request: Request) -> Response:
        body = await json_body(request, may_be_empty=False, allowed=("alert", "comment"))
        which, comment = text_of(body, "alert"), text_of(body, "comment")
        done = await commands.acknowledge(which, comment, await caller_of(request))
        return json_answer({"acknowledged": done}, 201)

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
    incidents = [
        {
            **_hiding(incident, "acknowledged_by"),
            "headline": "",
            "timeline": [_hiding(event, "by") for event in incident.get("timeline", ())],
        }
        for incident in document.get("incidents", ())
    ]
    silences = [{**silence, "comment": "", "creator": ""} for silence in document.get("silences", ())]
    receivers = [_hiding(receiver, "last", "off") for receiver in document.get("receivers", ())]
    heartbeats = [_hiding(heartbeat, "last") for heartbeat in document.get("heartbeats", ())]
    shown = {"alerts": alerts, "incidents": incidents, "silences": silences}
    return {**document, **shown, "receivers": receivers, "heartbeats": heartbeats}


def _hiding(row: Document, *keys: str) -> Document:
    """Replace the values of these keys by `hidden`: a reader sees that there is a value, and not which."""
    return row | {key: "hidden" if row.get(key) else "" for key in keys}


def _answered(handler: Handler) -> Handler:
    return answered(handler, {KeyError: not_found, NotNow: _unavailable})


def _unavailable(error: NotNow | NotKept) -> Refusal:
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


async def caller_of(request: Request) -> str:
    """Return the user at the other end of the socket: the uid where the name is not known."""
    peer = peer_of(request.scope)
    if peer is None:
        return "unknown"
    return await user_name(peer.uid) or str(peer.uid)


LABELS: Final = ("false", "true")
"""Whether the alarm was a false one, or a true leak."""
_ENTRY = "{entry}"
_GPU = re.compile(r"[\w:./-]{1,80}", re.ASCII)
_HIDDEN: Document = {"user": ""}
"""What an address that everybody can reach does not tell of a process."""
_HIDDEN_FEEDBACK: Document = {"user": "", "note": "", "by": ""}


class NotKept(Exception):
    """What was told cannot be kept, and why."""


class LeakSource(Protocol):
    """What there is to tell. KeyError and ValueError are answers.

    `gpuagent.service.leak_commands.LeakCommands` is one.
    """

    def explain(self, pid: int, gpu: str) -> Document: ...

    async def traces(self, pid: int | None, gpu: str) -> Document: ...

    async def feedback(self) -> Document: ...

    async def feedback_entry(self, entry_id: str) -> Document: ...

    async def add_feedback(self, pid: int, gpu: str, label: str, note: str, creator: str) -> Document:
        """Add an entry, or raise NotKept."""
        ...

    async def remove_feedback(self, entry_id: str) -> None:
        """Remove an entry, or raise NotKept."""
        ...


class _Reading:
    """What only reads. One answer at a time, then the loop's turn: a crowd that asks must not delay a tick."""

    def __init__(self, source: LeakSource, *, show_commands: bool) -> None:
        self._source = source
        self._hides = not show_commands
        self._asking = asyncio.Lock()

    async def explain(self, request: Request) -> Response:
        async with self._asking:
            answer = json_answer(self._evidence(request), allow_nan=False)
            await asyncio.sleep(0)
        return answer

    async def plot(self, request: Request) -> Response:
        async with self._asking:
            drawing = draw([plot_of_evidence(self._evidence(request))])
            await asyncio.sleep(0)
        return Response(to_svg(drawing), media_type="image/svg+xml")

    def _evidence(self, request: Request) -> Document:
        document = self._source.explain(request.path_params["pid"], _gpu(request))
        if not self._hides:
            return document
        match = {key: value for key, value in document["judged_by"]["match"].items() if key not in _HIDDEN}
        return {**document, **_HIDDEN, "judged_by": {**document["judged_by"], "match": match}}

    async def traces(self, request: Request) -> Response:
        pid, gpu = request.query_params.get("pid"), _gpu(request)
        if pid is not None and not (pid.isascii() and pid.isdigit() and len(pid) <= 10):
            raise ValueError("pid must be a whole number")
        async with self._asking:
            document = await self._source.traces(None if pid is None else int(pid), gpu)
            if self._hides:
                document = {**document, "traces": [{**each, **_HIDDEN} for each in document["traces"]]}
            return await asyncio.to_thread(json_answer, document, allow_nan=False)

    async def feedback(self, _: Request) -> Response:
        async with self._asking:
            document = await self._source.feedback()
        if self._hides:
            document = {**document, "feedback": [{**each, **_HIDDEN_FEEDBACK} for each in document["feedback"]]}
        return json_answer(document, allow_nan=False)

    async def feedback_entry(self, request: Request) -> Response:
        async with self._asking:
            document = await self._source.feedback_entry(request.path_params["entry"])
        return json_answer({**document, **_HIDDEN_FEEDBACK} if self._hides else document, allow_nan=False)


def leak_routes(source: LeakSource, *, show_commands: bool = True) -> Sequence[BaseRoute]:
    """Return the routes that only read. Without `show_commands` they name no user and show no words of anybody's."""
    reading = _Reading(source, show_commands=show_commands)
    return (
        Route("/api/v1/leaks/trace", _leak_answered(reading.traces), methods=["GET"]),
        Route("/api/v1/leaks/feedback", _leak_answered(reading.feedback), methods=["GET"]),
        Route(f"/api/v1/leaks/feedback/{_ENTRY}", _leak_answered(reading.feedback_entry), methods=["GET"]),
        Route(f"/api/v1/leaks/{PID}", _leak_answered(reading.explain), methods=["GET"]),
        Route(f"/api/v1/leaks/{PID}/plot.svg", _leak_answered(reading.plot), methods=["GET"]),
    )


def leak_command_routes(source: LeakSource) -> Sequence[BaseRoute]:
    """For the control socket alone: what is told. Who tells it is the peer of the socket."""

    async def add(request: Request) -> Response:
        body = await json_body(request, may_be_empty=False, allowed=("gpu", "label", "note"))
        gpu = body.get("gpu", "")
        if not isinstance(gpu, str) or (gpu and not _GPU.fullmatch(gpu)):
            raise ValueError("gpu must be an index or a UUID, as text")
        label, note = text_of(body, "label"), text_of(body, "note")
        kept = await source.add_feedback(request.path_params["pid"], gpu, label, note, await caller_of(request))
        return json_answer(kept, 201)

    async def remove(request: Request) -> Response:
        await json_body(request, allowed=())
        await source.remove_feedback(request.path_params["entry"])
        return json_answer({"removed": request.path_params["entry"]})

    # Of paths that the other address has too, one would name methods that it does not take.
    return (
        Route(f"/api/v1/leaks/{PID}/feedback", _leak_answered(add), methods=["POST"]),
        Route(f"/api/v1/leaks/feedback/{_ENTRY}/remove", _leak_answered(remove), methods=["POST"]),
    )


def _gpu(request: Request) -> str:
    gpu = request.query_params.get("gpu")
    if gpu is None:
        return ""
    if not _GPU.fullmatch(gpu):
        raise ValueError("gpu must be an index or a UUID")
    return gpu


def _leak_answered(handler: Handler) -> Handler:
    return answered(handler, {KeyError: not_found, NotKept: _unavailable})
