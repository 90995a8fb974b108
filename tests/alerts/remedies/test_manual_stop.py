"""`gpuagent remedies stop`: a person ends all that rules do, with real processes and a record on the disk."""

from __future__ import annotations

import asyncio
import os
import pwd
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuagent.config.models import Config
from gpuagent.core import accounts
from gpuagent.core.accounts import describe_user
from gpuagent.service.remedies import RemedyCommands
from gpuagent_alerts.remedies.audit import NotRecorded
from gpuagent_alerts.remedies.audit_rows import STOP
from gpuagent_alerts.remedies.safeguards.limits import RemedyLimits
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.processes import IGNORES_TERM, PLAIN, as_target, running
from tests.alerts.remedies.staging import Stage, config, stage
from tests.alerts.remedies.world import RULES, TERMINATE, World, plan, run_ladder, target

LADDER = {
    "match": ['alertname="GpuProcessMemoryLeak"'],
    "steps": [{"notify": {"wait": 60}}, {"terminate": {"wait": 20}}],
}
NO_LIMITS = {"pause": 0, "cooldown": 0, "per_hour": 99, "per_day": 99, "unit_per_hour": 99}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a record on the disk, as the agent has it."""
    return tmp_path / "state.db"


def settings(pid: int) -> Config:
    """A warning that is waited for long, then SIGTERM."""
    return config(as_target(pid).user, ladders=[LADDER], limits=NO_LIMITS)


async def warned(one: Stage, pid: int) -> None:
    """A ladder waits after its warning."""
    one.fires(pid)
    await one.until(lambda: any(run.id for run in one.service.remedies.running))


async def document(one: Stage) -> dict[str, Any]:
    """As `gpuagent remedies` gets it."""
    return await RemedyCommands(one.service).remedies()


def test_it_ends_what_runs_and_begins_nothing(path: Path) -> None:
    """A ladder takes no step after it, no rule begins another one, and a reset lets them go on."""

    async def story(pid: int, wait: Any) -> None:
        async with stage(settings(pid), Store(path), {"leaker": pid}) as one:
            commands = RemedyCommands(one.service)
            await warned(one, pid)
            assert await commands.stop(os.getuid()) == ""
            await one.until(lambda: one.ended() == ["refused"])
            told = await document(one)
            assert "a person has stopped them" in told["remedies"][-1]["end"]["detail"]
            assert (told["stopped"], told["stopped_by"]) == (
                "a person has stopped them",
                await describe_user(os.getuid()),
            )
            assert told["stopped_seconds"] > 0
            assert one.service.figures().stopped
            for _ in range(20):
                await one.tick()
            assert len((await document(one))["remedies"]) == 1
            assert wait() is None

            await commands.reset(os.getuid())
            told = await document(one)
            assert (told["stopped"], told["stopped_by"], told["stopped_seconds"]) == ("", "", None)
            one.alerts = []
            await one.tick()
            await warned(one, pid)

    with running(PLAIN) as leaker:
        asyncio.run(story(leaker.pid, leaker.poll))


def test_it_survives_a_restart(path: Path) -> None:
    """The next agent knows who has stopped remedies, and acts for no rule."""

    async def stop(pid: int) -> None:
        async with stage(settings(pid), Store(path), {"leaker": pid}) as one:
            await RemedyCommands(one.service).stop(os.getuid())

    async def after(pid: int) -> None:
        async with stage(settings(pid), Store(path), {"leaker": pid}) as one:
            await one.service.open()
            one.fires(pid)
            for _ in range(20):
                await one.tick()
            told = await document(one)
            assert (told["stopped_by"], told["remedies"]) == (await describe_user(os.getuid()), [])

    with running(PLAIN) as leaker:
        asyncio.run(stop(leaker.pid))
        asyncio.run(after(leaker.pid))
        assert leaker.poll() is None


def test_a_person_may_still_act(path: Path) -> None:
    """It holds for rules, like the breaker: who confirms a process afterwards has decided it."""

    async def story(pid: int, ends: Any) -> None:
        async with stage(settings(pid), Store(path), {"leaker": pid}) as one:
            commands = RemedyCommands(one.service)
            await commands.stop(os.getuid())
            asked = asyncio.create_task(commands.kill(pid, one.shown(pid), os.getuid()))
            await one.until(lambda: ends() is not None)
            await one.until(asked.done, 2000)

    with running(PLAIN) as leaker:
        asyncio.run(story(leaker.pid, leaker.poll))


def test_what_a_person_began_takes_no_further_step_either(path: Path) -> None:
    """A kill by hand that waits after SIGTERM sends no SIGKILL once somebody has stopped all of it."""

    async def story(pid: int) -> None:
        async with stage(settings(pid), Store(path), {"leaker": pid}) as one:
            commands = RemedyCommands(one.service)
            asked = asyncio.create_task(commands.kill(pid, one.shown(pid), os.getuid()))
            await one.until(lambda: any(run.id for run in one.service.remedies.running))
            await commands.stop(os.getuid())
            await one.until(asked.done)
            assert "a person has stopped them" in (await asked)["detail"]

    with running(IGNORES_TERM) as leaker:
        asyncio.run(story(leaker.pid))
        assert leaker.poll() is None


def test_a_user_database_that_is_silent(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop, a reset and a kill are done and on record with the uid; the loop goes on while a name is asked for."""
    ends = threading.Event()

    def silent(_: int) -> pwd.struct_passwd:
        ends.wait(60)
        raise KeyError

    async def story(pid: int) -> None:
        async with stage(settings(pid), Store(path), {"leaker": pid}) as one:
            commands = RemedyCommands(one.service)
            monkeypatch.setattr(pwd, "getpwuid", silent)
            monkeypatch.setattr(accounts, "_PATIENCE_SECONDS", 0.05)
            assert await commands.stop(7) == ""
            stop = one.service.audit.last_stop()
            assert stop is not None
            assert stop.by == "uid 7"
            await commands.reset(7)
            asked = asyncio.create_task(commands.kill(pid, one.shown(pid), 7))
            await one.until(lambda: any(run.id for run in one.service.remedies.running))
            assert (await document(one))["remedies"][-1]["asked_by"] == "uid 7"
            await one.until(asked.done)

    try:
        with running(PLAIN) as leaker:
            asyncio.run(story(leaker.pid))
    finally:
        ends.set()


