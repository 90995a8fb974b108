"""Evidence, traces and feedback over HTTP: every door reads, only the control socket is told anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from gpuagent_exporters.api.alert_routes import NotKept, leak_command_routes, leak_routes
from gpuagent_exporters.api.routes import build_app
from tests.exporters.wire import Answer, connected, run, serving
from tests.fakes.source import FakeSource

EVIDENCE = Path(__file__).parents[2] / "docs" / "images" / "leak-explained.json"
SAID = {"id": "1", "user": "alice", "note": "a cache", "by": "root", "label": "false", "trace": {"runs": []}}


class FakeLeaks:
    """Remembers process 7, and what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def explain(self, pid: int, gpu: str) -> dict[str, Any]:
        if pid != 7:
            raise KeyError(f"nothing is remembered of {pid}")
        drawn: dict[str, Any] = json.loads(EVIDENCE.read_text()) | {"process": "<script>"}
        return drawn | {"pid": pid, "gpu": gpu, "user": "alice", "judged_by": {"match": {"user": "alice", "app": "a"}}}

    async def traces(self, pid: int | None, gpu: str) -> dict[str, Any]:
        return {"traces": [{"pid": pid, "gpu": gpu, "user": "alice", "trace": {}}]}

    async def feedback(self) -> dict[str, Any]:
        return {"feedback": [SAID]}

    async def feedback_entry(self, entry_id: str) -> dict[str, Any]:
        if entry_id != "1":
            raise KeyError("there is none")
        return dict(SAID)

    async def add_feedback(self, pid: int, gpu: str, label: str, note: str, creator: str) -> dict[str, Any]:
        if note == "full":
            raise NotKept("the disk is full")
        self.told.append((pid, gpu, label, note, creator))
        return {"id": "2"}

    async def remove_feedback(self, entry_id: str) -> None:
        self.told.append((entry_id,))


def asked(folder: Path, leaks: FakeLeaks, method: str, path: str, body: Any = None, *, door: str = "") -> Answer:
    """One request: over the control socket, or (door "open" or "private") as the read-only address has it."""
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    routes = (
        leak_routes(leaks, show_commands=door != "open") if door else (*leak_routes(leaks), *leak_command_routes(leaks))
    )

    async def test() -> Answer:
        app = build_app(FakeSource(), control=not door, extra_routes=routes)
        async with serving(app, unix_socket=folder / "s"), connected(folder / "s") as client:
            await client.send(head.encode() + content)
            return await client.answer()

    return run(test())


def test_an_open_address_names_nobody(short_folder: Path) -> None:
    """Users, notes and who told are for the control socket, and for an address that is private."""
    drawn = "/api/v1/leaks/7/plot.svg"
    for path in (
        "/api/v1/leaks/7",
        drawn,
        "/api/v1/leaks/trace?pid=7",
        "/api/v1/leaks/feedback",
        "/api/v1/leaks/feedback/1",
    ):
        for door in ("", "private"):
            assert "alice" in asked(short_folder, FakeLeaks(), "GET", path, door=door).body.decode()
        answer = asked(short_folder, FakeLeaks(), "GET", path, door="open")
        assert answer.status == 200
        assert not any(word in answer.body.decode() for word in ("alice", "a cache", "root"))


def test_a_leak_is_drawn(short_folder: Path) -> None:
    """As an image, in which a process's name is text."""
    answer = asked(short_folder, FakeLeaks(), "GET", "/api/v1/leaks/7/plot.svg?gpu=0", door="private")
    assert (answer.status, answer.headers["content-type"]) == (200, "image/svg+xml")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    texts = [each.text for each in ET.fromstring(answer.body.decode()).iter() if each.tag.endswith("}text")]
    assert texts[0] == "<script> (pid 7, alice, embed-server.service) on GPU 0"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/leaks/8", 404),
        ("/api/v1/leaks/8/plot.svg", 404),
        ("/api/v1/leaks/7?gpu=%0a", 400),
        ("/api/v1/leaks/trace?pid=x", 400),
        ("/api/v1/leaks/feedback/9", 404),
    ],
)
def test_what_is_not_there(short_folder: Path, path: str, status: int) -> None:
    """At each door the same, with words."""
    for door in ("", "private", "open"):
        answer = asked(short_folder, FakeLeaks(), "GET", path, door=door)
        assert answer.status == status
        assert answer.json()["message"]


def test_only_the_control_socket_is_told(short_folder: Path) -> None:
    """Who told it is the kernel's word; an address that reads knows no such method."""
    leaks, body = FakeLeaks(), {"label": "false", "note": "a cache"}
    assert asked(short_folder, leaks, "POST", "/api/v1/leaks/7/feedback", body).status == 201
    assert asked(short_folder, leaks, "POST", "/api/v1/leaks/feedback/1/remove").status == 200
    assert [len(each) for each in leaks.told] == [5, 1]
    assert leaks.told[0][:4] == (7, "", "false", "a cache")
    assert leaks.told[0][4]
    for path in ("/api/v1/leaks/7/feedback", "/api/v1/leaks/feedback/1/remove"):
        assert asked(short_folder, leaks, "POST", path, body, door="private").status == 404
    assert asked(short_folder, leaks, "POST", "/api/v1/leaks/feedback", body, door="private").status == 405
    assert len(leaks.told) == 2


@pytest.mark.parametrize(
    "body",
    [
        None,
        {"label": 1},
        {"label": "true", "note": 1},
        {"label": "true", "gpu": "a b"},
        {"label": "true", "by": "me"},
        [7],
    ],
)
def test_what_is_no_feedback(short_folder: Path, body: Any) -> None:
    """A field that is none, or that nobody knows, is refused, and nothing is kept."""
    leaks = FakeLeaks()
    assert asked(short_folder, leaks, "POST", "/api/v1/leaks/7/feedback", body).status == 400
    assert leaks.told == []


def test_what_cannot_be_kept(short_folder: Path) -> None:
    """It says so: 503, with the reason."""
    answer = asked(short_folder, FakeLeaks(), "POST", "/api/v1/leaks/7/feedback", {"label": "true", "note": "full"})
    assert (answer.status, answer.json()["message"]) == (503, "the disk is full")
