"""Page cache is dropped by root or through its helper, seldom, and only where GPU and CPU share their memory."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.procfs.reclaim_helper import serve, write_one
from gpuagent_alerts.remedies.audit import Audit
from gpuagent_alerts.remedies.audit_rows import INTENT, RESULT
from gpuagent_alerts.remedies.execution.reclaim import CacheReclaimer
from gpuagent_alerts.remedies.observation import Condition
from gpuagent_alerts.remedies.outcome import RunResult
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.world import BOOT, TERMINATE, World, plan, run_ladder

MEMINFO = "MemTotal: 9000 kB\nCached: 5000 kB\nBuffers: 100 kB\nShmem: 1000 kB\nMapped: 500 kB\nDirty: 400 kB\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc whose files this user may write."""
    (tmp_path / "sys/vm").mkdir(parents=True)
    (tmp_path / "meminfo").write_text(MEMINFO)
    (tmp_path / "sys/vm/drop_caches").write_text("")
    (tmp_path / "sys/vm/compact_memory").write_text("")
    return tmp_path


class Now:
    """A clock that stands still."""

    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def written(proc: Path) -> tuple[str, str]:
    """What stands in both files."""
    return (proc / "sys/vm/drop_caches").read_text(), (proc / "sys/vm/compact_memory").read_text()


def test_it_is_written_once_in_a_while(proc: Path) -> None:
    """The page cache alone goes (1, and never 3), and a second time within `every` nothing happens."""
    clock = Now()
    reclaimer = CacheReclaimer(proc, proc / "none", clock)

    async def drop(*, compact: bool) -> bool:
        done = await reclaimer.drop(compact=compact, every_seconds=60, deadline_seconds=2, rehearse=False)
        return done.ok and done.taken

    assert asyncio.run(drop(compact=False))
    assert written(proc) == ("1\n", "")
    assert not asyncio.run(drop(compact=True))
    assert written(proc) == ("1\n", "")
    clock.seconds += 61
    assert asyncio.run(drop(compact=True))
    assert written(proc) == ("1\n", "1\n")


def test_a_rehearsal_writes_nothing_and_tells_how_much(proc: Path) -> None:
    """What is mapped, dirty or shared memory would stay; a rehearsal uses up no turn."""
    reclaimer = CacheReclaimer(proc, proc / "none")
    for _ in range(2):
        told = asyncio.run(reclaimer.drop(compact=True, every_seconds=60, deadline_seconds=2, rehearse=True))
        assert told.ok
        assert told.detail == "at most 3.1 MiB of clean page cache would be dropped"
    assert written(proc) == ("", "")


def test_where_it_cannot_be_done_the_way_out_is_told(proc: Path) -> None:
    """No file that may be written and no helper: nothing is tried, and the reason names both."""
    (proc / "sys/vm/drop_caches").unlink()
    reclaimer = CacheReclaimer(proc, proc / "socket")
    done = asyncio.run(reclaimer.drop(compact=True, every_seconds=60, deadline_seconds=2, rehearse=False))

    assert (done.ok, done.taken) == (False, False)
    assert "gpuagent-reclaim.socket" in done.detail
    assert CacheReclaimer(proc, off="a scenario").refusal() == "a scenario"


@pytest.fixture
def helper(proc: Path, tmp_path: Path) -> Iterator[Path]:
    """The helper on a socket, for three connections."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=serve, args=(listener, lambda name: write_one(name, proc), lambda: 7.0, 3))
        thread.start()
        yield path
        for _ in range(3):
            with socket.socket(socket.AF_UNIX) as rest:
                rest.settimeout(5)
                try:
                    rest.connect(str(path))
                except OSError:
                    break
        thread.join(10)
        assert not thread.is_alive()


def ask(path: Path, word: bytes) -> bytes:
    """The helper's answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(path))
        connection.sendall(word)
        return connection.recv(100)


def test_the_helper_does_two_things_and_seldom(proc: Path, helper: Path) -> None:
    """Another word is refused, and so is the same one again within 10 s, whoever asks."""
    assert ask(helper, b"../../etc/passwd\n") == b"no such word\n"
    assert ask(helper, b"drop_caches\n") == b"ok\n"
    assert ask(helper, b"drop_caches\n") == b"it was done less than 10 s ago\n"
    assert written(proc) == ("1\n", "")


def test_through_the_helper(proc: Path, helper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent, which is no root, has it done, compaction after it."""
    monkeypatch.setattr(os, "access", lambda path, *_, **__: Path(path) == helper)
    reclaimer = CacheReclaimer(proc, helper)
    done = asyncio.run(reclaimer.drop(compact=True, every_seconds=60, deadline_seconds=10, rehearse=False))

    assert (done.ok, done.detail) == (True, "0 B of page cache dropped")
    assert written(proc) == ("1\n", "1\n")


def test_a_helper_that_does_not_answer_is_left(proc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step has its time and no more: the ladder goes on."""
    path = tmp_path / "socket"
    monkeypatch.setattr(os, "access", lambda path_, *_, **__: Path(path_) == path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        done = asyncio.run(
            CacheReclaimer(proc, path).drop(compact=True, every_seconds=60, deadline_seconds=0.2, rehearse=False)
        )
    assert not done.ok
    assert "timed out" in done.detail or "still at it" in done.detail


DROP = RemedyStep(StepKind.DROP_CACHES, 2.0, compact=True, every_seconds=60)


@pytest.mark.parametrize(
    ("is_unified", "dry_run", "log"),
    [
        (True, False, [("drop_caches", 0), ("SIGTERM", 100)]),
        (True, True, [("rehearsed drop_caches", 0), ("signal 0", 100)]),
        (False, False, [("SIGTERM", 100)]),
    ],
)
def test_in_a_ladder(store: Store, is_unified: bool, dry_run: bool, log: list[tuple[str, int]]) -> None:
    """It comes before what disrupts, is passed where the GPU has memory of its own, and is recorded in every case."""
    world = World()
    world.observation_changes = {"unified_memory": is_unified}
    run_ladder(world, replace(plan(DROP, TERMINATE), dry_run=dry_run), store)
    rows = Audit(store, world.clock, BOOT).events()
    first = next(row for row in rows if row.kind == RESULT)

    assert [each for each in world.log if each[0] != "signal 0"] == [each for each in log if each[0] != "signal 0"]
    assert [row.data["step"] for row in rows if row.kind == INTENT] == ["drop_caches", "SIGTERM"]
    assert next(row for row in rows if row.kind == INTENT).data["disrupts"] is False
    assert ("memory of its own" in first.data["detail"]) is not is_unified


def test_it_ends_the_ladder_where_that_was_enough(store: Store) -> None:
    """The pressure goes with the page cache: nobody is ended."""
    world = World()
    world.observation_changes = {"unified_memory": True}
    world.events = [
        lambda _: None, lambda _: None, lambda world: setattr(world, "condition", Condition.OVER),
    ]  # fmt: skip
    outcome = run_ladder(world, plan(DROP, TERMINATE), store)

    assert (outcome.result, outcome.acted) == (RunResult.RESOLVED, False)
    assert world.log == [("drop_caches", 0)]