@pytest.mark.parametrize("full", [True, False])
def test_it_holds_where_it_cannot_be_recorded(path: Path, full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full or hangs stops nobody from stopping remedies; the answer says that a restart forgets it."""
    goes_on = threading.Event()

    def fails(_: str) -> None:
        if full:
            raise NotRecorded("the disk is full")
        goes_on.wait(20)

    async def story(pid: int) -> None:
        async with stage(settings(pid), Store(path), {"leaker": pid}) as one:
            monkeypatch.setattr(one.service.audit, "stop", fails)
            await warned(one, pid)
            assert await RemedyCommands(one.service).stop(7) != ""
            await one.until(lambda: one.ended() == ["refused"])
            await one.service._look_at_the_breaker()
            assert (await document(one))["stopped_by"] == "uid 7"
            for _ in range(20):
                await one.tick()
            assert not one.service.remedies.running

    monkeypatch.setattr("gpuagent_alerts.remedies.service._RECORD_SECONDS", 0.05)
    with running(PLAIN) as leaker:
        asyncio.run(story(leaker.pid))
        goes_on.set()
        assert leaker.poll() is None


def test_a_stop_whose_row_is_damaged_is_still_one(path: Path) -> None:
    """Who it was cannot be told any more; that remedies are stopped can."""
    store = Store(path)
    store.execute(
        "INSERT INTO remedy_audit (run, kind, boot_id, clock, wall, data) VALUES ('', ?, 'b', 0, 0, 'no JSON')", (STOP,)
    )

    async def story(pid: int) -> None:
        async with stage(settings(pid), store, {"leaker": pid}) as one:
            await one.service.open()
            one.fires(pid)
            for _ in range(20):
                await one.tick()
            told = await document(one)
            assert (told["stopped"], told["stopped_by"]) == ("a person has stopped them", "?")
            assert told["remedies"] == []

    with running(PLAIN) as leaker:
        asyncio.run(story(leaker.pid))


def test_whose_processes_rules_leave_alone_is_told(path: Path) -> None:
    """By name in the document for people, and as a number; a reset ends both."""
    store = Store(path)
    for _ in range(3):
        useless = World()
        useless.back_after = 1e9
        assert run_ladder(useless, plan(TERMINATE), store, replace(RULES, limits=RemedyLimits(**NO_LIMITS))).acted

    async def story(pid: int) -> None:
        async with stage(settings(pid), store, {"leaker": pid}) as one:
            await one.service.open()
            assert (await document(one))["left_alone"] == [f"uid {target().uid}"]
            assert one.service.figures().left_alone == 1
            await RemedyCommands(one.service).reset(os.getuid())
            assert (await document(one))["left_alone"] == []
            assert one.service.figures().left_alone == 0

    with running(PLAIN) as leaker:
        asyncio.run(story(leaker.pid))
