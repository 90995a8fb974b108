"""Asking apps: what they answer, refuse, and leave unanswered."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from gpuagent.core.hardware import Memory
from gpuagent.core.snapshot import GpuReading, ProcessReading, ProcessState, Snapshot
from gpuagent.core.units import GIB
from gpuagent_exporters.api.process_routes import CommandFailure
from tests.agent.clients.parts import Stage, in_thread, stage, until
from tests.fakes.embedded import FakeApp, stats
from tests.fakes.snapshots import full_snapshot
from tests.tables import table

ME = os.getpid()
Reply = Callable[[dict[str, Any]], dict[str, Any]]


def done(**figures: Any) -> Reply:
    """Done, with these figures."""
    return lambda asked: {"t": "res", "id": asked["id"], "ok": True, "r": figures}


def refused(why: str) -> Reply:
    """Not done."""
    return lambda asked: {"t": "res", "id": asked["id"], "ok": False, "err": why}


def ask(name: str, args: Mapping[str, Any], *replies: Reply | None, caps: list[str] | None = None) -> Any:
    """What becomes of a command to an app that answers so (None: never), and what the app was asked."""

    async def run() -> tuple[Any, list[dict[str, Any]]]:
        async with asyncio.timeout(40), stage() as opened:
            changes = {} if caps is None else {"caps": caps}
            with await opened.client(**changes) as app:
                asked: list[dict[str, Any]] = []
                answering = asyncio.create_task(in_thread(lambda: _answer(app, replies, asked)))
                try:
                    return await opened.commands.command(ME, name, args), asked
                finally:
                    app.socket.shutdown(2)
                    await answering

    return asyncio.run(run())


def _answer(app: FakeApp, replies: tuple[Reply | None, ...], asked: list[dict[str, Any]]) -> None:
    for reply in replies:
        question = app.receive("cmd")
        if not question:
            return
        asked.append(question)
        if reply is not None:
            app.send(reply(question))


def failure(
    name: str, args: Mapping[str, Any], *replies: Reply | None, caps: list[str] | None = None
) -> CommandFailure:
    """Why it was not done."""
    with pytest.raises(CommandFailure) as raised:
        ask(name, args, *replies, caps=caps)
    return raised.value


def test_a_command_and_its_answer() -> None:
    """The app is asked with an id, its arguments and a deadline; what comes back is figures."""
    answer, (asked,) = ask("limit", {"ratio": 0.5}, done(ratio=0.5, words="left out", bad=None))

    assert answer == {"pid": ME, "ratio": 0.5}
    assert (asked["cmd"], asked["args"], asked["deadline_ms"]) == ("limit", {"ratio": 0.5}, 10_000)


@pytest.mark.parametrize(
    ("name", "args"),
    [("rate", {"interval": 5.0}), ("reset", {}), ("limit", {"ratio": 1.0})],
)
def test_every_plain_command(name: str, args: dict[str, Any]) -> None:
    """They go out as they came in."""
    _, (asked,) = ask(name, args, done())

    assert (asked["cmd"], asked["args"]) == (name, args)


@table(
    "name, args",
    [
        ("limit", {}),
        ("limit", {"ratio": 0}),
        ("limit", {"ratio": 2}),
        ("limit", {"ratio": "all"}),
        ("limit", {"ratio": True}),
        ("limit", {"ratio": float("nan")}),
        ("rate", {"interval": 1000}),
        ("release", {"collect": 1}),
        ("release", {"path": "/etc/passwd"}),
        ("reset", {"now": True}),
        ("blame", {"window_seconds": 0}),
        ("blame", {"window_seconds": 10**9}),
        ("census", {"code": "x"}),
        ("lines", {"show_keys": True}),
        ("census", {"max_pause_seconds": 0}),
        ("lines", {"max_pause_seconds": 1}),
        ("blame", {"census": False, "lines": False}),
    ],
)
def test_bad_arguments_reach_no_app(name: str, args: dict[str, Any]) -> None:
    """A fixed list of names and bounds: nothing else of what somebody typed is passed on."""
    with pytest.raises(ValueError, match=r"must be|is unknown"):
        ask(name, args)


def test_what_is_no_command() -> None:
    """It is told what there is."""
    with pytest.raises(KeyError, match=r"there is no command 'eval'; there is: release, limit"):
        ask("eval", {})


def test_a_refusal_is_an_answer() -> None:
    """The app's reason reaches whoever asked."""
    found = failure("release", {}, refused("at most once a minute"))

    assert (found.reason, str(found)) == ("refused", "at most once a minute")


def test_what_the_app_does_not_allow() -> None:
    """It is not even asked."""
    assert failure("release", {}, caps=["census"]).reason == "forbidden"


