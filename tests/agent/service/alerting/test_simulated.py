"""A simulated node's alerts are made up wherever they are seen."""

from __future__ import annotations

import json
from pathlib import Path

from gpuagent.core.clock import ManualClock
from tests.agent.service.alerting.bench import alerting, config, rules, run
from tests.alerts.notify.receivers.sink import sink
from tests.fakes.readings import gpu, snapshot

FULL = "alert: Full, expr: gpuagent_gpu_memory_used_ratio > 0.9, annotations: {summary: full}"


def test_every_alert_carries_the_mark(tmp_path: Path) -> None:
    """The message has `simulated` as a label of each alert, to route by; the document has it too."""

    async def test() -> None:
        with sink() as receiver:
            settings = config(tmp_path, receiver)
            async with alerting(settings, rules(FULL), ManualClock(), None, simulated="leak") as bench:
                await bench.show(snapshot([gpu(0, used_gib=23.5)]), times=2)
                await bench.emptied()
                assert (await bench.commands.alerts())["simulated"] is True
            body = json.loads(receiver.processed[0].body)
            assert body["simulated"] is True
            assert [one["labels"]["simulated"] for one in body["alerts"]] == ["true"]
            async with alerting(settings, rules(FULL), ManualClock(), None) as bench:
                await bench.show(snapshot([gpu(0, used_gib=23.5)]), times=2)
                await bench.emptied()
                assert (await bench.commands.alerts())["simulated"] is False
            last = json.loads(receiver.processed[-1].body)
            assert last["simulated"] is False
            assert all("simulated" not in one["labels"] for one in last["alerts"])

    run(test)
