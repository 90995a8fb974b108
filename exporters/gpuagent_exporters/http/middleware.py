"""Middleware around the routes, and what a request asks for.

Headers for browsers, exceptions as answers, the check of peers, and arguments that no route may pass over:
`POST .../kill?dry_run=true` must not end a process, because whoever wrote that meant a dry run. So every request that
may change something is looked at here, before its route, also at a path that is added later.

`Accept` and `Accept-Encoding` (RFC 9110) are read as far as a metrics endpoint needs. What cannot be understood counts
as not asked for, so that nobody is ever refused: plain text is always an answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpuagent.core.background import in_daemon_thread
from gpuagent_exporters.http.peers import PeerCredentials, peer_of

_LOOK_SECONDS = 2.0
_MOST_LOOKS = 64
"""Callers that are looked up at the same time, each by a thread."""
_RENAMED = {HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "Content Too Large"}
"""Python 3.13 took over the names of RFC 9110 (https://docs.python.org/3/library/http.html#http-status-codes)."""


def phrase_of(status: int) -> str:
    """Return the phrase that RFC 9110 has for a status. Raises ValueError for a number that is no status."""
    return _RENAMED.get(HTTPStatus(status), HTTPStatus(status).phrase)


log = logging.getLogger(__name__)

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
            log.error("could not answer a request for %.100r", path, exc_info=fault)


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
    """Answers only peers of a unix socket that live in the agent's own namespaces; see `peers`.

    Where a caller lives is looked up in a thread: while it is within execve(2), the kernel may let that wait.
    """

    def __init__(self, app: ASGIApp, same_namespaces: Callable[[int], bool]) -> None:
        self._app = app
        self._same_namespaces = same_namespaces
        self._looks: dict[int, asyncio.Task[bool]] = {}
        """Those under way, by pid."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = await self._refusal(peer_of(scope))
        if refusal:
            response = error_response(HTTPStatus.FORBIDDEN, refusal)
            await response(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _refusal(self, peer: PeerCredentials | None) -> str:
        if peer is None:
            return "The control socket is a unix socket: only there is it known who is calling."
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                is_here = await asyncio.shield(self._look(peer.pid))
        except TimeoutError:
            return f"The kernel has not told within {_LOOK_SECONDS:g} s where the caller lives, which hangs: end it."
        if not is_here:
            return (
                "The caller is in another pid or user namespace, such as a container's, "
                "or has ended: call from the host itself."
            )
        return ""

    def _look(self, pid: int) -> asyncio.Task[bool]:
        """Return the look at a caller: one for each at a time. Raises TimeoutError where too many of them hang."""
        if (look := self._looks.get(pid)) is None:
            if len(self._looks) >= _MOST_LOOKS:
                raise TimeoutError
            work = in_daemon_thread(partial(self._same_namespaces, pid), "caller of the control socket")
            look = self._looks[pid] = asyncio.create_task(work)
            look.add_done_callback(lambda _: self._looks.pop(pid, None))
        return look


PLAIN_TEXT = "text/plain; version=0.0.4; charset=utf-8"
"""https://prometheus.io/docs/instrumenting/exposition_formats/"""
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
"""https://prometheus.io/docs/specs/om/open_metrics_spec/"""

_MAX_CHOICES = 32
"""Prometheus sends five; a header of 16 KiB full of commas shall not be an hour's work."""


class _Choice(NamedTuple):
    """One element of the header: a media range or a coding, with its parameters and its weight."""

    name: str
    parameters: dict[str, str]
    weight: float


def wants_openmetrics(accept: str) -> bool:
    """Return whether OpenMetrics 1.0 is liked at least as much as the plain text format.

    Prometheus 2.42 asks for `version=1.0.0` without a weight, 3.x with `escaping=allow-utf-8` and
    0.6; both also name 0.0.1, which is another format and not ours. A wildcard means plain text, as
    everywhere.
    """
    openmetrics = plain = 0.0
    for choice in _choices(accept):
        if choice.name == "application/openmetrics-text":
            if choice.parameters.get("version", "1.0.0").startswith("1."):
                openmetrics = max(openmetrics, choice.weight)
        elif choice.name in {"text/plain", "text/*", "*/*"}:
            plain = max(plain, choice.weight)
    return openmetrics > 0 and openmetrics >= plain


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether a gzip body is welcome. `gzip;q=0` is a refusal, and is stronger than `*`."""
    weights = {choice.name: choice.weight for choice in _choices(accept_encoding)}
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def _choices(header: str) -> list[_Choice]:
    return [_choice(element) for element in header.split(",", _MAX_CHOICES)[:_MAX_CHOICES]]


def _choice(element: str) -> _Choice:
    name, *rest = element.split(";")
    pairs = (part.partition("=") for part in rest)
    parameters = {key.strip().lower(): value.strip().strip('"') for key, _, value in pairs}
    return _Choice(name.strip().lower(), parameters, _weight(parameters.get("q", "1")))


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0.0 <= weight <= 1.0 else 0.0


_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
QUERY_ARGUMENTS: Final[Mapping[tuple[str, str], frozenset[str]]] = {
    ("POST", "/api/v1/pause"): frozenset({"seconds"}),
    ("POST", "/api/v1/receivers/replay"): frozenset({"id"}),
}
"""By method and path. All other commands take their arguments in the body, if they take any."""


class CheckQuery:
    """Answers 400 to a command with arguments in its query that it does not take there."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = _refusal(scope) if scope["type"] == "http" else ""
        if refusal:
            await error_response(HTTPStatus.BAD_REQUEST, refusal)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _is_routed(scope: Scope) -> bool:
    return any(route.matches(scope)[0] is Match.FULL for route in scope["app"].routes)


def _refusal(scope: Scope) -> str:
    """Return why this query is not taken; "" if it is. A key that is there twice says two things."""
    if scope["method"] in _READS or not _is_routed(scope):  # where there is no such command, that is the answer
        return ""
    allowed = QUERY_ARGUMENTS.get((scope["method"], scope["path"]), frozenset())
    names = [name for name, _ in parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)]
    if unknown := sorted(set(names) - allowed):
        there_is = f"allowed in the query: {', '.join(sorted(allowed))}" if allowed else "the query takes none"
        shown = ", ".join(repr(name[:50]) for name in unknown[:5])
        return f"unknown arguments in the query: {shown}; {there_is}. Arguments go in the body, as JSON."
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        return f"{', '.join(doubled)}: given more than once"
    return ""
