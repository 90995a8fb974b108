"""A receiver over HTTP that takes, refuses, drops or drags, as it is told: real sockets, in threads."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

PATIENCE_SECONDS = 20.0


class Received(NamedTuple):
    """A request."""

    method: str
    path: str
    headers: dict[str, str]
    """Their names in lower case."""
    body: bytes


@dataclass(frozen=True)
class Reply:
    """What the sink does with a request."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b"ok"
    drop: str = ""
    """`before`: the connection ends before the request is read; `after`: when it was read and processed."""
    trickle_seconds: float = 0.0
    """Between two bytes of the answer."""
    endless: bool = False
    """The body goes on for 4 GiB."""

    @property
    def takes(self) -> bool:
        """Whether the request is processed."""
        return self.drop == "after" or (not self.drop and 200 <= self.status < 300)


class Sink:
    """Keeps what it processed, in order, and everything that it was asked."""

    def __init__(self, behave: Callable[[Received], Reply] | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.behave = behave or (lambda _: Reply())
        self.processed: list[Received] = []
        self.asked: list[Received] = []
        self.sent_bytes = 0
        self._tls = tls
        self._arrived = threading.Condition()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self._stopped = threading.Event()
        self.port: int = self._server.getsockname()[1]
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://127.0.0.1:{self.port}"

    def wait(self, enough: Callable[[Sink], bool]) -> None:
        """Until the sink has seen enough."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: enough(self), PATIENCE_SECONDS)

    def start(self) -> None:
        self._spawn(self._accept)

    def stop(self) -> None:
        self._stopped.set()
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)

    def _spawn(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                self._spawn(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        self._open.add(connection)
        with suppress(OSError), connection:
            if self._tls:
                connection = self._tls.wrap_socket(connection, server_side=True)
            with connection:
                reader = connection.makefile("rb")
                with reader:
                    while self._one(connection, reader):
                        pass
        self._open.discard(connection)

    def _one(self, connection: socket.socket, reader: Any) -> bool:
        """Serve one request; returns whether another may follow."""
        line = reader.readline()
        if not line:
            return False
        method, path, _ = line.decode().split(" ", 2)
        headers = {}
        while (line := reader.readline()) not in {b"\r\n", b""}:
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        length = int(headers.get("content-length", 0))
        received = Received(method, path, headers, reader.read(length))
        if not line or len(received.body) < length:  # whoever asked has gone in the middle of it
            return False
        with self._arrived:
            self.asked.append(received)
            reply = self.behave(received)
            if reply.takes:
                self.processed.append(received)
            self._arrived.notify_all()
        if reply.drop:
            return False
        self._answer(connection, reply)
        return not reply.endless

    def _answer(self, connection: socket.socket, reply: Reply) -> None:
        length = 4 * 2**30 if reply.endless else len(reply.body)
        head = [f"HTTP/1.1 {reply.status} x", f"Content-Length: {length}"]
        head += [f"{name}: {value}" for name, value in reply.headers.items()]
        data = ("\r\n".join(head) + "\r\n\r\n").encode() + reply.body
        if reply.trickle_seconds:
            for byte in data:
                connection.sendall(bytes([byte]))
                if self._stopped.wait(reply.trickle_seconds):
                    return
        else:
            connection.sendall(data)
        while reply.endless and self.sent_bytes < length:
            connection.sendall(b"x" * 65536)
            self.sent_bytes += 65536


@contextmanager
def sink(behave: Callable[[Received], Reply] | None = None, tls: ssl.SSLContext | None = None) -> Iterator[Sink]:
    """A sink that listens, by default one that takes everything."""
    made = Sink(behave, tls)
    made.start()
    try:
        yield made
    finally:
        made.stop()


def always(reply: Reply) -> Callable[[Received], Reply]:
    """The same answer to everything."""
    return lambda _: reply
