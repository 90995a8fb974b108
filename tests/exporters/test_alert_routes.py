"""Commands about alerts over HTTP: what is wrong with a request is its answer, and nothing else happens."""

from __future__ import annotations

import json
import os
import pwd
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuagent.core import accounts
from gpuagent_exporters.api.alert_routes import NotNow, alert_routes, read_routes
from gpuagent_exporters.api.routes import build_app
from tests.exporters.wire import Answer, ask, connected, run, serving
from tests.fakes.source import FakeSource

SILENCE = {"matchers": ['gpu="0"'], "seconds": 60, "comment": "work"}
ME = pwd.getpwuid(os.getuid()).pw_name


class FakeCommands:
    """Knows one silence, one alert, one receiver and one dead letter; notes what it was asked to do."""

    def __init__(self, *, broken: bool = False) -> None:
        self.done: list[tuple[Any, ...]] = []
        self.takes = True
        self._broken = broken

    async def alerts(self) -> dict[str, Any]:
        return {"schema": 1, "alerts": [{"labels": {"process": "half \ud800"}}]}

    async def dead(self) -> dict[str, Any]:
        return {"schema": 1, "dead": []}

    async def add_silence(self, matchers: Sequence[str], seconds: float, comment: str, creator: str) -> dict[str, Any]:
        if self._broken:
            raise NotNow("it could not be kept")
        if not matchers:
            raise ValueError("a silence needs a matcher")
        self.done.append(("silence", list(matchers), seconds, comment, creator))
        return {"id": "1"}

    async def expire_silence(self, silence_id: str) -> dict[str, Any]:
        self._know(silence_id, "1")
        return {"id": silence_id}

    async def acknowledge(self, which: str, comment: str, creator: str) -> list[str]:
        self._know(which, "Full")
        self.done.append(("ack", which, comment, creator))
        return ["f1"]

    async def unacknowledge(self, which: str) -> list[str]:
        self._know(which, "a/b")
        return ["f1"]

    async def test_receiver(self, name: str) -> tuple[bool, str]:
        """A command, no test."""
        self._know(name, "a/b c")
        return self.takes, "delivered" if self.takes else "it is down"

    async def replay(self, letter_id: str | None) -> int:
        if letter_id is not None:
            self._know(letter_id, "7")
        return 1

    def _know(self, what: str, known: str) -> None:
        if what != known:
            raise KeyError(f"there is no {what}")


