"""Log lines with fields, for journald: `journalctl GPUAGENT_ALERT=GpuLost` finds what grep would guess at.

Its native protocol is one datagram an entry: https://systemd.io/JOURNAL_NATIVE_PROTOCOL/
"""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path

SOCKET = Path("/run/systemd/journal/socket")
PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
FIELDS = "fields"
"""In `extra` of a logging call: `extra={"fields": {"XID": 79}}` becomes the field GPUAGENT_XID."""


def is_journal(stream: str, descriptor: int = 2) -> bool:
    """Whether $JOURNAL_STREAM, `device:inode`, is this descriptor: a child may have inherited the variable alone."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return stream == f"{status.st_dev}:{status.st_ino}"


class JournalHandler(logging.Handler):
    """Never waits for journald: what it has no room for is counted, and told with the next line that it takes."""

    def __init__(self, path: Path = SOCKET) -> None:
        super().__init__()
        self._path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Send a line; a fault in it is the caller's, and costs no more than the line."""
        try:
            entry = self._entry(record)
        except Exception:  # noqa: BLE001  logging's own rule: see Handler.handleError
            self.handleError(record)
            return
        if self._lost:
            entry["GPUAGENT_LOST_LINES"] = self._lost
        try:
            self._socket.sendto(_datagram(entry), self._path)
        except OSError:
            self._lost += 1
        else:
            self._lost = 0

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()
        super().close()

    def _entry(self, record: logging.LogRecord) -> dict[str, object]:
        return {
            "MESSAGE": self.format(record),
            "PRIORITY": PRIORITIES.get(record.levelno, 6),
            "SYSLOG_IDENTIFIER": "gpuagent",
            "GPUAGENT_LOGGER": record.name,
            "CODE_FILE": record.pathname,
            "CODE_LINE": record.lineno,
            "CODE_FUNC": record.funcName,
            **{f"GPUAGENT_{name}": value for name, value in getattr(record, FIELDS, {}).items()},
        }


def _datagram(entry: Mapping[str, object]) -> bytes:
    """Values with a line feed have their length in front."""
    parts = []
    for name, value in entry.items():
        data = str(value).encode("utf-8", "replace")
        if b"\n" in data:
            parts.append(name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n")
        else:
            parts.append(name.encode() + b"=" + data + b"\n")
    return b"".join(parts)
