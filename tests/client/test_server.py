"""Whose commands are obeyed."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from gpuagent_client.connection import (
    Directory,
    in_user_namespace,
    may_command,
    overflow_uid,
    peer_uid,
    socket_directory,
    trusted,
)
from tests.fakes.agent_socket import FakeAgent
from tests.tables import table

ROOT, APP, AGENT, STRANGER, OVERFLOW = 0, 1000, 990, 1001, 65534


@table(
    "uid, owner, writable, obeyed",
    [
        (ROOT, ROOT, False, True),
        (APP, APP, True, True),
        (AGENT, AGENT, False, True),
        (AGENT, AGENT, True, False),
        (STRANGER, ROOT, False, False),
        (STRANGER, AGENT, False, False),
        (OVERFLOW, OVERFLOW, False, True),
        (OVERFLOW, ROOT, False, False),
    ],
)
def test_who_may_command(uid: int, owner: int, *, writable: bool, obeyed: bool) -> None:
    """Root, the app's own user, and whoever was given the directory; nobody else on the node."""
    directory = Directory(owner, writable=writable)

    assert may_command(uid, APP, directory, foreign_namespace=False, overflow=OVERFLOW) is obeyed


@pytest.mark.parametrize("writable", [False, True])
def test_in_a_user_namespace_the_directory_vouches(*, writable: bool) -> None:
    """In a container every user of the node is `nobody`: only who could place the socket tells them apart."""
    directory = Directory(OVERFLOW, writable=writable)

    assert may_command(OVERFLOW, APP, directory, foreign_namespace=True, overflow=OVERFLOW) is not writable


@pytest.mark.parametrize(
    ("text", "foreign"), [("         0          0 4294967295\n", False), ("0 100000 65536\n", True), ("", True)]
)
def test_a_user_namespace_is_recognized(tmp_path: Path, text: str, *, foreign: bool) -> None:
    """By its map, which on the node itself is the identity (user_namespaces(7))."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "uid_map").write_text(text)

    assert in_user_namespace(tmp_path) is foreign


def test_a_proc_that_tells_nothing_changes_nothing(tmp_path: Path) -> None:
    """Without /proc the careful answers hold."""
    assert not in_user_namespace(tmp_path)
    assert overflow_uid(tmp_path) == 65534


def test_the_kernel_says_who_listens(agent: FakeAgent, socket_path: Path) -> None:
    """The credentials are those of whoever called listen, here this very user."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(socket_path))

        assert peer_uid(connection) == os.geteuid()
        assert trusted(connection, str(socket_path))


def test_a_socket_that_is_gone_is_trusted_by_nobody(tmp_path: Path) -> None:
    """What cannot be looked at is not obeyed."""
    with socket.socket(socket.AF_UNIX) as unconnected:
        assert not trusted(unconnected, str(tmp_path / "nowhere" / "client.sock"))


def test_the_directory_is_that_of_the_socket(tmp_path: Path) -> None:
    """Its owner, and whether this process could have put the socket there."""
    assert socket_directory(str(tmp_path / "client.sock")) == Directory(os.geteuid(), writable=True)
