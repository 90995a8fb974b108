"""Embedded clients over HTTP: every door shows them, only the control socket asks them to do something."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuagent_exporters.api.process_routes import CommandFailure, client_command_routes, client_routes
from gpuagent_exporters.api.routes import build_app
from tests.exporters.wire import Answer, connected, run, serving
from tests.fakes.source import FakeSource

APP = {"pid": 7, "app": "web", "user": "alice", "uid": 1000, "command": "python app.py", "events": [{"name": "x"}]}


class FakeClients:
    """One app, which does what its name says; notes what it was asked."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []

    def clients(self) -> dict[str, Any]:
        return {"schema": 1, "clients": [APP]}

    async def command(self, pid: int, name: str, args: Mapping[str, Any]) -> dict[str, Any]:
        if name == "unknown":
            raise KeyError("there is no command 'unknown'")
        if name == "wrong":
            raise ValueError("ratio must be a number")
        if name in {"absent", "forbidden", "busy", "late", "refused", "gone"}:
            raise CommandFailure(name, "half \ud800")
        self.done.append((pid, name, dict(args)))
        return {"pid": pid}


def asked(folder: Path, clients: FakeClients, method: str, path: str, body: bytes = b"", *, door: str = "") -> Answer:
    """One request: over the control socket, or (door "open" or "private") as the read-only address has it."""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    routes = client_routes(clients, show_commands=door != "open")
    if not door:
        routes = (*routes, *client_command_routes(clients))

    async def test() -> Answer:
        app = build_app(FakeSource(), control=not door, extra_routes=routes)
        async with serving(app, unix_socket=folder / "s"), connected(folder / "s") as client:
            await client.send(head.encode() + body)
            return await client.answer()

    return run(test())


def test_the_apps_are_shown(short_folder: Path) -> None:
    """To whoever may use the control socket, and on an address that is private: everything."""
    for door in ("", "private"):
        assert asked(short_folder, FakeClients(), "GET", "/api/v1/clients", door=door).json()["clients"] == [APP]


def test_an_open_address_does_not_tell_who_runs_what(short_folder: Path) -> None:
    """Users, command lines and what apps report are not for everybody who reaches the port."""
    (app,) = asked(short_folder, FakeClients(), "GET", "/api/v1/clients", door="open").json()["clients"]

    assert app == {"pid": 7, "app": "web", "user": "", "uid": None, "command": "", "events": []}


def test_the_address_takes_no_commands(short_folder: Path) -> None:
    """They are not even there."""
    clients = FakeClients()
    answer = asked(short_folder, clients, "POST", "/api/v1/clients/7/release", b"{}", door="private")

    assert (answer.status, clients.done) == (404, [])


@pytest.mark.parametrize(("body", "args"), [(b"", {}), (b"{}", {}), (b'{"collect":true}', {"collect": True})])
def test_a_command(short_folder: Path, body: bytes, args: dict[str, Any]) -> None:
    """With its arguments; none is none."""
    clients = FakeClients()
    answer = asked(short_folder, clients, "POST", "/api/v1/clients/7/release", body)

    assert (answer.status, answer.json(), clients.done) == (200, {"pid": 7}, [(7, "release", args)])


@pytest.mark.parametrize(
    ("name", "status"),
    [("absent", 404), ("forbidden", 403), ("busy", 409), ("late", 504), ("refused", 502), ("gone", 502)],
)
def test_what_was_not_done(short_folder: Path, name: str, status: int) -> None:
    """The status tells the kind, the reason is one word, and the app's words come through whatever they are."""
    answer = asked(short_folder, FakeClients(), "POST", f"/api/v1/clients/7/{name}")

    assert (answer.status, answer.json()["reason"], answer.json()["message"]) == (status, name, "half \ud800")


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("7/unknown", b"", 404, "there is no command"),
        ("7/wrong", b"", 400, "ratio must be"),
        ("7/release", b"[", 400, "not JSON"),
        ("7/release", b"[" * 60_000, 400, "not JSON"),
        ("7/release", b"[]", 400, "not a JSON object"),
        ("seven/release", b"", 404, "There is nothing at"),
        ("-7/release", b"", 404, "There is nothing at"),
    ],
)
def test_bad_requests(short_folder: Path, path: str, body: bytes, status: int, words: str) -> None:
    """What is wrong is said, and no app hears of it."""
    clients = FakeClients()
    answer = asked(short_folder, clients, "POST", f"/api/v1/clients/{path}", body)

    assert (answer.status, clients.done) == (status, [])
    assert words in json.loads(answer.body)["message"]
