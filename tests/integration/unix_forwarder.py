"""A TCP port that leads to a unix socket, for tools that know only the former."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def forwarded(path: Path) -> Iterator[int]:
    """The port. To the far end of the unix socket, whoever connects is this process."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_accept, args=(server, path), daemon=True).start()
        try:
            yield int(server.getsockname()[1])
        finally:
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)  # closing alone does not wake the thread


def _accept(server: socket.socket, path: Path) -> None:
    while True:
        try:
            near, _ = server.accept()
        except OSError:
            return
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else each answer waits 40 ms for an ACK
        far = socket.socket(socket.AF_UNIX)
        try:
            far.connect(str(path))
        except OSError:
            near.close()
            far.close()
            continue
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Until either end has had enough; then both are closed, so that the other direction ends too."""
    with suppress(OSError):
        while piece := source.recv(65536):
            sink.sendall(piece)
    for each in (source, sink):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
    sink.close()
