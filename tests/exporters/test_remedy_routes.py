"""Killing by hand over HTTP: only on the control socket, by the kernel's word on who asks."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import BaseRoute

from gpuagent_exporters.api.process_routes import NotDone, remedy_command_routes, remedy_routes
from gpuagent_exporters.api.routes import build_app
from tests.exporters.wire import Answer, ask, connected, run, serving
from tests.fakes.identified import identified, row
from tests.fakes.source import FakeSource

TOLD = {"id": "1", "time_seconds": 1.0, "pid": 7, "name": "half \ud800", "gpu": 0, "unit": "", "used_bytes": 5}
STEP = {"time_seconds": 2.0, "kind": "result", "step": "exec", "ok": False}
END = {"time_seconds": 3.0, "result": "refused"}
RUN = TOLD | {
    "user": "alice", "uid": 5, "command": "secret", "asked_by": "bob (uid 1)", "expression": 'x{user="alice"}',
    "start_ticks": 1234, "boot_id": "b", "members": [7, 9], "a_later_key": "who knows",
    "steps": [STEP | {"pids": [7, 9], "detail": "alice's container is gone"}],
    "end": END | {"detail": "alice is not in remedies.allow.users", "reasons": ["alice is not"]},
}  # fmt: skip
GOES_ON = {"id": "2", "pid": 8, "steps": []}
TOLD_WITHHELD = {"fingerprint": "f", "alertname": "GpuMemoryHigh", "since_seconds": 4.0}
WITHHELD = TOLD_WITHHELD | {"labels": {"user": "alice"}, "reason": "pid 9 (secret) has held it for 2 s", "later": 1}


class FakeRemedies:
    """Knows one process, and notes who asked for what."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []

    async def remedies(self) -> dict[str, Any]:
        return {
            "schema": 1, "stopped": "", "stopped_by": "carol (uid 3)", "left_alone": ["uid 3"], "withheld": [WITHHELD],
            "remedies": [RUN, GOES_ON],
        }  # fmt: skip

    async def identified(self) -> dict[str, Any]:
        return identified(row(7))

    async def kill(self, pid: int, request: Mapping[str, Any], uid: int) -> dict[str, Any]:
        if pid != 7:
            raise NotDone(404, f"no process with pid {pid} is on a GPU")
        if "odd" in request:
            raise ValueError("unknown: odd")
        self.done.append((pid, dict(request), uid))
        return {"result": "released"}

    async def release(self, pid: int, request: Mapping[str, Any], uid: int) -> dict[str, Any]:
        self.done.append(("release", pid, dict(request), uid))
        return {"result": "released"}

    async def unload(self, pid: int, request: Mapping[str, Any], uid: int) -> dict[str, Any]:
        self.done.append(("unload", pid, dict(request), uid))
        return {"result": "released"}

    async def stop(self, uid: int) -> str:
        self.done.append(("stop", uid))
        return "the disk is full"

    async def lift(self, uid: int) -> tuple[list[str], list[str]]:
        self.done.append(("lift", uid))
        return ["lifted"], ["left"]

    async def reset(self, uid: int) -> None:
        self.done.append(("reset", uid))


def asked(folder: Path, remedies: FakeRemedies, method: str, path: str, body: bytes = b"") -> Answer:
    """One request over the control socket."""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"

    async def test() -> Answer:
        routes: Sequence[BaseRoute] = (*remedy_routes(remedies), *remedy_command_routes(remedies))
        app = build_app(FakeSource(), control=True, extra_routes=routes)
        async with serving(app, unix_socket=folder / "s"), connected(folder / "s") as client:
            await client.send(head.encode() + body)
            return await client.answer()

    return run(test())


def test_kill(tmp_path: Path) -> None:
    """The caller is the peer of the socket, whatever the request says."""
    remedies = FakeRemedies()
    answer = asked(tmp_path, remedies, "POST", "/api/v1/processes/7/kill", b'{"dry_run": true}')
    assert (answer.status, json.loads(answer.body)) == (200, {"result": "released"})
    assert remedies.done == [(7, {"dry_run": True}, os.getuid())]


