"""A real gunicorn, whose master starts a new worker for each that ends: what is told of that, and who is left alone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.processes import as_target
from tests.alerts.remedies.staging import Stage, config, stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

GUNICORN = Path(__file__).parents[3] / ".venv-apps" / "bin" / "gunicorn"
PATIENCE_SECONDS = 30.0
APP = """
def app(environ, answer):
    answer("200 OK", [])
    return [b"ok"]
"""
AS_MUCH = """
description: two workers, which take as much whenever they begin
gpus:
  - model: h100
    processes:
      - {name: leaker, bind: leaker, memory: 4GiB}
      - {name: neighbor, bind: neighbor, memory: 8GiB}
"""
SETTINGS = """
import os, time
bind = "unix:{folder}/s"
workers = 2

def worker_exit(server, worker):
    open("{folder}/leaving", "w").close()
    while not os.path.exists("{folder}/go"):
        time.sleep(0.01)
"""
"""A worker that was told to end says so, and waits for the word: the test decides what the agent sees in between."""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """On the disk, as the agent has it."""
    return Store(tmp_path / "state.db")


def until(true: Callable[[], bool], what: str) -> None:
    """Wait for it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.01)


class Master:
    """Its master process, and the workers of the moment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "app.py").write_text(APP)
        (folder / "settings.py").write_text(SETTINGS.format(folder=folder))
        command = [str(GUNICORN), "--config", str(folder / "settings.py"), "app:app"]
        self.process = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)

    def workers(self) -> set[int]:
        """Zombies that it has not reaped yet are none."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        found = {int(pid) for pid in path.read_text().split()}
        return {pid for pid in found if _state(pid) not in {"", "Z"}}

    def replaced(self, gone: int, before: set[int]) -> int:
        """The worker that took its place."""
        (self.folder / "go").touch()
        until(lambda: gone not in self.workers() and len(self.workers()) == 2, "a new worker")
        (new,) = self.workers() - before
        return new


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


@contextmanager
def gunicorn(folder: Path) -> Iterator[Master]:
    """With two workers; all of it is gone in the end."""
    if not GUNICORN.exists():
        pytest.skip("no gunicorn: make venv-apps")
    master = Master(folder)
    try:
        until((folder / "s").is_socket, "it listens")
        until(lambda: len(master.workers()) == 2, "two workers")
        yield master
    finally:
        (folder / "go").touch()
        os.kill(master.process.pid, signal.SIGSTOP)  # it starts no new one while they are counted
        left = master.workers()
        master.process.kill()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        master.process.wait()


async def ended_by_term(one: Stage, master: Master, leaker: int, before: set[int]) -> int:
    """An alert fires, the worker is told to end and does, and nothing is measured until its successor is there."""
    one.fires(leaker)
    await one.until((master.folder / "leaving").exists)
    return await asyncio.to_thread(master.replaced, leaker, before)


def test_the_memory_comes_back_and_the_successor_lives(store: Store, tmp_path: Path) -> None:
    """KILL-06: released once; the worker that took its place cools down, also when the alert comes to name it."""
    with gunicorn(tmp_path) as master:
        leaker, innocent = sorted(master.workers())

        async def story() -> None:
            pids = {"leaker": leaker, "neighbor": innocent}
            async with stage(config(as_target(leaker).user), store, pids) as one:
                new = await ended_by_term(one, master, leaker, {leaker, innocent})
                await one.until(lambda: one.ended() == ["released"])
                one.rig.node.bind("leaker", new)
                one.rig.clock.advance(100)  # beyond the pause
                await one.tick()
                one.fires(new, innocent)
                await one.until(lambda: len(one.ended()) == 3)
                assert sorted(one.ended()) == ["refused", "refused", "released"]
                refused = [run for run in (await one.service.document())["remedies"] if run["pid"] != leaker]
                assert {run["pid"] for run in refused} == {new, innocent}
                assert all("cools down" in run["end"]["detail"] for run in refused)
                assert master.workers() == {new, innocent}

        asyncio.run(story())


def test_the_successor_takes_the_memory_again(store: Store, tmp_path: Path) -> None:
    """KILL-06: nothing came back, as it says, with the worker that holds it now; the one beside it is not named."""
    with gunicorn(tmp_path) as master:
        leaker, innocent = sorted(master.workers())

        async def story() -> None:
            pids = {"leaker": leaker, "neighbor": innocent}
            async with stage(config(as_target(leaker).user, proof=5), store, pids, AS_MUCH) as one:
                new = await ended_by_term(one, master, leaker, {leaker, innocent})
                one.rig.node.bind("leaker", new)
                await one.until(lambda: one.ended() == ["held_by_other"])
                (run,) = (await one.service.document())["remedies"]
                assert f"pid {new} (gunicorn) took its place, and holds " in run["end"]["detail"]
                assert str(innocent) not in run["end"]["detail"]
                assert [step["step"] for step in run["steps"] if step["kind"] == "intent"] == ["SIGTERM"]
                assert master.workers() == {new, innocent}

        asyncio.run(story())
