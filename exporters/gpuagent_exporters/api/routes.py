"""The routes that everybody may read: metrics, JSON, the points of the charts, and one page for people.

The same app serves the TCP address and the control socket; the latter adds routes of its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Protocol, TypeVar

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gpuagent.core.growth import MemoryKey
from gpuagent_exporters.api.alert_routes import NotNow
from gpuagent_exporters.api.openapi import openapi_routes
from gpuagent_exporters.api.process_routes import NotDone
from gpuagent_exporters.charts import Chart
from gpuagent_exporters.http import peers
from gpuagent_exporters.http.middleware import (
    OPENMETRICS,
    PLAIN_TEXT,
    SECURITY_HEADERS,
    AnswerFaults,
    CheckPeer,
    CheckQuery,
    SetHeaders,
    accepts_gzip,
    error_response,
    wants_openmetrics,
)
from gpuagent_exporters.http.slim_imports import Starlette
from gpuagent_exporters.page.assets import asset_routes

log = logging.getLogger(__name__)

T = TypeVar("T")
Document = Mapping[str, Any]
"""What is sent as JSON: see the schema in the documentation of `/api/v1/status`."""

_THREAD_BYTES = 32 * 1024
"""Compressing more than this takes long enough (about 1 ms) to be worth a thread."""


class Source(Protocol):
    """What there is to tell. Every method answers at once, from memory: the loop waits for it."""

    def metrics(self, openmetrics: bool) -> bytes:
        """Return the whole exposition; never empty, also before the first measurement."""
        ...

    def status(self) -> Document:
        """Return the node, its problems, GPUs and processes."""
        ...

    def processes(self) -> Document:
        """Return the GPU processes alone."""
        ...

    @property
    def history(self) -> Points:
        """The points of the charts, for programs."""
        ...

    @property
    def charts(self) -> ChartSource:
        """The charts of the page."""
        ...

    def healthy(self) -> tuple[bool, str]:
        """Return whether the agent does its work, and why not. A broken GPU is no reason."""
        ...

    def ready(self) -> tuple[bool, str]:
        """Return whether there is a fresh measurement to tell of, and why not."""
        ...


class ChartSource(Protocol):
    """Who draws; `gpuagent_exporters.charts.Charts` is one."""

    def chart(self, range_name: str, first: Collection[MemoryKey] = frozenset()) -> Chart:
        """Return the memory of each GPU by process over a range; `first` are processes that are to be seen."""
        ...


Explain = Callable[[int, str], Document]
"""Returns the evidence on a process, by pid and the GPU's UUID. Raises KeyError or ValueError where there is none."""
Read = Callable[[], Awaitable[Document]]
"""Returns a document, or raises NotNow or NotDone with words for the reader."""


class PageDocuments:
    """What the page shows besides the status: documents as this address may tell them, None where it tells none."""

    def __init__(
        self, *, alerts: Read | None = None, remedies: Read | None = None, explain: Explain | None = None
    ) -> None:
        self._alerts = alerts
        self._remedies = remedies
        self._explain = explain
        self._last_fault: dict[str, str] = {}

    async def alerts(self) -> Document | None:
        """Return alerts, incidents and silences, or `{"message": ...}` where they could not be read."""
        return await self._read("alerts", self._alerts)

    async def remedies(self) -> Document | None:
        """Return the remedies, or `{"message": ...}` where they could not be read."""
        return await self._read("remedies", self._remedies)

    def leaks(self, which: Iterable[tuple[int, str]]) -> list[Document]:
        """Return the evidence on those processes, by pid and the GPU's UUID, of which there is some."""
        found: list[Document] = []
        explain = self._explain
        if explain is None:
            return found
        for pid, uuid in which:
            try:
                found.append(explain(pid, uuid))
            except (KeyError, ValueError):
                continue
            except Exception as fault:  # noqa: BLE001  it is logged
                self._log("evidence", fault)
        return found

    def _log(self, name: str, fault: Exception) -> None:
        """Log a fault when it is new."""
        text = f"{type(fault).__name__}: {fault}"
        if self._last_fault.get(name) != text:
            log.error("the page could not read the %s", name, exc_info=fault)
        self._last_fault[name] = text

    async def _read(self, name: str, read: Read | None) -> Document | None:
        """Return a fault as a value, logged when it is new: a part that fails must not cost the page."""
        if read is None:
            return None
        try:
            document = await read()
        except (NotNow, NotDone) as refusal:
            return {"message": str(refusal)}
        except Exception as fault:  # noqa: BLE001  it is logged
            self._log(name, fault)
            return {"message": "this is a fault of gpuagent; its log has the details"}
        self._last_fault.pop(name, None)
        return document


