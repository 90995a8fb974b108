"""Lines with fields for journald, over a real socket."""

from __future__ import annotations

import logging
import os
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuagent.runtime.logs import JournalHandler, is_journal


class Journald:
    """Receives, as journald does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(5)

    def entry(self) -> dict[str, str]:
        """The next one, by https://systemd.io/JOURNAL_NATIVE_PROTOCOL/."""
        data, found = self.socket.recv(65536), {}
        while data:
            head, _, data = data.partition(b"\n")
            name, equals, value = head.partition(b"=")
            if not equals:
                (length,) = struct.unpack("<Q", data[:8])
                value, data = data[8 : 8 + length], data[9 + length :]
            found[name.decode()] = value.decode()
        return found


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[Journald]:
    """A journal, and its end."""
    made = Journald(tmp_path / "socket")
    yield made
    made.socket.close()


@pytest.fixture
def handler(tmp_path: Path) -> Iterator[JournalHandler]:
    """What the root logger has under systemd."""
    made = JournalHandler(tmp_path / "socket")
    made.setFormatter(logging.Formatter("%(message)s"))
    yield made
    made.close()


def record(message: str, level: int = logging.WARNING, **extra: Any) -> logging.LogRecord:
    """A line, made as a logger makes it."""
    made = logging.LogRecord("gpuagent.x", level, "x.py", 7, message, None, None, "work")
    made.__dict__.update(extra)
    return made


def test_fields(journald: Journald, handler: JournalHandler) -> None:
    """Where it comes from, how grave it is, and what the caller adds, each under its own name."""
    handler.emit(record("Xid 79", fields={"XID": 79, "GPU_UUID": "GPU-1"}))
    assert journald.entry() == {
        "MESSAGE": "Xid 79", "PRIORITY": "4", "SYSLOG_IDENTIFIER": "gpuagent", "GPUAGENT_LOGGER": "gpuagent.x",
        "CODE_FILE": "x.py", "CODE_LINE": "7", "CODE_FUNC": "work", "GPUAGENT_XID": "79", "GPUAGENT_GPU_UUID": "GPU-1",
    }  # fmt: skip


def test_several_lines_are_one_entry(journald: Journald, handler: JournalHandler) -> None:
    """No name of a process can begin an entry or a field of its own."""
    handler.emit(record("first\nPRIORITY=0\n\nlast", fields={"PROCESS": "a\nMESSAGE=b"}))
    entry = journald.entry()
    assert (entry["MESSAGE"], entry["PRIORITY"]) == ("first\nPRIORITY=0\n\nlast", "4")
    assert entry["GPUAGENT_PROCESS"] == "a\nMESSAGE=b"


def test_text_that_is_none(journald: Journald, handler: JournalHandler) -> None:
    """A name that is no UTF-8 costs a question mark, not the line."""
    handler.emit(record("name \udcff"))
    assert journald.entry()["MESSAGE"] == "name ?"


def test_a_journal_that_does_not_take_it_is_not_waited_for(journald: Journald, handler: JournalHandler) -> None:
    """What is lost is counted, and told with the next line that comes through."""
    big = "x" * 60_000
    for _ in range(1000):
        handler.emit(record(big))
    sent = 0
    journald.socket.settimeout(0)
    try:
        while True:
            journald.socket.recv(65536)
            sent += 1
    except BlockingIOError:
        assert 0 < sent < 1000
    journald.socket.settimeout(5)
    handler.emit(record("again"))
    assert journald.entry()["GPUAGENT_LOST_LINES"] == str(1000 - sent)
    handler.emit(record("and on"))
    assert "GPUAGENT_LOST_LINES" not in journald.entry()


def test_no_journal_at_all(handler: JournalHandler) -> None:
    """While journald is being replaced there is no socket: no line may end the agent."""
    handler.emit(record("nobody listens"))


def test_whose_standard_error_is_the_journal(tmp_path: Path) -> None:
    """$JOURNAL_STREAM is inherited by children whose standard error is another: the inode tells."""
    with (tmp_path / "stream").open("w") as stream:
        status = os.fstat(stream.fileno())
        assert is_journal(f"{status.st_dev}:{status.st_ino}", stream.fileno())
        assert not is_journal(f"{status.st_dev}:{status.st_ino + 1}", stream.fileno())
        closed = stream.fileno()
    assert not is_journal("", closed)
    assert not is_journal("1:2", sys.maxsize % 2**31)
