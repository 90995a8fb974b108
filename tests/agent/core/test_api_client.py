"""Asking an agent: whatever answers, there is a document or a plain reason, in time."""

from __future__ import annotations

import base64
import json
import socket
import threading
from pathlib import Path

import pytest

from gpuagent.core.api_client import AgentUnreachable, default_socket, fetch_anywhere, fetch_document, request
from tests.fakes.answering import Answer, answering, read_request, says
from tests.tables import table

DOCUMENT = {"schema": 1, "gpus": []}


def reason(place: Path | str, timeout_seconds: float = 5.0) -> str:
    """Why there is no document."""
    with pytest.raises(AgentUnreachable) as caught:
        fetch_document(place, timeout_seconds=timeout_seconds)
    return str(caught.value)


@pytest.mark.parametrize("unix", [True, False], ids=["unix socket", "TCP"])
def test_a_document_arrives(unix: bool) -> None:
    """The status comes over the control socket and over the read-only address alike."""
    requests: list[bytes] = []
    with answering(says(DOCUMENT, requests=requests), unix=unix) as place:
        assert fetch_document(place) == DOCUMENT
    assert requests[0].startswith(b"GET /api/v1/status HTTP/1.1\r\n")


def test_nobody_is_there(tmp_path: Path) -> None:
    """A missing socket and a closed port are told with the place."""
    with socket.socket() as bound:  # bound, and nobody listens
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        assert reason(url) == f"{url}: Connection refused"
    assert reason(tmp_path / "control.sock") == f"{tmp_path / 'control.sock'}: No such file or directory"


def test_a_socket_that_nobody_serves(tmp_path: Path) -> None:
    """A socket left behind by a killed agent is refused at once."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    assert reason(path) == f"{path}: Connection refused"


def garbage(connection: socket.socket, over: threading.Event) -> None:
    """Something that is no HTTP server."""
    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
    read_request(connection)


def silent(connection: socket.socket, over: threading.Event) -> None:
    """An agent whose loop stands still."""
    over.wait()


def dripping(connection: socket.socket, over: threading.Event) -> None:
    """A byte now and then, each soon enough for a timeout that begins anew with every byte."""
    read_request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while not over.wait(0.02):
        try:
            connection.sendall(b" ")
        except OSError:
            return


def dripping_headers(connection: socket.socket, over: threading.Event) -> None:
    """The same before the first header is complete."""
    while not over.wait(0.02):
        try:
            connection.sendall(b"H")
        except OSError:
            return


@pytest.mark.parametrize("answer", [silent, dripping, dripping_headers])
def test_a_slow_answer_is_none(answer: Answer) -> None:
    """GPU-04: an agent that hangs does not hang the command: the time is for the whole answer."""
    with answering(answer) as place:
        assert reason(place, timeout_seconds=0.2) == f"{place}: no answer in time"


def test_something_else_answers() -> None:
    """What speaks no HTTP is not taken for an agent."""
    with answering(garbage) as place:
        assert "no HTTP" in reason(place)


@table(
    "body, status, words",
    [
        (b"<html>", "200 OK", "not a gpuagent's"),
        (b"\xff\xfe", "200 OK", "not a gpuagent's"),
        (b"[" * 100_000, "200 OK", "not a gpuagent's"),
        ({"gpus": []}, "200 OK", "not a gpuagent's"),
        ([1], "200 OK", "not a gpuagent's"),
        ({"schema": 2}, "200 OK", "update the older one"),
        ({"error": "Forbidden", "message": "call from the\x1b[2J host"}, "403 Forbidden", "(call from the?[2J host)"),
        (b"nothing", "404 Not Found", "HTTP 404"),
    ],
)
def test_an_answer_that_is_no_document(body: object, status: str, words: str) -> None:
    """Garbage, another program and another version are each told as what they are, fit for a terminal."""
    with answering(says(body, status)) as place:
        assert words in reason(place)


@pytest.mark.parametrize("url", ["ftp://node", "http://", "http://node:port", "http://[::1"])
def test_a_url_that_is_none(url: str) -> None:
    """A wrong --url is named, and nothing is asked."""
    assert url in reason(url)


def test_credentials_in_the_url() -> None:
    """Basic auth comes from the URL, and the password is in no message."""
    requests: list[bytes] = []
    with answering(says(b"", "401 Unauthorized", requests), unix=False) as place:
        text = reason(place.replace("http://", "http://ops:s%3Acret@"))

    assert b"Authorization: Basic " + base64.b64encode(b"ops:s:cret") in requests[0]
    assert text == f"{place}: HTTP 401"


def test_a_body_of_any_size_is_bounded() -> None:
    """A peer that announces far too much is cut off, not read into memory."""

    def endless(connection: socket.socket, over: threading.Event) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while not over.is_set():
                connection.sendall(bytes(1024**2))
        except OSError:
            return

    with answering(endless) as place:
        assert "larger than 64 MiB" in reason(place, timeout_seconds=30)


def test_any_request() -> None:
    """Commands use the same way in, with their own method and path."""
    requests: list[bytes] = []
    with answering(says({"released": True}, "202 Accepted", requests)) as place:
        assert request(place, "POST", "/api/v1/pause?seconds=5") == (202, b'{"released": true}')
    assert requests[0].startswith(b"POST /api/v1/pause?seconds=5 ")


def test_a_request_with_a_body() -> None:
    """What a command has to say goes as JSON, and is announced as that."""
    requests: list[bytes] = []
    with answering(says({}, "201 Created", requests)) as place:
        assert request(place, "POST", "/api/v1/acks", body={"alert": "Gpu\u00fc"}) == (201, b"{}")
    head, _, body = requests[0].partition(b"\r\n\r\n")
    assert b"\r\nContent-Type: application/json" in head
    assert json.loads(body) == {"alert": "Gpu\u00fc"}


def test_no_body_where_there_is_none() -> None:
    """A question announces no content."""
    requests: list[bytes] = []
    with answering(says({}, requests=requests)) as place:
        request(place, "GET", "/api/v1/pause")
    assert b"content-" not in requests[0].lower()


def test_the_first_place_that_answers() -> None:
    """A user whom the control socket is not for still gets the status by the read-only address."""
    with answering(says(DOCUMENT), unix=False) as url:
        assert fetch_anywhere(None, None, usual=(Path("/nowhere/control.sock"), url)) == DOCUMENT


def test_the_reason_is_that_of_the_first_place() -> None:
    """Without an agent the message names the control socket: that is where one would be."""
    with pytest.raises(AgentUnreachable, match=r"^/nowhere/control\.sock: No such file or directory$"):
        fetch_anywhere(None, None, usual=(Path("/nowhere/control.sock"), "http://"))


def test_a_named_place_is_the_only_one() -> None:
    """Who asks for one agent does not get another's answer."""
    with answering(says(DOCUMENT)) as place:
        with pytest.raises(AgentUnreachable, match="/nowhere"):
            fetch_anywhere(Path("/nowhere"), None, usual=(place,))
        assert fetch_anywhere(place, None, usual=()) == DOCUMENT


