"""What stands still while nothing can be evaluated, and that a defect in one place holds up nothing else."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent.core.growth import Evidence
from tests.agent.service.alerting.bench import BUSY, CALM, FULL, Bench, alerting, config, rules, run
from tests.agent.service.alerting.stage import Stage, leak
from tests.alerts.notify.receivers.sink import sink

PATIENCE_SECONDS = 20.0


def test_heartbeats_stop_while_no_rule_is_evaluated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """A state disk that hangs holds up every alert: a heartbeat meanwhile would be an all-clear. The log says so."""
    hangs = threading.Event()

    async def is_called(bench: Bench) -> bool:
        (beat,) = bench.alerting.heartbeats
        return await beat.beat() is not None

    async def test() -> None:
        with sink() as receiver:
            beats = [{"name": "alive", "heartbeat": {"url": receiver.url}}]
            settings = config(tmp_path, None, receivers=beats)
            async with alerting(settings, rules(FULL), ManualClock(), tmp_path / "s") as bench:
                await bench.show(CALM, times=2)
                keep = bench.alerting._keep

                def hang(told: Any) -> None:
                    hangs.wait(PATIENCE_SECONDS)
                    keep(told)

                monkeypatch.setattr(bench.alerting, "_keep", hang)
                bench.clock.advance(60.0)
                bench.alerting.feed(BUSY)
                await asyncio.sleep(0)
                assert await is_called(bench)
                for _ in range(4):
                    bench.clock.advance(20.0)
                    bench.alerting.feed(BUSY)
                assert not await is_called(bench)
                hangs.set()
                await bench.settled()
                assert await is_called(bench)

    run(test)
    assert caplog.text.count("no rule could be evaluated for") == 1


def test_a_defect_in_counting_stops_no_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures stay those of before, listeners hear of the evaluation, and the next one counts again."""
    given: list[int] = []

    async def listen(evaluations: Any) -> None:
        given.append(len(evaluations))

    def fail(*_: Any) -> None:
        raise RuntimeError("a defect")

    async def test() -> None:
        async with alerting(config(tmp_path, None), rules(FULL), ManualClock(), tmp_path / "s") as bench:
            bench.alerting.listen(listen, tuple, lambda _: "")
            await bench.show(CALM, times=2)
            with monkeypatch.context() as patched:
                patched.setattr("gpuagent.service.alerting.count_alerts", fail)
                await bench.show(BUSY, times=2)
            assert given[-1] == 1
            await bench.show(BUSY)
            figures = bench.alerting.figures()
            assert figures is not None
            assert len(figures.firing) == 1

    run(test)


def test_a_text_that_cannot_be_written_holds_up_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An incident is told by its alerts alone then, and all others as ever."""

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    stage = Stage(tmp_path / "state")
    monkeypatch.setattr(stage.notifier, "brief", fail)
    stage.show(leak(8.0, Evidence.BALANCED), 300.0)

    assert stage.told()[0].startswith("began warning: ProcessMemoryLeak")
    assert stage.headlines()[0] == ""