def build_app(
    source: Source,
    *,
    control: bool = False,
    show_commands: bool = True,
    extra_routes: Sequence[BaseRoute] = (),
    page_documents: PageDocuments | None = None,
    hostname: str | None = None,
    same_namespaces: Callable[[int], bool] = peers.same_namespaces,
) -> Starlette:
    """Return the ASGI app over `source`.

    Args:
        source: What is told.
        control: This is the control socket: every request must come over a unix socket, from the
            agent's own namespaces.
        show_commands: Whether callers may see who runs what: command lines and users. False for an
            address that is neither loopback nor behind authentication.
        extra_routes: Further routes, such as the control socket's commands.
        page_documents: What the page shows besides the status.
        hostname: The machine's name, as the page shows it.
        same_namespaces: Whether a pid lives in the agent's own namespaces.
    """
    hostname = hostname or socket.gethostname()
    routes = _Routes(source, page_documents or PageDocuments(), show_commands=show_commands, hostname=hostname)
    gate = [Middleware(CheckPeer, same_namespaces=same_namespaces)] if control else []
    app = Starlette(
        routes=[*routes.routes(), *history_routes(source), *openapi_routes(), *asset_routes(), *extra_routes],
        middleware=[
            Middleware(SetHeaders, headers=lambda: SECURITY_HEADERS, keep=True),
            Middleware(_Compress),
            Middleware(AnswerFaults),
            *gate,
            Middleware(CheckQuery),
        ],
        exception_handlers={HTTPException: _explain},
    )
    app.router.redirect_slashes = False  # a redirect repeats the caller's Host; a 404 says what there is
    return app


class _Routes:
    """One method for each path."""

    def __init__(self, source: Source, further: PageDocuments, *, show_commands: bool, hostname: str) -> None:
        self._source = source
        self._further = further
        self._hostname = hostname
        self._show_commands = show_commands
        self._rendering = asyncio.Lock()

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/", self.page),
            Route("/metrics", self.metrics),
            Route("/-/healthy", self.healthy),
            Route("/-/ready", self.ready),
            Route("/api/v1/status", self.status),
            Route("/api/v1/processes", self.processes),
        ]

    async def metrics(self, request: Request) -> Response:
        openmetrics = wants_openmetrics(request.headers.get("accept", ""))
        body = await self._render(lambda: self._source.metrics(openmetrics))
        media_type = OPENMETRICS if openmetrics else PLAIN_TEXT
        return Response(body, headers={"content-type": media_type, "vary": "Accept"})

    async def status(self, _: Request) -> Response:
        return _json(await self._render(lambda: self._visible(self._source.status())))

    async def processes(self, _: Request) -> Response:
        return _json(await self._render(lambda: self._visible(self._source.processes())))

    async def page(self, request: Request) -> Response:
        alerts, remedies = await self._further.alerts(), await self._further.remedies()
        query = dict(request.query_params)
        return await self._render(lambda: self._page(alerts, remedies, query))

    async def healthy(self, _: Request) -> Response:
        return _verdict(self._source.healthy())

    async def ready(self, _: Request) -> Response:
        return _verdict(self._source.ready())

    def _page(self, alerts: Document | None, remedies: Document | None, query: Mapping[str, str]) -> Response:
        from gpuagent_exporters.page import page  # noqa: PLC0415  0.3 MiB, and nobody looks at most nodes

        status, view = self._visible(self._source.status()), page.view_of(query)
        told = page.PageData(
            status,
            alerts,
            remedies,
            hidden=not self._show_commands,
            chart=self._source.charts.chart(view.range, page.growing_keys(status)),
            leaks=self._further.leaks(page.to_explain(status)),
        )
        headers = {"content-security-policy": page.CONTENT_SECURITY_POLICY}
        return Response(page.render(told, self._hostname, view), media_type="text/html", headers=headers)

    async def _render(self, render: Callable[[], T]) -> T:
        """One at a time, then the loop's turn: a crowd of scrapes must not delay a tick."""
        async with self._rendering:
            rendered = render()
            await asyncio.sleep(0)
            return rendered

    def _visible(self, document: Document) -> Document:
        if self._show_commands or "processes" not in document:
            return document
        hidden = {"command": "", "user": "", "uid": None}
        shown = {**document, "processes": [{**process, **hidden} for process in document["processes"]]}
        if known := document.get("last_known"):
            shown["last_known"] = {**known, "processes": [{**process, **hidden} for process in known["processes"]]}
        return shown