def asked(folder: Path, commands: FakeCommands, method: str, path: str, body: object = None) -> Answer:
    """One request over the control socket; a body that is no bytes goes as JSON."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"

    async def test() -> Answer:
        app = build_app(FakeSource(), control=True, extra_routes=alert_routes(commands))
        async with serving(app, unix_socket=folder / "s"), connected(folder / "s") as client:
            await client.send(head.encode() + data)
            return await client.answer()

    return run(test())


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "answer"),
    [
        ("GET", "/api/v1/alerts/dead", None, 200, {"schema": 1, "dead": []}),
        ("POST", "/api/v1/silences", SILENCE, 201, {"id": "1"}),
        ("DELETE", "/api/v1/silences/1", None, 200, {"id": "1"}),
        ("POST", "/api/v1/acks", {"alert": "Full"}, 201, {"acknowledged": ["f1"]}),
        ("DELETE", "/api/v1/acks/a%2Fb", None, 200, {"removed": ["f1"]}),
        ("POST", "/api/v1/receivers/a%2Fb%20c/test", None, 200, {"taken": True, "outcome": "delivered"}),
        ("POST", "/api/v1/receivers/replay", None, 200, {"replayed": 1}),
        ("POST", "/api/v1/receivers/replay?id=7", None, 200, {"replayed": 1}),
    ],
)
def test_good_requests(
    short_folder: Path, method: str, path: str, body: object, status: int, answer: dict[str, Any]
) -> None:
    """Each command has its answer."""
    received = asked(short_folder, FakeCommands(), method, path, body)

    assert (received.status, received.json()) == (status, answer)


def test_a_user_database_that_is_silent(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who silences or acknowledges is named by number; nothing waits for a name that does not come."""
    ends = threading.Event()

    def silent(_: int) -> pwd.struct_passwd:
        ends.wait(60)
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", silent)
    monkeypatch.setattr(accounts, "_PATIENCE_SECONDS", 0.05)
    commands = FakeCommands()
    try:
        asked(short_folder, commands, "POST", "/api/v1/silences", SILENCE)
        asked(short_folder, commands, "POST", "/api/v1/acks", {"alert": "Full"})
        assert not ends.is_set()
        assert [done[-1] for done in commands.done] == [str(os.getuid())] * 2
    finally:
        ends.set()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/v1/alerts", 200),
        ("POST", "/api/v1/alerts", 405),
        ("GET", "/api/v1/alerts/dead", 404),
        ("POST", "/api/v1/silences", 404),
        ("DELETE", "/api/v1/silences/1", 404),
        ("POST", "/api/v1/acks", 404),
        ("DELETE", "/api/v1/acks/a", 404),
        ("POST", "/api/v1/receivers/replay", 404),
        ("POST", "/api/v1/receivers/a/test", 404),
    ],
)
def test_the_address_for_everybody_only_reads(method: str, path: str, status: int) -> None:
    """Alerts are there, in the document of the control socket; nothing that anybody could do to them."""
    commands = FakeCommands()

    async def test() -> Answer:
        async with serving(build_app(FakeSource(), extra_routes=read_routes(commands))) as server:
            return await ask(server, path, method)

    answer = run(test())
    assert (answer.status, commands.done) == (status, [])
    if status == 200:
        assert answer.json() == run(commands.alerts())


def test_an_open_address_names_nobody() -> None:
    """Neither an alert's text, nor who is at it, nor whose silence it is, nor what a receiver has said; the rest."""

    class Told(FakeCommands):
        async def alerts(self) -> dict[str, Any]:
            one = {"name": "Full", "annotations": {"summary": "bob's job"}, "acknowledged_by": "alice"}
            silence = {"id": "1", "creator": "alice", "comment": "alice moves", "matchers": []}
            receivers = [{"last": "it answered 500: ask bob", "off": ""}, {"last": "", "off": "alice has left (410)"}]
            return {
                "schema": 1, "alerts": [one, {**one, "acknowledged_by": ""}], "silences": [silence],
                "receivers": receivers, "heartbeats": [{"receiver": "alive", "last": "no route to bob"}],
            }  # fmt: skip

    async def test() -> Answer:
        routes = read_routes(Told(), show_commands=False)
        async with serving(build_app(FakeSource(), extra_routes=routes)) as server:
            return await ask(server, "/api/v1/alerts")

    answer = run(test())
    assert [alert["acknowledged_by"] for alert in answer.json()["alerts"]] == ["hidden", ""]
    assert answer.json()["alerts"][0]["name"] == "Full"
    assert answer.json()["receivers"] == [{"last": "hidden", "off": ""}, {"last": "", "off": "hidden"}]
    assert answer.json()["heartbeats"] == [{"receiver": "alive", "last": "hidden"}]
    assert b"alice" not in answer.body
    assert b"bob" not in answer.body


