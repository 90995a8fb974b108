"""A server that answers each connection as it was told: over a unix socket or on loopback."""

from __future__ import annotations

import json
import re
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

Answer = Callable[[socket.socket, threading.Event], None]
"""Given the connection, and an event that is set when the test is over."""


def read_request(connection: socket.socket) -> bytes:
    """The head of a request, and its body where it has one."""
    received = b""
    while not _is_whole(received):
        more = connection.recv(4096)
        if not more:
            break
        received += more
    return received


def _is_whole(request: bytes) -> bool:
    head, end, body = request.partition(b"\r\n\r\n")
    length = re.search(rb"(?im)^content-length: *(\d+)", head)
    return bool(end) and len(body) >= (int(length[1]) if length else 0)


def says(body: object, status: str = "200 OK", requests: list[bytes] | None = None) -> Answer:
    """An answer in HTTP: JSON, or bytes as they are."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    def answer(connection: socket.socket, over: threading.Event) -> None:
        head = read_request(connection)
        if requests is not None:
            requests.append(head)
        connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)

    return answer


@contextmanager
def answering(answer: Answer, *, unix: bool = True) -> Iterator[Any]:
    """The place to ask: a path, or a URL."""
    over = threading.Event()
    with tempfile.TemporaryDirectory(prefix="gpuagent-", dir="/tmp") as folder:
        listener = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
        listener.bind(str(Path(folder, "control.sock")) if unix else ("127.0.0.1", 0))
        listener.listen()
        place = Path(listener.getsockname()) if unix else f"http://127.0.0.1:{listener.getsockname()[1]}"

        def serve() -> None:
            while not over.is_set():
                with suppress(OSError):
                    connection, _ = listener.accept()
                    with connection:
                        answer(connection, over)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield place
        finally:
            over.set()
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)
            listener.close()
            assert not thread.is_alive()
