"""A command does what it is asked for or nothing: no argument is passed over, and none is read in two ways."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.routing import Route

from gpuagent_exporters.api.alert_routes import alert_routes
from gpuagent_exporters.api.control import control_routes
from gpuagent_exporters.api.process_routes import client_command_routes, remedy_command_routes
from gpuagent_exporters.api.routes import build_app
from gpuagent_exporters.http.middleware import QUERY_ARGUMENTS
from tests.exporters.test_remedy_routes import FakeRemedies
from tests.exporters.wire import Answer, connected, run, serving
from tests.fakes.openapi import OPERATIONS
from tests.fakes.source import FakeSource


class Untouched:
    """Whoever asks anything of it has let a request through that should have been refused."""

    def __getattr__(self, name: str) -> Any:
        async def fail(*_: object) -> None:
            raise AssertionError(f"{name} was asked for")

        return fail


UNTOUCHED = cast("Any", Untouched())
ROUTES = (
    *control_routes(UNTOUCHED), *alert_routes(UNTOUCHED), *remedy_command_routes(UNTOUCHED),
    *client_command_routes(UNTOUCHED),
)  # fmt: skip


def _commands() -> list[tuple[str, str]]:
    """Method and a path of every route that changes something."""
    app = build_app(FakeSource(), control=True, extra_routes=ROUTES)
    routes = [route for route in app.routes if isinstance(route, Route)]
    return [
        (method, re.sub(r"{[^}]*}", "7", route.path))
        for route in routes
        for method in sorted((route.methods or set()) - {"GET", "HEAD"})
    ]


COMMANDS = _commands()
WITHOUT_ARGUMENTS = [
    (method, path)
    for method, path in COMMANDS
    if not re.search(r"/(kill|release|silences|acks)$|/clients/", path) or method == "DELETE"
]


def asked(folder: Path, method: str, target: str, body: bytes = b"", source: Any = None) -> Answer:
    """One request over the control socket."""
    head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    routes = ROUTES if source is None else remedy_command_routes(source)

    async def test() -> Answer:
        app = build_app(FakeSource(), control=True, extra_routes=routes)
        async with serving(app, unix_socket=folder / "s"), connected(folder / "s") as client:
            await client.send(head.encode() + body)
            return await client.answer()

    return run(test())


@pytest.mark.parametrize(("method", "path"), COMMANDS)
def test_no_command_passes_over_its_query(tmp_path: Path, method: str, path: str) -> None:
    """`?dry_run=true` behind any command is refused, with words on where arguments go, and nothing is asked for."""
    answer = asked(tmp_path, method, f"{path}?dry_run=true")
    assert answer.status == 400
    assert "unknown arguments in the query: 'dry_run'" in answer.json()["message"]
    assert "Arguments go in the body, as JSON." in answer.json()["message"]


@pytest.mark.parametrize("query", ["dry_run", "dry_run=", "=true", "seconds=5&dry%5frun=true", "id=1", ";dry_run"])
def test_a_query_in_any_form(tmp_path: Path, query: str) -> None:
    """Without a value, without a name, escaped, or of another command: none is passed over."""
    assert asked(tmp_path, "POST", f"/api/v1/processes/7/kill?{query}").status == 400


@pytest.mark.parametrize(
    "target", ["/api/v1/pause?seconds=5&seconds=500", "/api/v1/receivers/replay?id=1&id=2", "/api/v1/pause?second=5"]
)
def test_a_query_that_is_taken_says_one_thing(tmp_path: Path, target: str) -> None:
    """What two values would mean is not guessed; a misspelt name is told with those there are."""
    assert asked(tmp_path, "POST", target).status == 400


def test_queries_are_described() -> None:
    """What is taken in the query is what the API's description has there."""
    described = {(each.method, each.path): set(each.query) for each in OPERATIONS if each.method != "GET"}
    assert {key: names for key, names in described.items() if names} == QUERY_ARGUMENTS


@pytest.mark.parametrize(("method", "path"), WITHOUT_ARGUMENTS)
def test_a_command_without_arguments_takes_none(tmp_path: Path, method: str, path: str) -> None:
    """A body with an argument is refused where there is none to give."""
    query = "?seconds=5" if path.endswith("/pause") else ""
    answer = asked(tmp_path, method, path + query, b'{"dry_run": true}')
    assert (answer.status, answer.json()["message"]) == (400, "unknown: 'dry_run'; allowed: nothing")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"dry_run": true, "dry_run": false}', "'dry_run' is there twice in an object of the body"),
        (b'{"dry_run": true, "dry\\u005frun": false}', "'dry_run' is there twice in an object of the body"),
        (b'{"a": [{"b": 1, "b": 1}]}', "'b' is there twice in an object of the body"),
        (b'{"start_ticks": NaN}', "NaN is no number of JSON's"),
        (b'{"start_ticks": -Infinity}', "-Infinity is no number of JSON's"),
    ],
)
@pytest.mark.parametrize("path", ["processes/7/kill", "clients/7/release", "clients/7/blame", "silences", "acks"])
def test_a_body_is_read_in_one_way(tmp_path: Path, path: str, body: bytes, words: str) -> None:
    """A key that is there twice is refused, however it is spelt and however deep; so is what is no JSON."""
    answer = asked(tmp_path, "POST", f"/api/v1/{path}", body)
    assert (answer.status, answer.json()["message"]) == (400, words)


def test_a_kill_whose_query_is_refused_is_not_done(tmp_path: Path) -> None:
    """The same request without the query is done: it was the query that was refused."""
    remedies = FakeRemedies()
    assert asked(tmp_path, "POST", "/api/v1/processes/7/kill?dry_run=true", b"{}", remedies).status == 400
    assert remedies.done == []
    assert asked(tmp_path, "POST", "/api/v1/processes/7/kill?", b"{}", remedies).status == 200
    assert len(remedies.done) == 1


def test_questions_may_have_any_query(tmp_path: Path) -> None:
    """Nothing is changed by a GET: a cache buster of a browser's does no harm."""
    assert asked(tmp_path, "GET", "/api/v1/status?_=1").status == 200


@pytest.mark.parametrize(
    ("method", "path", "status"), [("TRACE", "pause", 405), ("POST", "status", 405), ("POST", "x", 404)]
)
def test_what_is_no_command_is_said_to_be_none(tmp_path: Path, method: str, path: str, status: int) -> None:
    """Of a method or path that there is not, the query is beside the point."""
    assert asked(tmp_path, method, f"/api/v1/{path}?seconds=5&x=1").status == status
