"""From a snapshot to what a receiver is told of an incident."""

from __future__ import annotations

import json
from pathlib import Path

from gpuagent.core.clock import ManualClock
from gpuagent_alerts.rules.file import load_rule_file
from gpuagent_alerts.shipped import RULES_FILE, RUNBOOKS_URL
from tests.agent.service.alerting.bench import alerting, bodies, config, run
from tests.alerts.notify.receivers.sink import sink
from tests.fakes.readings import gpu, process, snapshot

FULL = snapshot(
    [gpu(0, used_gib=79.5, total_gib=80.0)],
    [process(81204, used_gib=44.1, name="whisper-api", user="svc-ml"), process(7, used_gib=35.0)],
)
EMPTIED = snapshot([gpu(0, used_gib=35.4, total_gib=80.0)], [process(7, used_gib=35.0)])


def test_a_full_gpu_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    """The message names who holds the memory; the end says what came back, and nothing that was true before."""

    async def test() -> None:
        with sink() as receiver:
            settings = config(tmp_path, receiver)
            async with alerting(settings, load_rule_file(RULES_FILE), ManualClock(), tmp_path / "s") as bench:
                await bench.show(FULL, times=8)
                await bench.emptied()
                await bench.show(EMPTIED, times=60)
                await bench.emptied()
        told = [body for body in bodies(receiver) if body["incident"] is not None]
        first, last = told[0], told[-1]
        assert first["headline"] == (
            "CRITICAL node7 GPU 0: memory is full (99 %), 44.1 GiB of it held by whisper-api (svc-ml, pid 81204)"
        )
        assert [one["pid"] for one in first["incident"]["holders"]] == [81204, 7]
        assert first["incident"]["next_command"] == "gpuagent ps --gpu 0"
        left = "memory was full: whisper-api (pid 81204) left the GPU; 44.1 GiB came back"
        assert last["headline"] == f"RESOLVED node7 GPU 0: {left}"
        (ended,) = (one for one in last["alerts"] if one["labels"]["alertname"] == "GpuMemoryFull")
        assert ended["annotations"] == {
            "summary": f"GPU 0: {left}",
            "runbook_url": f"{RUNBOOKS_URL}GpuMemoryFull.md",
        }
        assert first["incident"]["links"]["runbook"] == f"{RUNBOOKS_URL}GpuMemoryFull.md"
        texts = [text for one in first["alerts"] for name, text in one["annotations"].items() if name != "runbook_url"]
        assert not [text for text in texts if text in json.dumps(last)]

    run(test)
