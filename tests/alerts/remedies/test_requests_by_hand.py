"""What people ask for over the control socket, as far as the app and the record: with a real process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gpuagent.procfs.files import RealProc
from gpuagent.service.remedies import RemedyCommands
from gpuagent_alerts.remedies.execution.executor import AppFailure, NodeActionExecutor
from gpuagent_alerts.remedies.observation import ActionResult
from gpuagent_alerts.remedies.target import Target
from gpuagent_alerts.store.database import Store
from gpuagent_exporters.api.process_routes import NotDone
from tests.alerts.remedies.processes import PLAIN, as_target, reader, running
from tests.alerts.remedies.staging import NoApps, config, no_warning, read, stage


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """On the disk, as the agent has it."""
    return Store(tmp_path / "state.db")


class OneApp(NoApps):
    """An app that gives a GiB back, once, and says no the second time."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, bool]] = []

    async def release(self, pid: int, *, collect: bool = False) -> dict[str, Any]:
        self.asked.append((pid, collect))
        if len(self.asked) > 1:
            raise AppFailure("refused", "at most once a minute")
        return {"pid": pid, "took_ms": 3.0, "released_bytes": 2**30, "returned_bytes": 2**30}


class SlowApp(NoApps):
    """An app whose answer never comes to an end."""

    async def release(self, pid: int, *, collect: bool = False) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def reset(self, pid: int) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def notice(self, pid: int, reason: str, seconds: float) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}


@pytest.mark.parametrize("step", ["release_cache", "reset", "notify"])
def test_an_answer_is_waited_for_as_long_as_the_step_waits(step: str) -> None:
    """An app that goes on answering keeps nobody waiting beyond the wait of the step, be it byte by byte."""
    executor = NodeActionExecutor(RealProc(), reader(), apps=SlowApp(), warn=no_warning)

    async def ask(target: Target) -> ActionResult:
        if step == "notify":
            return await executor.notify(target, "", 0.01)
        return await (executor.release_cache if step == "release_cache" else executor.reset)(target, 0.01)

    with running(PLAIN) as process:
        done = asyncio.run(ask(as_target(process.pid)))
    assert done.detail == "the app has not answered within 0.01 s"
    assert done.ok is (step == "notify")


def test_release_goes_on_record(store: Store) -> None:
    """With the caller's uid and what came back; the app's own figures are in the answer, its refusal too."""
    app = OneApp()

    async def story(pid: int) -> None:
        async with stage(read({}), store, {"leaker": pid}, apps=app) as one:
            commands = RemedyCommands(one.service)
            answers = []
            for request in ({"collect": True}, {}):
                asking = asyncio.create_task(commands.release(pid, request | one.shown(pid), 0))
                await one.until(asking.done)
                answers.append(await asking)
            assert answers[0]["result"] == "released"
            assert (answers[0]["took_ms"], answers[0]["released_bytes"]) == (3.0, 2**30)
            assert (answers[1]["result"], answers[1]["reason"]) == ("failed", "refused")
            record = (await one.service.document())["remedies"]
            assert [(run["asked_by"], run["end"]["result"]) for run in record] == [
                ("root (uid 0)", "released"), ("root (uid 0)", "failed"),
            ]  # fmt: skip
            assert one.ended() == []  # no message to everybody: who asked has the answer

    with running(PLAIN) as leaker:
        asyncio.run(story(leaker.pid))
        assert app.asked == [(leaker.pid, True), (leaker.pid, False)]
        assert leaker.poll() is None


def test_release_of_what_has_no_client(store: Store) -> None:
    """Told by a word for programs, and on record as well."""

    async def story(pid: int) -> None:
        async with stage(config(as_target(pid).user), store, {"leaker": pid}) as one:
            asking = asyncio.create_task(RemedyCommands(one.service).release(pid, one.shown(pid), 0))
            await one.until(asking.done)
            answer = await asking
            assert (answer["result"], answer["reason"]) == ("failed", "absent")
            assert len((await one.service.document())["remedies"]) == 1

    with running(PLAIN) as leaker:
        asyncio.run(story(leaker.pid))


def test_unloading_disrupts(store: Store) -> None:
    """An app that is to unload its model is asked by the rules of a kill: an allow list that is given is kept to."""

    async def story(pid: int) -> None:
        async with stage(config("nobody-else"), store, {"leaker": pid}, apps=OneApp()) as one:
            asking = asyncio.create_task(RemedyCommands(one.service).unload(pid, one.shown(pid), 0))
            await one.until(asking.done)
            assert (await asking)["result"] == "refused"

    with running(PLAIN) as leaker:
        asyncio.run(story(leaker.pid))


def test_requests_that_are_none(store: Store) -> None:
    """An unknown key, a flag that is none, and a process that is not on a GPU: told, and nothing on record."""

    async def story() -> None:
        async with stage(read({}), store, {}) as one:
            commands = RemedyCommands(one.service)
            for request in ({"steps": ["kill"]}, {"collect": 1}, {"gpu": 0}):
                with pytest.raises(ValueError, match=r"unknown|must be"):
                    await commands.release(1, request, 0)
            with pytest.raises(ValueError, match="unknown"):
                await commands.unload(1, {"collect": True}, 0)
            with pytest.raises(NotDone, match="is on a GPU"):
                await commands.release(1, one.shown(1), 0)
            assert (await one.service.document())["remedies"] == []

    asyncio.run(story())
