"""An app with the embedded client, as far as the agent can see one: it speaks the protocol and has no torch."""

from __future__ import annotations

import json
import os
import socket
import struct
from pathlib import Path
from types import TracebackType
from typing import Any, Self

CAPABILITIES = ["census", "limit", "lines", "rate", "release", "reset"]


def hello(pid: int | None = None, **changes: Any) -> dict[str, Any]:
    """The first line, of this process unless another is claimed."""
    return {
        "v": 1, "t": "hello", "lib": "0.1.0", "pid": os.getpid() if pid is None else pid, "ppid": 1,
        "argv0": "app.py", "py": "3.11.7", "torch": "2.13.0", "app": "web", "backend": "native", "caps": CAPABILITIES,
        **changes,
    }  # fmt: skip


def stats(*devices: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Figures."""
    return {"t": "stats", "seq": 1, "ts": 1.0, "init": True, "dev": list(devices), **changes}


class FakeApp:
    """One connection, with calls that wait."""

    def __init__(self, path: Path, timeout_seconds: float = 20.0) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        timeval = struct.pack("@ll", max(1, int(timeout_seconds)), 0)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
        try:
            self.socket.connect(str(path))  # waits where the agent's queue is full; with settimeout(3) it would not
        except OSError:
            self.socket.close()
            raise
        self.socket.settimeout(timeout_seconds)
        self._lines = self.socket.makefile("rb")

    def send(self, *messages: dict[str, Any] | bytes) -> None:
        """Messages, or bytes as they are."""
        for message in messages:
            data = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
            self.socket.sendall(data)

    def receive(self, kind: str = "") -> dict[str, Any]:
        """The next message (of a kind: others are skipped); {} where the agent has hung up."""
        while True:
            try:
                line = self._lines.readline()
            except ConnectionError:
                return {}
            if not line:
                return {}
            message: dict[str, Any] = json.loads(line)
            if not kind or message["t"] == kind:
                return message

    def meet(self, **changes: Any) -> dict[str, Any]:
        """Say hello; returns the welcome, or {} where there was none."""
        self.send(hello(**changes))
        return self.receive()

    def close(self) -> None:
        """Hang up."""
        self._lines.close()
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