def test_what_cannot_be_encoded_is_shown(short_folder: Path) -> None:
    """PROC: a label with half a character, which a process may have in its name, does not hide all alerts."""
    answer = asked(short_folder, FakeCommands(), "GET", "/api/v1/alerts")

    assert (answer.status, answer.json()["alerts"][0]["labels"]["process"]) == (200, "half \ud800")


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("silences", b"", "not JSON"),
        ("silences", b"{", "not JSON"),
        ("silences", b"\xff\xfe", "not JSON"),
        ("silences", b"[" * 9000, "not JSON"),
        ("silences", [1], "not a JSON object"),
        ("silences", {"seconds": 60}, "matchers must be"),
        ("silences", SILENCE | {"matchers": 'gpu="0"'}, "matchers must be"),
        ("silences", SILENCE | {"matchers": [5]}, "matchers must be"),
        ("silences", SILENCE | {"matchers": []}, "a silence needs a matcher"),
        ("silences", SILENCE | {"comment": 5}, "comment must be a text"),
        ("silences", {"matchers": ['gpu="0"']}, "seconds must be"),
        ("silences", SILENCE | {"seconds": "60"}, "seconds must be"),
        ("silences", SILENCE | {"seconds": True}, "seconds must be"),
        ("silences", SILENCE | {"seconds": 0}, "seconds must be"),
        ("silences", SILENCE | {"seconds": float("nan")}, "NaN is no number of JSON's"),
        ("silences", SILENCE | {"seconds": float("inf")}, "Infinity is no number of JSON's"),
        ("silences", SILENCE | {"seconds": 10**400}, "seconds must be"),
        ("silences", SILENCE | {"creator": "bob"}, "unknown: 'creator'; allowed: comment, matchers, seconds"),
        ("acks", {"alert": "Full", "creator": "bob"}, "unknown: 'creator'; allowed: alert, comment"),
        ("acks", {"alert": ["Full"]}, "alert must be a text"),
        ("acks", {"alert": "Full", "comment": None}, "comment must be a text"),
    ],
)
def test_bad_requests(short_folder: Path, path: str, body: object, words: str) -> None:
    """What is wrong is said with status 400, and nothing is done."""
    commands = FakeCommands()
    answer = asked(short_folder, commands, "POST", f"/api/v1/{path}", body)

    assert (answer.status, commands.done) == (400, [])
    assert words in answer.json()["message"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("DELETE", "silences/2", None),
        ("POST", "acks", {"alert": "2"}),
        ("POST", "receivers/2/test", None),
        ("POST", "receivers/replay?id=2", None),
    ],
)
def test_what_there_is_not(short_folder: Path, method: str, path: str, body: object) -> None:
    """An unknown silence, alert, receiver or message is a 404 that names it."""
    answer = asked(short_folder, FakeCommands(), method, f"/api/v1/{path}", body)

    assert (answer.status, answer.json()["message"]) == (404, "there is no 2")


def test_the_creator_is_who_called(short_folder: Path) -> None:
    """Who silenced is what the kernel says of the caller: a request cannot claim another one."""
    commands = FakeCommands()
    asked(short_folder, commands, "POST", "/api/v1/silences", SILENCE)
    asked(short_folder, commands, "POST", "/api/v1/acks", {"alert": "Full"})

    assert commands.done == [("silence", ['gpu="0"'], 60.0, "work", ME), ("ack", "Full", "", ME)]


def test_half_a_character_is_made_writable(short_folder: Path) -> None:
    """A comment that no file and no receiver can take is put right before it is kept."""
    commands = FakeCommands()
    asked(short_folder, commands, "POST", "/api/v1/silences", SILENCE | {"comment": "a\ud800"})

    assert commands.done[0][3] == "a?"


def test_a_receiver_that_does_not_take(short_folder: Path) -> None:
    """A test that failed is a bad gateway, with the outcome in words."""
    commands = FakeCommands()
    commands.takes = False
    answer = asked(short_folder, commands, "POST", "/api/v1/receivers/a%2Fb%20c/test")

    assert (answer.status, answer.json()) == (502, {"taken": False, "outcome": "it is down"})


def test_a_store_that_fails(short_folder: Path) -> None:
    """What could not be kept is not said to be done: 503, with the reason."""
    answer = asked(short_folder, FakeCommands(broken=True), "POST", "/api/v1/silences", SILENCE)

    assert (answer.status, answer.json()["message"]) == (503, "it could not be kept")
