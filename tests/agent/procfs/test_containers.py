"""Names of containers: by the kubelet's links, and by a runtime that answers like docker."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent.core.snapshot import CollectorRun
from gpuagent.procfs.containers import (
    KNOWN_SECONDS,
    RESCAN_SECONDS,
    ContainerNames,
    RunningContainer,
    docker_container,
    docker_names,
)

ONE, OTHER = "a" * 64, "b" * 64


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A unix socket's path may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="gpuagent-", dir="/tmp") as name:
        yield Path(name)


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True
    asked: list[str]
    answers: dict[str, tuple[int, Any]]


class _Docker(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        status, document = self.server.answers.get(self.path, (404, {"message": "No such container"}))
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def docker(place: Path, **answers: tuple[int, Any]) -> Iterator[_Server]:
    """A real HTTP server on a unix socket, which answers like docker's API. Keys are ids."""
    with _Server(str(place), _Docker) as server:
        server.asked = []
        server.answers = {f"/containers/{key}/json": answer for key, answer in answers.items()}
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def named(names: ContainerNames, container_id: str) -> str:
    """The name, once it is known."""
    deadline = time.monotonic() + 10
    while not (name := names.lookup(container_id)) and time.monotonic() < deadline:
        time.sleep(0.005)
    return name


def idle(names: ContainerNames) -> None:
    """Until its thread has asked for all."""
    while names._asking:
        time.sleep(0.005)


def test_docker_is_asked_once(short_folder: Path) -> None:
    """The first look says nothing and holds nobody up; then the name is there, and nobody is asked again."""
    answer = (200, {"Id": ONE, "Name": "/whisper", "Config": {"Env": ["SECRET=1"]}})
    with docker(short_folder / "s", **{ONE: answer}) as server:
        names = ContainerNames(ManualClock(), ask=docker_names(short_folder / "s"), links=str(short_folder / "none"))
        assert named(names, ONE) == "whisper"
        assert [names.lookup(ONE) for _ in range(10)] == ["whisper"] * 10
        assert server.asked == [f"/containers/{ONE}/json"]


@pytest.mark.parametrize(
    "answer",
    [(404, {"message": "none"}), (200, {"Id": OTHER, "Name": "/x"}), (200, b"{"), (200, []), (200, {"Id": ONE})],
    ids=["unknown", "another", "garbage", "list", "nameless"],
)
def test_an_answer_that_names_nobody(short_folder: Path, answer: tuple[int, Any]) -> None:
    """Not known: asked again after half a minute, and not before."""
    clock = ManualClock()
    with docker(short_folder / "s", **{ONE: answer}) as server:
        names = ContainerNames(clock, ask=docker_names(short_folder / "s"), links=str(short_folder / "none"))
        for _ in range(5):
            assert names.lookup(ONE) == ""
            idle(names)
        assert len(server.asked) == 1
        clock.advance(RESCAN_SECONDS)
        names.lookup(ONE)
        idle(names)
        assert len(server.asked) == 2


def test_a_runtime_that_is_not_there(short_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A pause for all containers, and the ids do; one line when it begins, one when it is over, a value meanwhile."""
    caplog.set_level("INFO")
    clock = ManualClock()
    names = ContainerNames(clock, ask=docker_names(short_folder / "none"), links=str(short_folder / "none"))
    assert [run.ok for run in names.runs()] == [True]
    for _ in range(5):
        for each in (ONE, OTHER):
            names.lookup(each)
            idle(names)
        assert [(run.collector, run.ok) for run in names.runs()] == [("container_names", False)]
        clock.advance(RESCAN_SECONDS)
    assert "No such file or directory" in names.runs()[0].reason
    with docker(short_folder / "none", **{ONE: (200, {"Id": ONE, "Name": "/late"})}):
        assert named(names, ONE) == "late"
    idle(names)
    assert names.runs() == (CollectorRun("container_names", ok=True, duration_seconds=0.0),)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_container_that_was_renamed(short_folder: Path) -> None:
    """A name is believed for a minute; then the runtime is asked, and one that it does not know has no name."""
    clock = ManualClock()
    with docker(short_folder / "s", **{ONE: (200, {"Id": ONE, "Name": "/web"})}) as server:
        names = ContainerNames(clock, ask=docker_names(short_folder / "s"), links=str(short_folder / "none"))
        assert named(names, ONE) == "web"
        path = f"/containers/{ONE}/json"
        server.answers[path] = (200, {"Id": ONE, "Name": "/web-old"})
        for new in ("web-old", ""):
            idle(names)
            clock.advance(KNOWN_SECONDS)
            names.lookup(ONE)
            idle(names)
            assert names.lookup(ONE) == new
            server.answers[path] = (404, {"message": "No such container"})


def test_a_running_container(short_folder: Path) -> None:
    """The runtime tells main process and name; of one that does not run, nothing is known."""
    document: dict[str, Any] = {"Id": ONE, "Name": "/web", "State": {"Pid": 7}}
    with docker(short_folder / "s", **{ONE: (200, document)}) as server:
        assert docker_container(short_folder / "s", ONE) == RunningContainer(7, "web")
        assert docker_container(short_folder / "s", OTHER) is None
        for pid in (0, True, "7", None):
            server.answers[f"/containers/{ONE}/json"] = (200, {**document, "State": {"Pid": pid}})
            assert docker_container(short_folder / "s", ONE) is None


def test_what_no_runtime_gives_out_is_not_asked_for(short_folder: Path) -> None:
    """An id is 64 digits: whatever else stands in a cgroup's path never becomes part of a request."""
    with docker(short_folder / "s") as server:
        names = ContainerNames(ManualClock(), ask=docker_names(short_folder / "s"), links=str(short_folder / "none"))
        for odd in ("", "lxc-web", "../version", ONE[:12], ONE + "0"):
            assert names.lookup(odd) == ""
        idle(names)
        assert server.asked == []


def test_kubernetes_needs_no_runtime(tmp_path: Path) -> None:
    """The kubelet's links have pod, namespace, container and id in their names; a new one is found at the next look."""
    clock = ManualClock()
    (tmp_path / f"whisper-0_ml-team_server-{ONE}.log").symlink_to("/nowhere")
    (tmp_path / "odd.log").touch()
    names = ContainerNames(clock, links=str(tmp_path))
    assert names.runs() == ()
    assert names.lookup(ONE) == "ml-team/whisper-0/server"
    (tmp_path / f"whisper-1_ml-team_server-{OTHER}.log").symlink_to("/nowhere")
    assert names.lookup(OTHER) == ""
    clock.advance(RESCAN_SECONDS)
    assert names.lookup(OTHER) == "ml-team/whisper-1/server"


def test_a_name_with_a_terminal_in_mind(short_folder: Path) -> None:
    """What a runtime answers is made printable, and cut."""
    answer = (200, {"Id": ONE, "Name": "/\x1b[2J" + "x" * 1000})
    with docker(short_folder / "s", **{ONE: answer}):
        names = ContainerNames(ManualClock(), ask=docker_names(short_folder / "s"), links=str(short_folder / "none"))
        name = named(names, ONE)
        assert name.startswith("\\x1b[2J")
        assert len(name) <= 255


def test_many_containers_are_bounded(tmp_path: Path) -> None:
    """A node on which containers come and go for months does not fill the agent's memory."""
    names = ContainerNames(ManualClock(), ask=lambda each: f"c{each[:8]}", links=str(tmp_path))
    for number in range(6000):
        names.lookup(f"{number:064x}")
    idle(names)
    assert len(names._names) <= 4096
    assert len(names._tried) <= 4096