def test_nobody_there() -> None:
    """A pid without a client is told as such."""

    async def run() -> None:
        async with stage() as opened:
            for name in ("release", "blame"):
                with pytest.raises(CommandFailure, match="no app with an embedded client") as raised:
                    await opened.commands.command(1, name, {})
                assert raised.value.reason == "absent"
            assert opened.registry.commands["release", "absent"] == 1

    asyncio.run(run())


def test_an_app_that_ends_meanwhile() -> None:
    """Whoever waits is told at once."""

    async def run() -> None:
        async with stage() as opened:
            app = await opened.client()
            asking = asyncio.create_task(opened.registry.ask(ME, "reset", {}, 30))
            await in_thread(lambda: app.receive("cmd"))
            app.close()
            with pytest.raises(CommandFailure, match="has ended"):
                await asking

    asyncio.run(run())


def test_late_answers_and_those_to_nothing() -> None:
    """Past the deadline the question is closed: a late answer, or one that was never asked for, changes nothing."""

    async def run() -> None:
        async with stage() as opened:
            with await opened.client() as app:
                with pytest.raises(CommandFailure) as raised:
                    await opened.registry.ask(ME, "reset", {}, 0.05)
                assert raised.value.reason == "late"
                question = await in_thread(lambda: app.receive("cmd"))
                app.send(done(late=1)(question), {"t": "res", "id": 999, "ok": True})
                asking = asyncio.create_task(opened.registry.ask(ME, "reset", {}, 30))
                question = await in_thread(lambda: app.receive("cmd"))
                app.send({"t": "res", "id": question["id"], "ok": True, "state": "running"}, done(now=1)(question))
                assert await asking == {"now": 1}

    asyncio.run(run())


def test_one_at_a_time() -> None:
    """A second command is refused rather than queued: whoever asked can say so."""

    async def run() -> None:
        async with stage() as opened:
            with await opened.client() as app:
                asking = asyncio.create_task(opened.registry.ask(ME, "census", {}, 30))
                question = await in_thread(lambda: app.receive("cmd"))
                with pytest.raises(CommandFailure, match="busy with census"):
                    await opened.registry.ask(ME, "release", {}, 30)
                app.send(done()(question))
                await asking

    asyncio.run(run())


HELD = {
    "key": "k", "count": 412, "bytes": 2 * GIB, "growth_bytes": GIB, "kind": "list", "file": "app.py", "line": 42,
    "function": "predict", "container": "app.results", "container_length": 412, "cause": "kept", "remedy": "detach()",
    "path": None, "unknown": [1],
}  # fmt: skip
CENSUS = {
    "verdict": "+1.9 GiB in 60 s is held by `app.results` (list, 412 items)",
    "groups": [HELD],
    "lines": [],
    "notes": ["n"],
    "stall_seconds": 0.01,
    "foretold_stall_seconds": 0.02,
}  # fmt: skip


def test_blame_puts_both_looks_together() -> None:
    """The census' verdict, and why lines could not be recorded."""
    answer, asked = ask("blame", {"window_seconds": 30}, done(**CENSUS), refused("no CUDA here"))

    assert [(each["cmd"], each["deadline_ms"]) for each in asked] == [("census", 150_000), ("lines", 150_000)]
    assert answer["verdict"].startswith("+1.9 GiB")
    assert (answer["groups"][0]["file"], answer["groups"][0]["line"], answer["groups"][0]["path"]) == ("app.py", 42, "")
    assert (answer["notes"], answer["stall_seconds"]) == (["n", "lines: no CUDA here"], 0.01)
    assert answer["foretold_stall_seconds"] == 0.02


def test_blame_asks_once_where_both_can_be_done_in_one_look() -> None:
    """The app records lines beside its census, and joins the two: half the time, and one verdict."""
    group = {**HELD, "allocated_file": "model.py", "allocated_line": 7, "allocated_function": "embed",
             "allocated_bytes": GIB}  # fmt: skip
    answer, asked = ask("blame", {}, done(**{**CENSUS, "groups": [group], "joined": True, "lines": [{"line": 7}]}))

    assert [(each["cmd"], each["args"]["lines"]) for each in asked] == [("census", True)]
    (found,) = answer["groups"]
    assert (found["allocated_file"], found["allocated_line"], found["allocated_bytes"]) == ("model.py", 7, GIB)
    assert len(answer["lines"]) == 1


@pytest.mark.parametrize(("args", "caps"), [({"lines": False}, None), ({}, ["census"])])
def test_lines_are_not_asked_for_where_they_are_not_wanted(args: dict[str, Any], caps: list[str] | None) -> None:
    """Neither by the caller, nor by an app that does not obey that."""
    _, (asked, *_) = ask("blame", args, done(**CENSUS), caps=caps)

    assert asked["args"]["lines"] is False


def test_blame_by_lines_where_nobody_holds_it() -> None:
    """A line that allocates is a verdict too."""
    lines = {"verdict": "allocated at model.py:7", "lines": [{"file": "model.py", "line": 7, "growth_bytes": GIB}]}
    answer, _ = ask("blame", {}, done(verdict="nothing is held", groups=[]), done(**lines))

    assert (answer["verdict"], answer["lines"][0]["growth_bytes"]) == ("allocated at model.py:7", GIB)


