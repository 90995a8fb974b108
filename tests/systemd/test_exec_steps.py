"""Exec steps as the drop-ins for docker and Slurm permit them: in the service's sandbox, under the real systemd."""

from __future__ import annotations

import grp
import json
import os
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import gpuagent_alerts.programs.run
from gpuagent.core import background
from gpuagent.procfs import hanging
from tests.systemd.test_drop_ins import NAME, PYTHON, installed, skip_unless_booted

pytestmark = [pytest.mark.slow, pytest.mark.extended, pytest.mark.timeout(120)]

FOLDER = Path(f"/run/gpuagent-test-{os.getpid()}")
CONTAINER = "3f4e1c9a7b20"
KILL, DOCKER, SLURM = "gpuagent-kill.conf", "gpuagent-docker.conf", "gpuagent-slurm.conf"

AGENT = """
import asyncio, json, os, socket, sys
sys.path.insert(0, {folder!r})
from gpuagent_alerts.programs.run import run_program
finished = asyncio.run(run_program(sys.argv[1:], b'{{"pid": 7}}', 30.0, contained=True))
door = socket.socket(socket.AF_UNIX)
door.connect({folder!r} + "/report")
door.sendall(json.dumps([finished.status, finished.said]).encode())
"""
"""The agent's own way to run a program: with its code, and nothing else of it."""

SCANCEL = """#!/usr/bin/python3 -I
import json, os, sys
kernel = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
caps = {name: int(kernel[name], 16) for name in ("CapPrm", "CapEff", "CapAmb")}
json.dump({"argv": sys.argv[1:], "uid": os.getuid(), "groups": os.getgroups(), "caps": caps,
           "new": kernel["NoNewPrivs"].strip(), "env": sorted(os.environ), "stdin": sys.stdin.read()}, sys.stderr)
"""
"""In place of the real one, which would need a cluster: says on its standard error how it was run."""


@pytest.fixture(autouse=True)
def _folder() -> Iterator[None]:
    """What cannot be tried here says why; else a folder that the sandbox can read."""
    skip_unless_booted()
    FOLDER.mkdir()
    try:
        programs = Path(gpuagent_alerts.programs.run.__file__).parent
        sources = [programs / name for name in ("run.py", "marked.py", "drop_privileges.py", "subreaper.py")]
        for source in (*sources, Path(background.__file__), Path(hanging.__file__)):
            place = FOLDER.joinpath(*source.parts[-3:])
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(source.read_bytes())
        (FOLDER / "agent.py").write_text(AGENT.format(folder=str(FOLDER)))
        FOLDER.chmod(0o755)
        yield
    finally:
        shutil.rmtree(FOLDER)


@contextmanager
def listening(name: str, mode: int, group: int = 0) -> Iterator[socket.socket]:
    """A unix socket in the folder."""
    path = FOLDER / name
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        os.chown(path, 0, group)
        path.chmod(mode)
        listener.listen()
        yield listener


def run_step(*command: str, drop_ins: tuple[str, ...]) -> tuple[int, str]:
    """What a program comes to that the sandboxed agent runs: its status, and what it said."""
    start = f"{PYTHON} -I {FOLDER}/agent.py {' '.join(command)}"
    with listening("report", 0o666) as report, installed(start, *drop_ins):
        report.settimeout(60)
        done = subprocess.run(["systemctl", "start", NAME], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        connection, _ = report.accept()
        with connection:
            status, said = json.loads(b"".join(iter(lambda: connection.recv(65536), b"")))
    return status, said


class Dockerd:
    """Answers as docker's API does to `docker restart`, and keeps what it was asked, and by whom."""

    def __init__(self, listener: socket.socket) -> None:
        self.asked: list[str] = []
        self.peers: set[int] = set()
        self._listener = listener
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as received:
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            self.peers.add(struct.unpack("3i", peer)[1])
            while line := received.readline():
                while received.readline().strip():
                    pass
                method, path, _ = line.decode().split()
                if not path.endswith("/_ping"):
                    self.asked.append(f"{method} {path}")
                status = "200 OK" if path.endswith("/_ping") else "204 No Content"
                connection.sendall(f"HTTP/1.1 {status}\r\nApi-Version: 1.50\r\nContent-Length: 0\r\n\r\n".encode())

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)


@contextmanager
def dockerd() -> Iterator[Dockerd]:
    """Behind a socket as the real one has it: root's and the group docker's."""
    made = False
    try:
        group = grp.getgrnam("docker").gr_gid
    except KeyError:
        subprocess.run(["groupadd", "--system", "docker"], check=True)
        made, group = True, grp.getgrnam("docker").gr_gid
    try:
        with listening("docker.sock", 0o660, group) as listener:
            daemon = Dockerd(listener)
            yield daemon
            daemon.close()
    finally:
        if made:
            subprocess.run(["groupdel", "docker"], check=True)


def restart(*drop_ins: str) -> tuple[int, str]:
    """`docker restart` of a container, by the real client."""
    docker = shutil.which("docker") or "docker"
    return run_step(docker, "-H", f"unix://{FOLDER}/docker.sock", "restart", CONTAINER, drop_ins=drop_ins)


@pytest.mark.needs("docker")
def test_docker_restart() -> None:
    """With docker.conf the real client reaches the daemon, as the agent's user, and kill.conf adds nothing to that."""
    with dockerd() as daemon:
        status, said = restart(DOCKER, KILL)
    assert status == 0, said
    (asked,) = daemon.asked
    assert asked.startswith("POST /v")
    assert asked.split("?")[0].endswith(f"/containers/{CONTAINER}/restart")
    assert daemon.peers == {65534}  # nobody, in place of the agent's own user


@pytest.mark.needs("docker")
def test_docker_without_the_drop_in() -> None:
    """The unit as it is shipped does not get past the socket's group: the step fails, and says why."""
    with dockerd() as daemon:
        status, said = restart(KILL)
    assert status != 0
    assert "permission denied" in said
    assert daemon.asked == []


def cancel(*drop_ins: str) -> dict[str, Any]:
    """How `scancel` is run."""
    program = FOLDER / "scancel"
    program.write_text(SCANCEL)
    program.chmod(0o755)
    status, said = run_step(str(program), "--signal=TERM", "1234", drop_ins=drop_ins)
    assert status == 0, said
    found: dict[str, Any] = json.loads(said)
    return found


def test_scancel() -> None:
    """With slurm.conf, beside kill.conf: the agent's user, no group more, no capability, and a bare environment."""
    found = cancel(SLURM, KILL)
    assert found["argv"] == ["--signal=TERM", "1234"]
    assert (found["uid"], found["groups"]) == (65534, [grp.getgrnam("nogroup").gr_gid])
    assert found["caps"] == {"CapPrm": 0, "CapEff": 0, "CapAmb": 0}
    assert found["new"] == "1"
    assert set(found["env"]) <= {"LANG", "PATH", "LC_CTYPE", "GPUAGENT_STEP"}
    assert json.loads(found["stdin"]) == {"pid": 7}
