"""What can be asked of the leak detector: which process is meant, also after it has ended, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.config.leaks import LeakOverride, OverrideMatch
from gpuagent.core.growth import GrowthState, Verdict
from gpuagent.service.leak_commands import MOST_NOTE_CHARACTERS, LeakCommands
from gpuagent.service.leak_feedback import FeedbackStore
from gpuagent.service.pictures import LeakPictures
from gpuagent_alerts.alert import CauseKind, Incident, News
from gpuagent_alerts.leak.gpu_sensor import FORGET_SECONDS
from gpuagent_alerts.messages.end_facts import EndedAlert
from gpuagent_alerts.messages.end_reasons import reason_by_name
from gpuagent_alerts.states.machine import Change
from gpuagent_exporters.api.alert_routes import NotKept
from tests.alerts.leak.node import Node, node, run
from tests.fakes.openapi import faults_of

STORY = """
description: a leak that ends, and a process on both GPUs
gpus:
  - model: h100
    processes:
      - {name: leaker, user: alice, age: 20m, until: 45m, pid: 4200001,
         memory: {shape: ramp, start: 6GiB, rate: 24MiB, after: 10s, cap: 78GiB}}
      - {name: wide, user: bob, age: 1h, pid: 4200002, memory: 4GiB}
  - model: h100
    processes:
      - {name: wide, user: bob, age: 1h, pid: 4200002, memory: 3GiB}
"""
LEAKER, WIDE = 4200001, 4200002


def commands(one: Node, folder: Path | None = None) -> LeakCommands:
    """Return them over a node."""
    return LeakCommands(one.leaks, one.stage.clock, FeedbackStore(folder), node="node7", simulated=True)


def test_which_process_is_meant(tmp_path: Path) -> None:
    """One that is on several GPUs is asked for with its GPU; one that is on none is told as such."""

    async def test() -> None:
        async with node(STORY) as one:
            await one.until(400)
            asked = commands(one, tmp_path)
            with pytest.raises(ValueError, match=f"process {WIDE} is on GPU 0, GPU 1: say which with gpu"):
                asked.explain(WIDE, "")
            told = asked.explain(WIDE, "1")
            assert faults_of("LeakEvidence", told) == []
            assert (told["gpu"], told["process"], told["user"]) == (1, "wide", "bob")
            assert asked.explain(WIDE, told["gpu_uuid"])["gpu"] == 1
            for pid, gpu, words in ((1, "", "nothing is remembered"), (LEAKER, "1", "is not on GPU 1; it is on GPU 0")):
                with pytest.raises(KeyError, match=words):
                    asked.explain(pid, gpu)
            with pytest.raises(KeyError, match="there is no GPU 7; there is 0, 1"):
                await asked.traces(None, "7")
            found = await asked.traces(None, "0")
            assert faults_of("LeakTraces", found) == []
            assert [each["process"] for each in found["traces"]] == ["leaker", "wide"]
            assert [each["trace"]["process"] for each in found["traces"]] == [
                f"leaker:{LEAKER}/gpu0", f"wide:{WIDE}/gpu0",
            ]  # fmt: skip

    run(test)


@pytest.mark.slow
def test_a_leak_that_has_ended(tmp_path: Path) -> None:
    """The next morning its evidence is still there, and may be labelled; of what never leaked nothing is kept."""

    async def test() -> None:
        async with node(STORY) as one:
            await one.until(2600)
            asked = commands(one, tmp_path)
            before = asked.explain(LEAKER, "")
            assert before["verdict"] == "leaking"
            await one.until(2700 + FORGET_SECONDS + 120)
            told = asked.explain(LEAKER, "")
            assert (told["running"], told["process"], told["user"]) == (False, "leaker", "alice")
            assert told["points"][: len(before["points"]) // 2]
            kept = await asked.add_feedback(LEAKER, "", "true", "tickets", "carol")
            assert faults_of("LeakFeedbackAdded", kept) == []
            assert (kept["label"], kept["by"], kept["process"]) == ("true", "carol", "leaker")
            entry = await asked.feedback_entry(kept["id"])
            assert faults_of("LeakFeedbackEntry", entry) == []
            listed = await asked.feedback()
            assert [each["id"] for each in listed["feedback"]] == [kept["id"]]
            await asked.remove_feedback(kept["id"])
            assert (await asked.feedback())["feedback"] == []

    run(test)


@pytest.mark.slow
def test_a_message_has_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process that grows, drawn in a process of its own; of what is steady, over or unknown there is none."""

    def about(pid: str, uuid: str, news: News = News.BEGAN) -> Incident:
        return Incident("inc-1", CauseKind.PROCESS, {"pid": pid, "uuid": uuid}, "critical", 0.0, news=news)

    async def test() -> None:
        async with node(STORY) as one:
            await one.until(1500)
            asked = commands(one, tmp_path)
            pictures = LeakPictures(asked.explain)
            uuid = asked.explain(LEAKER, "")["gpu_uuid"]
            assert (await pictures.picture_of(about(str(LEAKER), uuid))).startswith(b"\x89PNG")
            assert await pictures.picture_of(about(str(LEAKER), uuid, News.ENDED)) == b""
            for pid, where in ((str(WIDE), uuid), (str(WIDE), ""), ("1", uuid), ("", uuid)):
                assert await pictures.picture_of(about(pid, where)) == b""
            monkeypatch.setattr("gpuagent.service.pictures._PROGRAM", ("/bin/false",))
            assert await pictures.picture_of(about(str(LEAKER), uuid)) == b""

    run(test)