def test_blame_that_fails_twice_tells_the_first_reason() -> None:
    """And which of both it was."""
    assert str(failure("blame", {}, refused("the app is forking"), refused("no"))) == "census: the app is forking"


def test_what_an_app_finds_is_not_believed() -> None:
    """Types, sizes and escapes: an app may answer anything, and a terminal shows it."""
    wild = {"verdict": "\x1b[2J" + "x" * 5000, "groups": "none", "lines": [7, {"line": 10**400, "file": 7}] * 100,
            "notes": [None, 7], "stall_seconds": "long", "foretold_stall_seconds": True}  # fmt: skip
    answer, _ = ask("census", {}, done(**wild))

    assert answer["verdict"].isprintable()
    assert len(answer["verdict"]) <= 1500
    assert (answer["groups"], answer["notes"], answer["stall_seconds"]) == ([], [], None)
    assert answer["foretold_stall_seconds"] is None
    assert len(answer["lines"]) <= 50
    assert answer["lines"][0] == {
        "file": "", "function": "", "line": None, "bytes": None, "count": None, "growth_bytes": None
    }  # fmt: skip


def node(used_bytes: int, seconds: float, info: Any) -> Snapshot:
    """Us on a GPU, so much at that time."""
    gpu: GpuReading = dataclasses.replace(
        full_snapshot().gpus[0], time_seconds=seconds, memory=Memory(80 * GIB, used_bytes, 80 * GIB - used_bytes)
    )
    process = ProcessReading(0, "GPU-0", ME, ProcessState.LIVE, info, used_bytes, "C", None)
    return dataclasses.replace(full_snapshot(), gpus=(gpu,), processes=(process,), clock_seconds=seconds)


def test_release_says_how_much_came_back() -> None:
    """By the allocator's count and by the driver's, and only once both have told figures of afterwards."""
    before = stats({"uuid": "0", "allocated_bytes": 2 * GIB, "reserved_bytes": 8 * GIB})
    after = stats({"uuid": "0", "allocated_bytes": 2 * GIB, "reserved_bytes": 3 * GIB})

    async def run(opened: Stage) -> Any:
        with await opened.client() as app:
            client = opened.registry.client(ME)
            assert client is not None
            assert client.info is not None
            info = client.info
            app.send(before)
            await until(lambda: client.stats)
            await opened.tick(node(10 * GIB, opened.clock.now(), info))
            asking = asyncio.create_task(opened.commands.release(ME, collect=True))
            question = await in_thread(lambda: app.receive("cmd"))
            assert question["args"] == {"collect": True}
            told = client.stats
            app.send(done(reserved_before_bytes=8 * GIB, reserved_after_bytes=3 * GIB, took_ms=7.5)(question))
            await until(lambda: opened.door._waiting)
            await opened.tick(node(10 * GIB, opened.clock.now(), info))  # measured before: not yet
            opened.clock.advance(1.0)
            app.send(after)
            await until(lambda: client.stats is not told)
            await opened.tick(node(5 * GIB, opened.clock.now(), info))
            return await asking

    async def staged() -> Any:
        async with asyncio.timeout(40), stage() as opened:
            return await run(opened)

    answer = asyncio.run(staged())
    assert (answer["returned_bytes"], answer["took_ms"], answer["collected"]) == (5 * GIB, 7.5, True)
    assert (answer["reserved_before_bytes"], answer["reserved_after_bytes"]) == (8 * GIB, 3 * GIB)
    assert [device["reserved_bytes"] for device in answer["before"] + answer["after"]] == [8 * GIB, 3 * GIB]


def test_the_document_of_all_apps() -> None:
    """Who is connected, with what the driver and the allocator say side by side."""

    async def run() -> Any:
        async with stage() as opened:
            with await opened.client() as app:
                client = opened.registry.client(ME)
                assert client is not None
                app.send(
                    {"t": "event", "name": "load", "fields": {"seconds": 2.5}},
                    stats({"uuid": "0", "allocated_bytes": 2 * GIB, "reserved_bytes": 8 * GIB}),
                )
                await until(lambda: client.stats)
                opened.clock.advance(2.0)
                await opened.tick(node(10 * GIB, opened.clock.now(), client.info))
                return opened.commands.clients()

    document = asyncio.run(run())
    (app,) = document["clients"]
    (device,) = app["devices"]
    assert (app["pid"], app["app"], app["uid"], app["age_seconds"]) == (ME, "web", os.getuid(), 2.0)
    assert (device["gpu"], device["cached_bytes"], device["outside_bytes"]) == (0, 6 * GIB, 2 * GIB)
    assert app["events"] == [{"age_seconds": 2.0, "name": "load", "fields": {"seconds": 2.5}}]
