"""Telling systemd how we are, over a real socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuagent.runtime.sd_notify import SystemdNotifier


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where systemd listens."""
    return tmp_path / "notify"


@pytest.fixture
def systemd(path: Path) -> Iterator[socket.socket]:
    """The other end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(path))
        receiver.settimeout(20)
        yield receiver


def test_every_message_is_one_datagram(systemd: socket.socket, path: Path) -> None:
    """As sd_notify(3) has them."""
    notifier = SystemdNotifier({"NOTIFY_SOCKET": str(path)})
    notifier.reloading(17)
    notifier.ready()
    notifier.alive()
    notifier.stopping()

    assert [systemd.recv(100) for _ in range(4)] == [
        b"RELOADING=1\nMONOTONIC_USEC=17",
        b"READY=1",
        b"WATCHDOG=1",
        b"STOPPING=1",
    ]


def test_the_status_is_told_when_it_changes(systemd: socket.socket, path: Path) -> None:
    """A tick a second is no news a second."""
    notifier = SystemdNotifier({"NOTIFY_SOCKET": str(path)})
    for text in ("2 GPUs", "2 GPUs", "1 GPU lost", "2 GPUs"):
        notifier.status(text)
    notifier.stopping()

    assert [systemd.recv(100) for _ in range(4)] == [
        b"STATUS=2 GPUs", b"STATUS=1 GPU lost", b"STATUS=2 GPUs", b"STOPPING=1",
    ]  # fmt: skip


def test_an_abstract_socket() -> None:
    """`@` stands for the zero byte of its name."""
    name = f"gpuagent-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0{name}")
        receiver.settimeout(20)
        SystemdNotifier({"NOTIFY_SOCKET": f"@{name}"}).ready()

        assert receiver.recv(100) == b"READY=1"


def test_without_systemd() -> None:
    """Nothing is sent, and nothing is watched."""
    notifier = SystemdNotifier({})
    notifier.ready()

    assert notifier.watchdog_seconds is None


def test_nobody_listens(path: Path) -> None:
    """A message that is lost is no error."""
    SystemdNotifier({"NOTIFY_SOCKET": str(path)}).ready()


def test_a_receiver_that_does_not_read(systemd: socket.socket, path: Path) -> None:
    """GPU-04: a full queue loses messages; it does not stop the loop."""
    notifier = SystemdNotifier({"NOTIFY_SOCKET": str(path)})
    for _ in range(5000):
        notifier.alive()

    assert systemd.recv(100) == b"WATCHDOG=1"


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": ""}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "²"}, None),
        ({}, None),
    ],
)
def test_the_watchdog(environ: dict[str, str], seconds: float | None) -> None:
    """How often systemd wants to hear from this very process (sd_watchdog_enabled(3))."""
    assert SystemdNotifier(environ).watchdog_seconds == seconds
