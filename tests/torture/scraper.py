"""Scrapes the agent again and again, over the control socket and over TCP, and keeps what it saw."""

from __future__ import annotations

import http.client
import re
import socket
import threading
from pathlib import Path
from typing import NamedTuple, Self

_BETWEEN_SECONDS = 0.15
_ABSURD = re.compile(
    rb"^gpuagent_(?:gpu|process)_memory_\w+_bytes\{[^\n]* (?:-.*|\+?Inf|NaN|\d{15,}.*|.*e\+(?:1[5-9]|[2-9]\d))$"
    rb"|^gpuagent_gpu_\w*_ratio\{[^\n]* (?:-.*|\+?Inf|NaN|[2-9]\d*\..*|\d{2,}.*|.*e\+.*)$",
    re.MULTILINE,
)
"""Memory below zero or of a petabyte, shares below zero or of two and more."""
_HEALTHY = b'\ngpuagent_gpu_memory_used_bytes{gpu="0"'


class Scrape(NamedTuple):
    """One answer; `status` 0 where there was none."""

    door: str
    status: int
    healthy: bool
    """The series of the GPU that nothing happens to are there."""
    absurd: tuple[bytes, ...] = ()
    """Lines with a figure that no GPU can have."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Scraper:
    """A thread, from `with` to its end."""

    def __init__(self, control: Path, port: int, timeout_seconds: float = 5.0) -> None:
        self._control = control
        self._port = port
        self._timeout_seconds = timeout_seconds
        self._seen: list[Scrape] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scraper", daemon=True)

    def take(self) -> list[Scrape]:
        """What it saw since it was asked last."""
        seen, self._seen = self._seen, []
        return seen

    def over(self, door: str) -> bytes:
        """The text of one scrape over this door. Raises OSError, http.client.HTTPException."""
        return self._ask(door)[1]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        turn = 0
        while not self._ended.wait(_BETWEEN_SECONDS):
            door = "tcp" if turn % 3 == 2 else "control"
            turn += 1
            try:
                status, body = self._ask(door)
            except (OSError, http.client.HTTPException):
                status, body = 0, b""
            self._seen.append(Scrape(door, status, _HEALTHY in body, tuple(_ABSURD.findall(body))))

    def _ask(self, door: str) -> tuple[int, bytes]:
        connection = (
            http.client.HTTPConnection("127.0.0.1", self._port, timeout=self._timeout_seconds)
            if door == "tcp"
            else _UnixConnection(self._control, self._timeout_seconds)
        )
        try:
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()
