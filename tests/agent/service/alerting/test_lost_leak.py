"""A leak on a GPU that is lost meanwhile: its end is told by what was known of the memory before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.core.growth import Evidence
from gpuagent.core.snapshot import GpuState
from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.messages.transitions import EndReasons, EvaluatedTick
from gpuagent_alerts.promql.series import SeriesIndex
from gpuagent_alerts.states.machine import Change, Transition
from tests.agent.service.alerting.stage import Stage, grown, leaking
from tests.fakes.readings import absent_gpu, gpu, process, snapshot

MINUTE = 60.0
PID = 4242
LEAK = grown(
    snapshot([gpu(0, used_gib=13.25)], [process(PID, used_gib=12.25)]), PID,
    leaking(Evidence.BALANCED, full_in=20 * MINUTE),
)  # fmt: skip
EMPTY = snapshot([gpu(0, used_gib=1.0)], [])
LOST = snapshot([absent_gpu(0, GpuState.LOST)], [])
LABELS = {"alertname": "GpuMemoryExhaustionSoon", "tier": "minutes", "gpu": "0", "uuid": "GPU-00000000"}


def test_what_was_known_before_the_loss_is_the_reason() -> None:
    """The tick in which the GPU is lost, and the alert is still true, takes nothing from what was measured before."""
    endings = EndReasons(tuple)
    endings.ask(lambda _pid, _uuid: None, lambda _: False)
    firing = Alert(LABELS, {}, Status.FIRING, 1.0)
    index = SeriesIndex.of([], None)
    for seen in (LEAK, LOST):
        endings.explain([Transition(Change.CONTINUES, firing)], EvaluatedTick(seen, index, 2.0))
    over = replace(firing, status=Status.RESOLVED, ends_at=3.0)
    (ended,) = endings.explain([Transition(Change.ENDED, over)], EvaluatedTick(EMPTY, index, 3.0))

    assert ended.alert.end_reason == f"python3 (pid {PID}) ended; 12.2 GiB came back"


@pytest.mark.parametrize("step", [-7200.0, 3600.0])
def test_a_wall_clock_that_is_set_moves_what_was_told(tmp_path: Path, step: float) -> None:
    """The end of an incident, and each of its alerts, has lasted for as long as it did, by the clock as it is now."""
    stage = Stage(tmp_path / "state")
    stage.show(LEAK, 5 * MINUTE)
    began = stage.messages[0].incident
    stage.clock.step(step)
    stage.show(LEAK, 5 * MINUTE)
    stage.show(EMPTY, 10 * MINUTE)

    ended = stage.messages[-1].incident
    assert began is not None
    assert ended is not None
    assert ended.news == "ended"
    assert ended.ends_at is not None
    assert ended.starts_at == pytest.approx(began.starts_at + step, rel=0, abs=1.0)
    assert 9 * MINUTE < ended.ends_at - ended.starts_at < 12 * MINUTE
    assert all(0.0 <= alert.begins_at - ended.starts_at < 3 * MINUTE for alert in stage.messages[-1].alerts)
