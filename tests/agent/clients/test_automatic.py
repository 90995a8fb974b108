"""Leaking apps that are asked by themselves who holds the memory."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from typing import Any

from gpuagent.clients.commands import AutomaticBlame
from gpuagent.core.growth import Growth, MemoryKey, Verdict
from gpuagent.core.snapshot import Snapshot
from tests.agent.clients.parts import Stage, in_thread, stage, until
from tests.fakes.embedded import FakeApp
from tests.fakes.snapshots import full_snapshot

ME = os.getpid()
KEY = MemoryKey("GPU-0", ME)
VERDICT = "held by `app.results`"


async def look(opened: Stage, blame: AutomaticBlame, verdict: Verdict = Verdict.LEAKING) -> Snapshot:
    """A tick in which the app's memory has this verdict."""
    snapshot = dataclasses.replace(full_snapshot(), processes=(), growth={KEY: Growth(verdict, reasons=("it rises",))})
    return blame.observe(await opened.tick(snapshot))


async def answer(app: FakeApp, **result: Any) -> str:
    """The next command is answered so; returns its name."""
    question = await in_thread(lambda: app.receive("cmd"))
    app.send({"t": "res", "id": question["id"], "ok": True, **result})
    return str(question["cmd"])


def play(scene: Any, *, enabled: bool = True, **changes: Any) -> None:
    """With one app."""

    async def run() -> None:
        async with asyncio.timeout(40), stage() as opened:
            blame = AutomaticBlame(opened.commands, opened.clock, enabled=enabled)
            with await opened.client(**changes) as app:
                await scene(opened, blame, app)
            await blame.close()

    asyncio.run(run())


def test_a_leaking_app_is_asked_once_and_its_words_are_a_reason() -> None:
    """From the tick after its answer on, for as long as it leaks."""

    async def scene(opened: Stage, blame: AutomaticBlame, app: FakeApp) -> None:
        assert (await look(opened, blame)).growth[KEY].reasons == ("it rises",)
        assert await answer(app, r={"verdict": VERDICT, "groups": [{"count": 1}]}) == "census"
        assert await answer(app, ok=False, err="no CUDA") == "lines"
        await until(lambda: blame._asking is None)
        for _ in range(3):
            assert (await look(opened, blame)).growth[KEY].reasons == ("it rises", VERDICT)
        assert opened.registry.commands["census", "done"] == 1
        assert (await look(opened, blame, Verdict.LEVELLED_OFF)).growth[KEY].reasons == ("it rises",)
        assert (await look(opened, blame)).growth[KEY].reasons == ("it rises",)  # another leak: asked anew

    play(scene)


def test_an_app_that_refuses_is_asked_again_later() -> None:
    """After ten minutes, not at every tick."""

    async def scene(opened: Stage, blame: AutomaticBlame, app: FakeApp) -> None:
        await look(opened, blame)
        for _ in range(2):
            await answer(app, ok=False, err="busy")
        await until(lambda: blame._asking is None)
        await look(opened, blame)
        assert blame._asking is None
        opened.clock.advance(600)
        await look(opened, blame)
        assert await answer(app, r={"verdict": VERDICT}) == "census"

    play(scene)


def test_nobody_is_asked_unless_it_is_wanted() -> None:
    """The default: an app is never made to fork because of a suspicion."""

    async def scene(opened: Stage, blame: AutomaticBlame, app: FakeApp) -> None:
        await look(opened, blame)
        assert blame._asking is None

    play(scene, enabled=False)


def test_an_app_that_allows_neither_is_left_alone() -> None:
    """What it does not obey is not asked for, and no other verdict than leaking is a reason to ask."""

    async def left_alone(opened: Stage, blame: AutomaticBlame, app: FakeApp) -> None:
        await look(opened, blame)
        assert blame._asking is None

    async def growing(opened: Stage, blame: AutomaticBlame, app: FakeApp) -> None:
        await look(opened, blame, Verdict.GROWING)
        assert blame._asking is None

    play(left_alone, caps=["release"])
    play(growing)
