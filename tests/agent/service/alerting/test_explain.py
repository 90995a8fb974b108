"""The detector's reasons in the alerts that have a place for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent.core.growth import Growth, MemoryKey, Verdict
from gpuagent_alerts.messages.snapshot_inputs import explainer
from tests.agent.service.alerting.bench import alerting, config, rules, run
from tests.alerts.notify.receivers.sink import sink
from tests.fakes.readings import gpu, process, snapshot

UUID = "GPU-00000000"
OF_PROCESS = Growth(Verdict.LEAKING, reasons=("floor rose in 8 of 8 parts", "+1.9 GiB"))
OF_GPU = Growth(Verdict.LEAKING, reasons=("serve (pid 7): floor rose",))
SEEN = replace(
    snapshot([gpu(0, used_gib=23.5)], [process(7)]),
    growth={
        MemoryKey(UUID, 7): OF_PROCESS,
        MemoryKey(UUID): OF_GPU,
        MemoryKey(UUID, 7, 2): replace(OF_GPU, reasons=("MIG",)),
    },
)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({"uuid": UUID, "pid": "7"}, "floor rose in 8 of 8 parts; +1.9 GiB"),
        ({"uuid": UUID, "pid": "7", "gpu_instance_id": "2"}, "MIG"),
        ({"uuid": UUID}, "serve (pid 7): floor rose"),
        ({"uuid": UUID, "pid": "8"}, ""),
        ({"uuid": UUID, "pid": "seven"}, ""),
        ({}, ""),
    ],
)
def test_whose_reasons(labels: dict[str, str], words: str) -> None:
    """LEAK-02: those of the process that the labels name, else of the GPU; nothing where nothing is known."""
    assert explainer(SEEN)(labels) == words


FULL = 'alert: Full, expr: gpuagent_gpu_memory_used_ratio > 0.9, annotations: {reasons: "of the rule {{ $value }}"}'
STATUSES = (b'"status": "firing"', b'"status": "resolved"')
PLAIN = "alert: Plain, expr: gpuagent_gpu_memory_used_ratio > 0.9, annotations: {summary: full}"


def test_they_take_the_place_of_the_rules_text(tmp_path: Path) -> None:
    """ALERT-08: where a rule has `reasons` and the detector some; kept over a restart, and not told of an end."""

    async def test() -> None:
        with sink() as receiver:
            settings = config(tmp_path, receiver)
            async with alerting(settings, rules(FULL, PLAIN), ManualClock(), tmp_path / "s") as bench:
                await bench.show(replace(SEEN, growth={}))
                assert (await bench.state())["annotations"] == {"reasons": "of the rule 0.9791666666666666"}
                await bench.show(SEEN, times=2)
                assert (await bench.state())["annotations"] == {"reasons": "serve (pid 7): floor rose"}
                assert (await bench.state("Plain"))["annotations"] == {"summary": "full"}
            async with alerting(settings, rules(FULL, PLAIN), ManualClock(), tmp_path / "s") as bench:
                assert (await bench.state())["annotations"] == {"reasons": "serve (pid 7): floor rose"}
                await bench.show(snapshot([gpu(0, used_gib=1.0)]))
                await bench.emptied()
                firing, ended = (
                    b"".join(one.body for one in receiver.processed if status in one.body) for status in STATUSES
                )
                assert b"of the rule 0.97" in firing
                assert b"serve (pid 7): floor rose" not in ended

    run(test)