@pytest.mark.parametrize(("path", "name"), [("release", "release"), ("reset", "unload")])
def test_what_is_asked_of_an_app(tmp_path: Path, path: str, name: str) -> None:
    """Giving the cache back is a remedy too: it is asked for with the caller's uid, like a kill."""
    remedies = FakeRemedies()
    assert asked(tmp_path, remedies, "POST", f"/api/v1/clients/7/{path}", b'{"force": true}').status == 200
    assert remedies.done == [(name, 7, {"force": True}, os.getuid())]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/api/v1/processes/8/kill", b"{}", 404),
        ("/api/v1/processes/7/kill", b'{"odd": 1}', 400),
        ("/api/v1/processes/7/kill", b"{", 400),
        ("/api/v1/processes/7/kill", b"[]", 400),
        ("/api/v1/processes/-7/kill", b"{}", 404),
        ("/api/v1/processes/x/kill", b"{}", 404),
        (f"/api/v1/processes/{'7' * 5000}/kill", b"{}", 404),
        (f"/api/v1/clients/{'7' * 5000}/release", b"{}", 404),
    ],
)
def test_refused(tmp_path: Path, path: str, body: bytes, status: int) -> None:
    """What is wrong with a request is its answer, and nothing is done."""
    remedies = FakeRemedies()
    assert asked(tmp_path, remedies, "POST", path, body).status == status
    assert remedies.done == []


def test_stop(tmp_path: Path) -> None:
    """A person stops remedies, and is told whether that is on record."""
    remedies = FakeRemedies()
    answer = asked(tmp_path, remedies, "POST", "/api/v1/remedies/stop")
    assert json.loads(answer.body) == {"stopped": True, "recorded": False, "message": "the disk is full"}
    assert remedies.done == [("stop", os.getuid())]


def test_reset(tmp_path: Path) -> None:
    """The breaker is closed by a person, who is known."""
    remedies = FakeRemedies()
    assert asked(tmp_path, remedies, "POST", "/api/v1/remedies/reset").status == 200
    assert remedies.done == [("reset", os.getuid())]


def test_reading(tmp_path: Path) -> None:
    """Whoever commands may read all that was done, or only what was done to one process."""
    remedies = FakeRemedies()
    told = {
        path: json.loads(asked(tmp_path, remedies, "GET", f"/api/v1/{path}").body)["remedies"]
        for path in ("remedies", "processes/8/remedies", "processes/99/remedies")
    }
    assert told == {"remedies": [RUN, GOES_ON], "processes/8/remedies": [GOES_ON], "processes/99/remedies": []}


def test_what_names_a_process_is_for_who_commands(tmp_path: Path) -> None:
    """Start time, boot and namespace are told on the control socket, and at no path of any address that reads."""

    async def public() -> list[Answer]:
        routes = remedy_routes(FakeRemedies())
        async with serving(build_app(FakeSource(), extra_routes=routes)) as server:
            paths = ("processes/identified", "processes", "status", "remedies")
            return [await ask(server, f"/api/v1/{path}") for path in paths]

    told = json.loads(asked(tmp_path, FakeRemedies(), "GET", "/api/v1/processes/identified").body)
    assert told == identified(row(7))
    absent, *readable = run(public())
    assert absent.status == 404
    assert [b"pid_namespace" in answer.body for answer in readable] == [False] * 3


def test_an_open_address_says_no_more_than_metrics() -> None:
    """Nobody's name, no words that may hold one, and nothing that only identifies a process; nor a later key."""

    async def public() -> Answer:
        routes = remedy_routes(FakeRemedies(), show_commands=False)
        async with serving(build_app(FakeSource(), extra_routes=routes)) as server:
            return await ask(server, "/api/v1/remedies")

    told = run(public()).json()
    assert told["remedies"] == [TOLD | {"steps": [STEP], "end": END}, GOES_ON]
    assert told["withheld"] == [TOLD_WITHHELD]
    assert (told["stopped_by"], told["left_alone"]) == ("", [])


def test_the_network_cannot_kill() -> None:
    """The address that only reads has no such route, and takes no such method."""

    async def public() -> list[int]:
        routes = remedy_routes(FakeRemedies())
        async with serving(build_app(FakeSource(), extra_routes=routes)) as server:
            paths = ("/api/v1/processes/7/kill", "/api/v1/remedies/reset", "/api/v1/remedies")
            return [(await ask(server, path, "POST")).status for path in paths]

    assert set(run(public())) <= {404, 405}
