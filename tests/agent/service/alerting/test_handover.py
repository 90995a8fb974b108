"""Going over to `alerting: prometheus`, and back."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent_alerts.messages.transitions import WORDS
from tests.agent.service.alerting.bench import BUSY, CALM, FULL, Bench, alerting, config, rules, run, told
from tests.alerts.notify.receivers.sink import Reply, Sink, always, sink

RULE = f'{FULL}, annotations: {{summary: "GPU {{{{ $labels.gpu }}}} is full", description: "Look who uses it."}}'


def statuses(receiver: Sink) -> list[str]:
    """What it was told, in order."""
    return [message.status for message in told(receiver)]


async def dead(bench: Bench) -> Any:
    """Dead letters."""
    return (await bench.commands.dead())["dead"]


@pytest.mark.parametrize("restart", [False, True])
def test_what_was_told_is_closed(tmp_path: Path, restart: bool) -> None:
    """Who was told that it fires is told once that this agent says no more, and why; back again, it is told anew."""

    async def test() -> None:
        clock = ManualClock()
        with sink() as receiver:
            node, prometheus = (config(tmp_path, receiver, alerting=mode) for mode in ("node", "prometheus"))
            async with alerting(node, rules(RULE), clock, tmp_path / "s") as bench:
                await bench.show(BUSY)
                await bench.emptied()
                if not restart:
                    await bench.alerting.reload(prometheus, rules(RULE), lambda: True)
                    await bench.show(BUSY, times=3)
                    await bench.emptied()
            async with alerting(prometheus, rules(RULE), clock, tmp_path / "s") as bench:
                await bench.show(BUSY, times=3)
                await bench.emptied()
                assert statuses(receiver) == ["firing", "resolved"]
                last = json.loads(receiver.processed[-1].body)["alerts"][0]["annotations"]
                assert last == {"summary": f"Full has ended: {WORDS}"}
                assert (await bench.state())["state"] == "firing"

                await bench.alerting.reload(node, rules(RULE), lambda: True)
                await bench.show(BUSY, times=3)
                await bench.show(CALM)
                await bench.emptied()
                assert statuses(receiver) == ["firing", "resolved", "firing", "resolved"]
                last = json.loads(receiver.processed[-1].body)["alerts"][0]["annotations"]
                assert last == {"summary": "Full has ended: no longer true: 8 % now"}

    run(test)


def test_what_waits_is_still_sent(tmp_path: Path) -> None:
    """A message for a receiver that is down is neither a dead letter nor lost: the late end tells both."""

    async def test() -> None:
        clock = ManualClock()
        # The pause is longer than what passes below: else a second attempt may be under way when the receiver is back.
        with sink(always(Reply(503, {"Retry-After": "300"}))) as receiver:
            node, prometheus = (config(tmp_path, receiver, alerting=mode) for mode in ("node", "prometheus"))
            async with alerting(node, rules(RULE), clock, tmp_path / "s") as bench:
                await bench.show(BUSY)
                await asyncio.to_thread(receiver.wait, lambda seen: bool(seen.asked))
                await bench.alerting.reload(prometheus, rules(RULE), lambda: True)
                await bench.show(BUSY)
                await bench.alerting.housekeeping()
                assert await dead(bench) == []
                receiver.behave = always(Reply())
                await bench.emptied(meanwhile_seconds=600)
                assert statuses(receiver) == ["resolved"]
                assert b"told late" in receiver.processed[-1].body
                assert await dead(bench) == []

    run(test)


def test_nothing_new_is_told(tmp_path: Path) -> None:
    """What begins after the switch is for Prometheus alone."""

    async def test() -> None:
        with sink() as receiver:
            settings = config(tmp_path, receiver, alerting="prometheus")
            async with alerting(settings, rules(RULE), ManualClock(), tmp_path / "s") as bench:
                await bench.show(BUSY, times=3)
                await bench.show(CALM, times=3)
                await bench.emptied()
                assert receiver.asked == []

    run(test)