@pytest.mark.parametrize(
    ("environ", "is_root", "system_is_there", "expected"),
    [
        ({}, True, False, "SYSTEM"),
        ({}, False, False, "SYSTEM"),
        ({"XDG_RUNTIME_DIR": "/run/user/7"}, True, False, "SYSTEM"),
        ({"XDG_RUNTIME_DIR": "/run/user/7"}, False, True, "SYSTEM"),
        ({"XDG_RUNTIME_DIR": "/run/user/7"}, False, False, "/run/user/7/gpuagent/control.sock"),
        ({"XDG_RUNTIME_DIR": "/run/user/7", "GPUAGENT_RUNTIME_DIR": "/x"}, False, True, "/x/control.sock"),
    ],
)
def test_where_the_control_socket_is(
    tmp_path: Path, environ: dict[str, str], is_root: bool, system_is_there: bool, expected: str
) -> None:
    """The system's agent goes before the user's own, and the environment before both."""
    system = tmp_path / "control.sock"
    if system_is_there:
        system.touch()

    found = default_socket(environ, is_root=is_root, system=system)

    assert str(found) == expected.replace("SYSTEM", str(system))


@pytest.mark.parametrize("is_root", [True, False])
def test_a_simulated_node_is_asked_where_there_is_no_other(tmp_path: Path, is_root: bool) -> None:
    """A simulation has a socket of its own, which is found without being named, and never instead of a real one's."""
    system, own = tmp_path / "run" / "gpuagent" / "control.sock", tmp_path / "user" / "gpuagent" / "control.sock"
    environ = {"XDG_RUNTIME_DIR": str(tmp_path / "user")}
    usual = system if is_root else own
    simulated = usual.parent.with_name("gpuagent-simulated") / "control.sock"
    for path in (simulated, usual):
        path.parent.mkdir(parents=True)
    simulated.touch()
    assert default_socket(environ, is_root=is_root, system=system) == simulated
    usual.touch()
    assert default_socket(environ, is_root=is_root, system=system) == usual
