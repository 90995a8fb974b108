"""An evaluation after which nothing is to be told or kept: it asks neither a thread nor the disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gpuagent.core.clock import ManualClock
from tests.agent.service.alerting.bench import BUSY, CALM, FULL, Bench, alerting, config, hanging_disk, rules, run, told
from tests.alerts.notify.outbox.parts import until
from tests.alerts.notify.receivers.sink import Reply, always, sink


def evaluations(bench: Bench) -> int:
    """Of the first rule."""
    return next(iter(bench.alerting.engine.rules())).evaluations


def test_a_quiet_node_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    """Rules go on while the disk hangs, and what they found is exported; what has to be kept waits for it."""

    async def test() -> None:
        async with alerting(config(tmp_path, None), rules(FULL), ManualClock(), tmp_path / "s") as bench:
            await bench.show(BUSY, times=2)
            async with hanging_disk(bench.alerting.store):
                await bench.show(BUSY, times=4)
                assert evaluations(bench) == 6
                figures = bench.alerting.figures()
                assert figures is not None
                assert [(one.alertname, one.number) for one in figures.alerts] == [("Full", 1)]
                bench.alerting.feed(CALM)  # too soon for another evaluation
                bench.clock.advance(5.0)
                bench.alerting.feed(CALM)
                await until(lambda: evaluations(bench) == 7)
                assert bench.alerting._task is not None
                assert not bench.alerting._task.done()
            await bench.settled()

    run(test)


def test_what_waits_at_a_receiver_has_an_age(tmp_path: Path) -> None:
    """The age of a message that cannot be delivered grows with each evaluation, though nothing else changes."""

    async def test() -> None:
        with sink(always(Reply(503))) as receiver:
            async with alerting(config(tmp_path, receiver), rules(FULL), ManualClock(), tmp_path / "s") as bench:
                await bench.show(BUSY)
                await asyncio.to_thread(receiver.wait, lambda seen: bool(seen.asked))
                ages = []
                for _ in range(3):
                    await bench.show(BUSY)
                    figures = bench.alerting.figures()
                    assert figures is not None
                    ages.append(figures.receivers[0].oldest_seconds)
                assert ages == [5.0, 10.0, 15.0]

    run(test)


def test_what_was_delivered_is_counted(tmp_path: Path) -> None:
    """The figures of a receiver are those of the evaluation after, also when nothing else has changed."""

    async def test() -> None:
        with sink() as receiver:
            async with alerting(config(tmp_path, receiver), rules(FULL), ManualClock(), tmp_path / "s") as bench:
                await bench.show(BUSY)
                await bench.emptied()
                assert len(told(receiver)) == 1
                await bench.show(BUSY)
                figures = bench.alerting.figures()
                assert figures is not None
                assert [(one.sent, one.queued) for one in figures.receivers] == [(1, 0)]

    run(test)
