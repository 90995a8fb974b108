"""Middleware around the routes: headers for browsers, exceptions as answers, and the check of peers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus

from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpuagent_exporters.http.peers import PeerCredentials, peer_of

_RENAMED = {HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "Content Too Large"}
"""Python 3.13 took over the names of RFC 9110 (https://docs.python.org/3/library/http.html#http-status-codes)."""


def phrase_of(status: int) -> str:
    """Return the phrase that RFC 9110 has for a status. Raises ValueError for a number that is no status."""
    return _RENAMED.get(HTTPStatus(status), HTTPStatus(status).phrase)


logger = logging.getLogger(__name__)

SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}


def error_response(status: HTTPStatus, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return an error as JSON: `error` is the status in words, `message` says what to do about it."""
    body = {"error": phrase_of(status), "message": message}
    return JSONResponse(body, status_code=status, headers=headers)


def _apology(fault: Exception) -> JSONResponse:
    if isinstance(fault, MemoryError):
        message = "There is no memory left to answer with. Ask again."
        return error_response(HTTPStatus.SERVICE_UNAVAILABLE, message, {"retry-after": "1"})
    return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, "This is a fault of gpuagent; its log has the details.")


class AnswerFaults:
    """Turns an exception into a 500 or, without memory, a 503; keeps a lasting fault from filling the journal.

    A scrape comes every few seconds: the traceback is logged when a fault is new, and again when
    another took its place.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._last_fault: dict[str, str] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def noting_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, noting_send)
        except Exception as fault:
            self._log(scope["path"], fault)
            if started:
                raise
            await _apology(fault)(scope, receive, send)

    def _log(self, path: str, fault: Exception) -> None:
        text = f"{type(fault).__name__}: {fault}"
        if self._last_fault.get(path) != text:
            if len(self._last_fault) > 100:  # routes may have parameters, and a stranger chooses those
                self._last_fault.clear()
            self._last_fault[path] = text
            logger.error("could not answer a request for %.100r", path, exc_info=fault)


class SetHeaders:
    """Sets headers on every response; with `keep`, only those that it does not have."""

    def __init__(self, app: ASGIApp, headers: Callable[[], Mapping[str, str]], *, keep: bool = False) -> None:
        self._app = app
        self._headers = headers
        self._keep = keep

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def setting_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers().items():
                    if not (self._keep and name in headers):
                        headers[name] = value
            await send(message)

        await self._app(scope, receive, setting_send)


class CheckPeer:
    """Answers only peers of a unix socket that live in the agent's own namespaces; see `peers`."""

    def __init__(self, app: ASGIApp, same_namespaces: Callable[[int], bool]) -> None:
        self._app = app
        self._same_namespaces = same_namespaces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(peer_of(scope))
        if refusal:
            response = error_response(HTTPStatus.FORBIDDEN, refusal)
            await response(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, peer: PeerCredentials | None) -> str:
        if peer is None:
            return "The control socket is a unix socket: only there is it known who is calling."
        if not self._same_namespaces(peer.pid):
            return (
                "The caller is in another pid or user namespace, such as a container's, "
                "or has ended: call from the host itself."
            )
        return ""