def test_what_cannot_be_said(tmp_path: Path) -> None:
    """No label, a note that is too long, a process of which nothing is kept yet, and no place to keep it."""

    async def test() -> None:
        async with node(STORY) as one:
            await one.tick(1)
            asked = commands(one, tmp_path)
            for label, note, words in (
                ("maybe", "", "label must be false or true"),
                ("true", "x" * (MOST_NOTE_CHARACTERS + 1), "at most 1000 characters"),
                ("true", "", "nothing is remembered of process 4200001 yet: the first 2 min"),
            ):
                with pytest.raises(ValueError, match=words):
                    await asked.add_feedback(LEAKER, "", label, note, "carol")
            assert asked.explain(LEAKER, "")["why"] == [
                "Nothing is kept of the first 2 min after the first reading: what is seen first may be loading."
            ]
            await one.until(400)
            with pytest.raises(NotKept, match="no state directory"):
                await commands(one, None).add_feedback(LEAKER, "", "true", "", "carol")

    run(test)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_verdict_that_a_sensitivity_ended() -> None:
    """Its alert says so when it ends, and not that growth has stopped."""

    async def test() -> None:
        async with node(STORY) as one:
            await one.until(1800)
            growth = one.growth(LEAKER)
            assert growth is not None
            assert growth.verdict is Verdict.LEAKING
            one.leaks.use("balanced", (LeakOverride(match=OverrideMatch(user="alice"), sensitivity="off"),))
            await one.until(2400)
            growth = one.growth(LEAKER)
            assert growth is not None
            assert (growth.verdict, growth.suspected) == (Verdict.GROWING, True)
            ended, *_ = one.alerts("GpuProcessMemoryLeak", Change.ENDED)
            assert one.snapshot is not None
            case = EndedAlert(ended.alert, None, one.snapshot, one.stage.clock.wall(), lambda _: True)
            assert (
                reason_by_name(case).text == "it still grows, and is no leak by the sensitivity that now holds for it"
            )
            flat = {key: replace(each, state=GrowthState.STOPPED) for key, each in one.snapshot.growth.items()}
            case = replace(case, snapshot=replace(one.snapshot, growth=flat))
            assert "still grows" not in reason_by_name(case).text

    run(test)
