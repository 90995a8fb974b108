"""Since when and for how long: an alert and its incident agree on every surface, whatever the agent could not see."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent_alerts.alert import condition_times
from tests.agent.service.alerting.bench import BLIND, BUSY, CALM, FULL, alerting, config, rules, run, told
from tests.alerts.notify.receivers.sink import sink


@pytest.mark.parametrize("blind_ticks", [0, 3, 200])
def test_an_alert_and_its_incident_agree_after_blindness(tmp_path: Path, blind_ticks: int) -> None:
    """A driver that is loaded again, or measuring that is paused: what goes on after it has lasted all the time."""

    async def test() -> None:
        with sink() as receiver:
            rule = rules(f"{FULL}, for: 10s, keep_firing_for: 20s")
            async with alerting(config(tmp_path, receiver), rule, clock := ManualClock(), tmp_path / "s") as bench:
                await bench.show(BUSY, times=4)
                if blind_ticks:
                    await bench.show(BLIND, times=blind_ticks)
                await bench.show(BUSY, times=4)
                document = await bench.commands.alerts()
                (alert,), (incident,) = document["alerts"], document["incidents"]
                lasted = clock.wall() - incident["starts_at_seconds"]
                assert alert["active_seconds"] == pytest.approx(lasted, abs=0.01)
                (firing,) = bench.alerting.firing()
                assert condition_times(firing)[0] == incident["starts_at_seconds"]

                await bench.show(CALM, times=6)
                await bench.emptied()
                bodies = [json.loads(each.body) for each in receiver.processed]
                assert [each["incident"]["news"] for each in bodies] == ["began", "ended"]
                for body in bodies:
                    (one,) = body["alerts"]
                    assert one["startsAt"] == body["incident"]["startsAt"]
                    assert body["incident"]["endsAt"] in {None, one["endsAt"]}
                assert [each.status for each in told(receiver)] == ["firing", "resolved"]

    run(test)
