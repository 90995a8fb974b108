"""Why the leak detector says what it says, for everybody to read; on the control socket, whether it was right."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Final, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gpuagent_exporters.api.alert_routes import caller_of, text_of
from gpuagent_exporters.api.answers import PID, Document, Handler, Refusal, answered, json_answer, json_body, not_found

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

    `gpuagent.alerting.leak_commands.LeakCommands` is one.
    """

    def explain(self, pid: int, gpu: str) -> Document: ...

    async def traces(self, pid: int | None, gpu: str) -> Document: ...

    async def feedback(self) -> Document: ...

    async def feedback_entry(self, entry_id: str) -> Document: ...

    async def add_feedback(self, pid: int, gpu: str, label: str, note: str, creator: str) -> Document:
        """Change what is kept. Raise NotKept."""
        ...

    async def remove_feedback(self, entry_id: str) -> None:
        """Change what is kept. Raise NotKept."""
        ...


class _Reading:
    """What only reads. One answer at a time, then the loop's turn: a crowd that asks must not delay a tick."""

    def __init__(self, source: LeakSource, *, show_commands: bool) -> None:
        self._source = source
        self._hides = not show_commands
        self._asking = asyncio.Lock()

    async def explain(self, request: Request) -> Response:
        async with self._asking:
            document = self._source.explain(request.path_params["pid"], _gpu(request))
            if self._hides:
                match = {key: value for key, value in document["judged_by"]["match"].items() if key not in _HIDDEN}
                document = {**document, **_HIDDEN, "judged_by": {**document["judged_by"], "match": match}}
            answer = json_answer(document, allow_nan=False)
            await asyncio.sleep(0)
        return answer

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
    """Return the routes that only read. Without `show_commands` they name no user and show no user's words."""
    reading = _Reading(source, show_commands=show_commands)
    return (
        Route("/api/v1/leaks/trace", _answered(reading.traces), methods=["GET"]),
        Route("/api/v1/leaks/feedback", _answered(reading.feedback), methods=["GET"]),
        Route(f"/api/v1/leaks/feedback/{_ENTRY}", _answered(reading.feedback_entry), methods=["GET"]),
        Route(f"/api/v1/leaks/{PID}", _answered(reading.explain), methods=["GET"]),
    )


def leak_command_routes(source: LeakSource) -> Sequence[BaseRoute]:
    """For the control socket alone: what is told. Who tells it is the peer of the socket."""

    async def add(request: Request) -> Response:
        body = await json_body(request, may_be_empty=False, allowed=("gpu", "label", "note"))
        gpu = body.get("gpu", "")
        if not isinstance(gpu, str) or (gpu and not _GPU.fullmatch(gpu)):
            raise ValueError("gpu must be an index or a UUID, as text")
        label, note = text_of(body, "label"), text_of(body, "note")
        kept = await source.add_feedback(request.path_params["pid"], gpu, label, note, caller_of(request))
        return json_answer(kept, 201)

    async def remove(request: Request) -> Response:
        await json_body(request, allowed=())
        await source.remove_feedback(request.path_params["entry"])
        return json_answer({"removed": request.path_params["entry"]})

    # Of paths that the other address has too, one would name methods that it does not take.
    return (
        Route(f"/api/v1/leaks/{PID}/feedback", _answered(add), methods=["POST"]),
        Route(f"/api/v1/leaks/feedback/{_ENTRY}/remove", _answered(remove), methods=["POST"]),
    )


def _gpu(request: Request) -> str:
    gpu = request.query_params.get("gpu")
    if gpu is None:
        return ""
    if not _GPU.fullmatch(gpu):
        raise ValueError("gpu must be an index or a UUID")
    return gpu


def _answered(handler: Handler) -> Handler:
    return answered(handler, {KeyError: not_found, NotKept: _not_kept})


def _not_kept(error: NotKept) -> Refusal:
    return 503, {"error": "Service Unavailable", "message": str(error)}
