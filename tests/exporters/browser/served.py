"""The HTTP side in a thread of its own, for a browser to look at; it can go away and come back at the same address."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from starlette.applications import Starlette

from gpuagent_exporters.api.routes import PageDocuments, build_app
from gpuagent_exporters.http.server import HttpServer
from tests.exporters.wire import PATIENCE_SECONDS
from tests.fakes.source import FakeSource

T = TypeVar("T")


class Served:
    """A page that can be looked at."""

    def __init__(self, app: Starlette, loop: asyncio.AbstractEventLoop) -> None:
        self._app = app
        self._loop = loop
        self._port = 0
        self._server: HttpServer | None = None

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._port}/"

    def start(self) -> None:
        """Answer, at the same port as before."""
        server = HttpServer(self._app, listen=f"127.0.0.1:{self._port}")
        self._run(server.start())
        self._port, self._server = server.port, server

    def stop(self) -> None:
        """As if the agent had ended."""
        if self._server is not None:
            self._run(self._server.stop())
            self._server = None

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_SECONDS)


@contextmanager
def served(
    source: FakeSource, documents: PageDocuments | None = None, *, show_commands: bool = True
) -> Iterator[Served]:
    """A server over `source` until the end."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="served page")
    thread.start()
    app = build_app(source, page_documents=documents, show_commands=show_commands, hostname="node1")
    page = Served(app, loop)
    try:
        page.start()
        yield page
    finally:
        page.stop()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_SECONDS)
        loop.close()
