"""The WSGI middleware: lists, streams, files, errors, and what servers do to them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.util import FileWrapper
from wsgiref.validate import validator

import pytest

from gpuagent_client.serving import Gate, RequestMemory, WsgiMiddleware
from tests.client.apps.faketorch import GIB
from tests.client.serving.bench import MIB, FakeProcess


class Server:
    """As much of a WSGI server as is needed."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.status = ""
        self.headers: dict[str, str] = {}

    def start_response(self, status: str, headers: list[tuple[str, str]], *error: object) -> Callable[[bytes], object]:
        """PEP 3333's."""
        self.status, self.headers = status, dict(headers)
        return lambda data: None

    def call(self, path: str = "/predict") -> Iterable[bytes]:
        """Up to the moment at which the server has the response in its hand."""
        environ = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": path,
            "wsgi.file_wrapper": FileWrapper,
        }
        result: Iterable[bytes] = self.app(environ, self.start_response)
        return result

    def get(self, path: str = "/predict") -> bytes:
        """A whole response."""
        result = self.call(path)
        try:
            return b"".join(result)
        finally:
            getattr(result, "close", lambda: None)()


def test_a_request_is_measured() -> None:
    """Exactly, since it was alone."""
    process = FakeProcess()
    process.fake.allocate(GIB)
    seen: list[RequestMemory] = []

    def app(environ: Any, start_response: Any) -> list[bytes]:
        process.fake.allocate(300 * MIB)
        process.fake.free(300 * MIB)
        start_response("200 OK", [])
        return [b"ok"]

    server = Server(WsgiMiddleware(app, on_request=seen.append, process=process))

    assert server.get("/items/4711") == b"ok"
    ((route, _, change),) = seen
    assert route == "GET /items/{}"
    assert change is not None
    assert (change.added_bytes, change.delta_bytes, change.exact) == (300 * MIB, 0, True)


def test_a_list_is_passed_on_as_it_is() -> None:
    """Servers take its length for a Content-Length."""
    process = FakeProcess()
    gate = Gate(1, 0, state=process.state)
    body = [b"o", b"k"]
    server = Server(WsgiMiddleware(lambda environ, start: body, gate, process=process))

    assert server.call() is body
    assert not gate.busy


def test_a_file_is_passed_on_as_it_is(tmp_path: Any) -> None:
    """Servers send it with sendfile(2); the GPU has no part in that."""
    process = FakeProcess()
    gate = Gate(1, 0, state=process.state)
    (tmp_path / "file").write_bytes(b"data")
    with (tmp_path / "file").open("rb") as file:
        wrapper = FileWrapper(file)
        server = Server(WsgiMiddleware(lambda environ, start: wrapper, gate, process=process))

        assert server.call() is wrapper
    assert not gate.busy


def test_a_stream_is_inside_until_it_is_closed() -> None:
    """Also if the client hung up after the first part: servers close it then."""
    process = FakeProcess()
    gate = Gate(1, 0, state=process.state)
    closed: list[bool] = []

    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        try:
            for _ in range(3):
                yield b"token "
        finally:
            closed.append(True)

    server = Server(WsgiMiddleware(app, gate, process=process))
    assert server.get() == b"token token token "
    stream: Any = server.call()
    assert next(iter(stream)) == b"token "
    assert gate.busy
    stream.close()

    assert not gate.busy
    assert closed == [True, True]


def test_a_stream_that_nobody_closes_loses_no_place() -> None:
    """Against PEP 3333, and it happens."""
    process = FakeProcess()
    gate = Gate(1, 0, state=process.state)
    server = Server(WsgiMiddleware(lambda environ, start: iter([b"ok"]), gate, process=process))
    assert list(server.call()) == [b"ok"]

    assert not gate.busy


def test_an_error_of_the_app_stays_its_own() -> None:
    """Its place is free."""
    process = FakeProcess()
    gate = Gate(1, 0, state=process.state)

    def app(environ: Any, start_response: Any) -> list[bytes]:
        raise MemoryError("CUDA out of memory")

    with pytest.raises(MemoryError, match="CUDA out of memory"):
        Server(WsgiMiddleware(app, gate, process=process)).call()
    assert not gate.busy


def test_who_finds_no_room_gets_503() -> None:
    """After the wait, with Retry-After; and other paths go on."""
    process = FakeProcess()
    gate = Gate(1, 1, wait_seconds=0.01, state=process.state)
    gate.try_acquire(lambda: None)
    server = Server(WsgiMiddleware(lambda environ, start: [b"ok"], gate, paths=["/predict"], process=process))

    assert server.get() == b"busy: no room within 0.01 s\n"
    assert server.status == "503 Service Unavailable"
    assert server.headers["Retry-After"] == "1"
    assert server.get("/healthz") == b"ok"


def test_a_critical_level_closes_the_gate() -> None:
    """Until the agent says otherwise."""
    process = FakeProcess()
    process.agent_says("critical")
    server = Server(WsgiMiddleware(lambda environ, start: [b"ok"], Gate(8, state=process.state), process=process))
    server.get()
    assert (server.status[:3], server.headers["Retry-After"]) == ("503", "2")
    process.agent_says("ok")

    assert server.get() == b"ok"


def test_threads_wait_for_each_other() -> None:
    """Eight at a time through a gate for one: all are served, and none is given its neighbor's memory."""
    process = FakeProcess()
    seen: list[RequestMemory] = []

    def app(environ: Any, start_response: Any) -> list[bytes]:
        process.fake.allocate(MIB)
        process.fake.free(MIB)
        return [b"ok"]

    server = Server(WsgiMiddleware(app, Gate(1, 8, state=process.state), on_request=seen.append, process=process))
    threads = [threading.Thread(target=server.get) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [one.change.added_bytes for one in seen if one.change] == [MIB] * 8


def test_a_response_tells_of_the_gpu() -> None:
    """Beside the app's own headers."""
    process = FakeProcess()
    process.fake.allocate(GIB)

    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("X-Own", "1")])
        return [b"ok"]

    server = Server(WsgiMiddleware(app, header=True, process=process))
    server.get()

    assert server.headers["X-Own"] == "1"
    assert server.headers["X-GPU-Memory"] == "NVIDIA GeForce RTX 4090, 24.00 GiB total, 1.00 GiB peak used"
    assert server.headers["Server-Timing"].startswith("gpu;dur=0.0;")


def test_it_keeps_to_the_standard() -> None:
    """Python's own checker of PEP 3333 finds nothing on either side of it."""
    process = FakeProcess()

    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return iter([b"ok"])

    checked = validator(WsgiMiddleware(validator(app), header=True, process=process))
    from wsgiref.util import setup_testing_defaults

    environ: dict[str, Any] = {"QUERY_STRING": ""}
    setup_testing_defaults(environ)
    del environ["HTTP_HOST"]
    server = Server(checked)
    result: Any = checked(environ, server.start_response)

    assert list(result) == [b"ok"]
    result.close()
    assert server.status == "200 OK"


def test_paths_must_be_a_list() -> None:
    """A single text would be taken for its letters."""
    with pytest.raises(ValueError, match=r"such as \['/predict'\]"):
        WsgiMiddleware(lambda environ, start: [], paths="/predict")