class _Compress:
    """Starlette's gzip, for clients that want it: it takes `gzip;q=0` for a yes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = GZipMiddleware(app, compresslevel=1, thread_minimum_size=_THREAD_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = MutableHeaders(scope=scope)
        if not accepts_gzip(headers.get("accept-encoding", "")):
            del headers["accept-encoding"]
        await self._app(scope, receive, send)


def _json(document: Document) -> Response:
    """JSON in ASCII, which no broken name makes invalid. NaN would, so it is a fault."""
    body = json.dumps(document, allow_nan=False, separators=(",", ":")) + "\n"
    return Response(body, media_type="application/json")


def _verdict(verdict: tuple[bool, str]) -> Response:
    good, reason = verdict
    status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
    return PlainTextResponse(f"{reason or status.phrase}\n", status_code=status)


async def _explain(request: Request, error: Exception) -> Response:
    """404, 405 and the like as JSON, with what would have worked."""
    if not isinstance(error, HTTPException):
        raise error
    status = HTTPStatus(error.status_code)
    headers = dict(error.headers or {})
    if status is HTTPStatus.NOT_FOUND:
        paths = sorted({route.path for route in request.app.routes if isinstance(route, Route)})
        message = f"There is nothing at {request.scope['path'][:100]!r}. There is: {', '.join(paths)}."
    elif status is HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(sorted(headers.get("Allow", "").split(", ")))
        message = f"{request.method[:20]} is not allowed here. Allowed: {headers['Allow']}."
    else:
        message = error.detail
    return error_response(status, message, headers)


TOP = 6
"""Lines that a person can still tell apart in one chart."""
MOST = 16
"""The most processes of each GPU: an hour of many more would hold up the loop for too long."""


class Points(Protocol):
    """What was measured in the last hour; `gpuagent_exporters.history.History` is one."""

    def document(self, since: str = "", top: int = TOP) -> Mapping[str, Any]:
        """Everything, or what came after a cursor; lines for the `top` processes of each GPU.

        Raises ValueError for a cursor that was never given.
        """
        ...


class HistorySource(Protocol):
    """Who has the points; `gpuagent.service.view.View` is one."""

    @property
    def history(self) -> Points: ...


def history_routes(source: HistorySource) -> Sequence[BaseRoute]:
    """`/api/v1/history?since=CURSOR&top=N`. It names processes, never users or commands."""
    asking = asyncio.Lock()

    async def history(request: Request) -> Response:
        query = request.query_params
        async with asking:  # one at a time, then the loop's turn: a crowd of browsers must not delay a tick
            try:
                document = source.history.document(query.get("since", ""), _top(query.get("top", str(TOP))))
            except ValueError as error:
                return error_response(HTTPStatus.BAD_REQUEST, str(error))
            body = json.dumps(document, allow_nan=False, separators=(",", ":")) + "\n"
            await asyncio.sleep(0)
        return Response(body, media_type="application/json")

    return (Route("/api/v1/history", history, methods=["GET"]),)


def _top(text: str) -> int:
    plain = text.isascii() and text.isdigit() and len(text) <= 3
    if not plain or int(text) > MOST:
        raise ValueError(f"top must be a whole number from 0 to {MOST}")
    return int(text)
