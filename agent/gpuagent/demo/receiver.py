"""A webhook receiver on this machine, on a free port. What it is sent can be waited for."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_LARGEST_BODY = 1024 * 1024


class Receiver:
    """Serves in a thread of its own until it is closed."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, name="receiver", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where messages are posted to."""
        return f"http://127.0.0.1:{self._server.server_port}/gpu-alerts"

    def told(self, alertname: str, status: str, pid: int) -> dict[str, Any] | None:
        """Return the first received alert of this name and status about a process."""
        for message in list(self.messages):
            for alert in message.get("alerts", ()):
                labels = alert.get("labels", {})
                if (
                    labels.get("alertname") == alertname
                    and alert.get("status") == status
                    and labels.get("pid") == str(pid)
                ):
                    found: dict[str, Any] = alert
                    return found
        return None

    def headline(self, pid: int) -> str:
        """Return the headline of the first message about what fires and names a process; "" where none has come."""
        for message in list(self.messages):
            headline = str(message.get("headline") or "")
            if message.get("status") == "firing" and f"pid {pid})" in headline:
                return headline
        return ""

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        messages = self.messages

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = min(int(self.headers.get("Content-Length", "0")), _LARGEST_BODY)
                messages.append(json.loads(self.rfile.read(length)))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler
