"""What people do and see: acknowledgements taken back, receivers that are off, heartbeats, rules that cannot fire."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import datetime
from pathlib import Path

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent.core.metrics.alerting import UndeliveredReason
from gpuagent.service.incident_timeline import AlertTime, by_incident, timeline
from gpuagent_alerts.alert import CauseKind
from gpuagent_alerts.notify.incident_record import IncidentRecord
from gpuagent_alerts.notify.outbox.queue import Delivery
from gpuagent_alerts.notify.state import MAX_ALERTS
from tests.agent.service.alerting.bench import BUSY, CALM, FULL, alerting, config, rules, run, told
from tests.alerts.notify.outbox.parts import until
from tests.alerts.notify.receivers.sink import Reply, always, sink


@pytest.mark.parametrize("by_name", [True, False])
def test_an_acknowledgement_is_taken_back(tmp_path: Path, by_name: bool) -> None:
    """ALERT-02: nobody is at it any more, so it is repeated again; by the name of the rule, or by the fingerprint."""

    async def test() -> None:
        with sink() as receiver:
            settings = config(tmp_path, receiver, routes=[{"receivers": ["hook"], "repeat_interval": "1m"}])
            async with alerting(settings, rules(FULL), ManualClock(), tmp_path / "s") as bench:
                await bench.show(BUSY)
                (fingerprint,) = await bench.commands.acknowledge("Full", "mine", "alice")
                await bench.show(BUSY, seconds=90)
                with pytest.raises(KeyError, match=r"no incident of this key: Ful; did you mean Full\?"):
                    await bench.commands.acknowledge("Ful", "", "alice")
                with pytest.raises(KeyError, match="is acknowledged: Other"):
                    await bench.commands.unacknowledge("Other")
                found = await bench.commands.unacknowledge("Full" if by_name else fingerprint)
                assert found == [fingerprint]
                assert (await bench.state())["acknowledged_by"] == ""
                await bench.show(BUSY)
                await bench.emptied()
                assert [message.status for message in told(receiver)] == ["firing", "firing"]

    run(test)


def test_an_incident_is_shown_acknowledged_and_silenced_by_its_key(tmp_path: Path) -> None:
    """ALERT-02: the document has it with its alerts; its key stands for all that fires of it."""

    async def test() -> None:
        async with alerting(config(tmp_path, None), rules(FULL), ManualClock(), tmp_path / "s") as bench:
            await bench.show(BUSY)
            document = await bench.commands.alerts()
            (incident,), (alert,) = document["incidents"], document["alerts"]
            assert (incident["alerts"], incident["severity"]) == ([alert["fingerprint"]], "critical")
            assert (alert["incident"], incident["silenced"]) == (incident["key"], False)

            assert await bench.commands.acknowledge(incident["key"], "mine", "alice") == [incident["key"]]
            silence = await bench.commands.add_silence([f'incident="{incident["key"]}"'], 60.0, "work", "alice")
            await bench.show(BUSY)
            state = await bench.state()
            assert (state["acknowledged_by"], state["silenced_by"]) == ("alice", [silence["id"]])
            assert [one["silenced"] for one in (await bench.commands.alerts())["incidents"]] == [True]
            assert await bench.commands.unacknowledge(incident["key"]) == [incident["key"]]
            await bench.show(CALM)
            with pytest.raises(KeyError, match="no incident of this key"):
                await bench.commands.acknowledge(incident["key"], "late", "alice")

    run(test)


def test_an_incident_tells_its_timeline(tmp_path: Path) -> None:
    """It began, was told to whom, was acknowledged, ended and was told again: in this order, with names."""

    async def test() -> None:
        with sink() as receiver:
            async with alerting(config(tmp_path, receiver), rules(FULL), ManualClock(), tmp_path / "s") as bench:
                await bench.show(BUSY)
                await bench.emptied()
                (incident,) = (await bench.commands.alerts())["incidents"]
                await bench.commands.acknowledge(incident["key"], "mine", "alice")
                (incident,) = (await bench.commands.alerts())["incidents"]
                events = [(event["event"], event["receiver"], event["by"]) for event in incident["timeline"]]
                assert events == [("began", "", ""), ("told", "hook", ""), ("acknowledged", "", "alice")]
                assert incident["timeline"][0]["severity"] == "critical"
                await bench.show(CALM, seconds=90)
                await bench.show(CALM, seconds=90)
                await bench.emptied()
                (incident,) = (await bench.commands.alerts())["incidents"]
                kinds = [event["event"] for event in incident["timeline"]]
                assert kinds[:2] == ["began", "told"]
                assert sorted(kinds[2:]) == ["ended", "told"]

    run(test)


@pytest.mark.parametrize(
    ("alerts", "worse"),
    [
        ([AlertTime(1.0, "A", "warning")], []),
        ([AlertTime(1.0, "A", "warning"), AlertTime(5.0, "B", "critical"), AlertTime(9.0, "C", "critical")], ["B"]),
        ([AlertTime(1.0, "A", "critical"), AlertTime(5.0, "B", "warning")], []),
    ],
)
def test_what_made_an_incident_worse_is_told_once(alerts: list[AlertTime], worse: list[str]) -> None:
    """A later alert makes it worse only where it is graver than all before it."""
    record = IncidentRecord("inc-1", CauseKind.GPU, (), {}, 1.0, severity="critical")
    told = timeline(record, alerts, [], None)

    assert [event["alert"] for event in told if event["event"] == "worsened"] == worse
    assert told[0]["severity"] == alerts[0].severity


def test_messages_are_found_by_incident_or_by_the_alerts_that_they_tell_of() -> None:
    """A route that groups by labels names no incident: its messages belong to those of its alerts."""
    direct = Delivery("chat", "inc-1", "firing", (), "sent", 2.0)
    grouped = Delivery("mail", "", "firing", ("f00d", "beef"), "dead", 3.0)
    found = by_incident([direct, grouped], {"inc-1": ["f00d"], "inc-2": ["beef"], "inc-3": ["cafe"]})

    assert found == {"inc-1": [direct, grouped], "inc-2": [grouped]}


def test_a_receiver_that_is_off_is_shown_over_a_restart(tmp_path: Path) -> None:
    """410: which one, why and since when; not asked again by the next agent, and used after a test that it takes."""

    async def test() -> None:
        clock = ManualClock()
        with sink(always(Reply(410))) as receiver:
            settings = config(tmp_path, receiver)
            async with alerting(settings, rules(FULL), clock, tmp_path / "s") as first:
                await first.show(BUSY)
                await asyncio.to_thread(receiver.wait, lambda seen: bool(seen.asked))
                await until(first.alerting.delivery.off)
            since = clock.wall()
            receiver.behave = always(Reply())
            clock.advance(600)
            async with alerting(settings, rules(FULL), clock, tmp_path / "s") as second:
                await second.show(BUSY)
                (shown,) = (await second.commands.alerts())["receivers"]
                assert (shown["receiver"], shown["kind"], shown["queued"]) == ("hook", "webhook", 1)
                assert (shown["off"][:28], shown["off_since_seconds"]) == ("it wants nothing any more (4", since)
                assert len(receiver.asked) == 1
                assert (await second.commands.test_receiver("hook"))[0]
                await second.emptied()
            clock.advance(600)
            async with alerting(settings, rules(FULL), clock, tmp_path / "s") as third:
                assert (await third.commands.alerts())["receivers"][0]["off"] == ""

    run(test)


def test_a_silence_on_a_rule_that_is_none_says_so(tmp_path: Path) -> None:
    """CONF-09: it is taken, for a rule may come, with what was probably meant; of one that exists, if nothing is so."""

    async def test() -> None:
        async with alerting(config(tmp_path, None), rules(FULL), ManualClock(), tmp_path / "s") as bench:
            wrong = await bench.commands.add_silence(["alertname=Ful"], 60.0, "", "alice")
            right = await bench.commands.add_silence(["alertname=Full"], 60.0, "", "alice")
            assert wrong["note"] == "there is no rule Ful; did you mean Full?"
            assert right["note"] == "it matches no alert that is firing or pending now"
            await bench.show(BUSY)
            fires = await bench.commands.add_silence(["alertname=Full"], 60.0, "", "alice")
            (key,) = bench.alerting.incidents
            known = await bench.commands.add_silence([f"incident={key}"], 60.0, "", "alice")
            assert (fires["note"], known["note"]) == ("", "")
            unknown = await bench.commands.add_silence(["incident=inc-nosuch"], 60.0, "", "alice")
            assert unknown["note"] == "there is no incident inc-nosuch: `gpuagent alerts` shows the keys"

    run(test)


def test_a_receiver_that_fails_is_told_of_until_it_works(tmp_path: Path) -> None:
    """ALERT-11: after a minute of failures the figures name it with the reason; a delivery ends that."""

    async def test() -> None:
        with sink(always(Reply(503))) as receiver:
            settings = config(tmp_path, receiver)
            async with alerting(settings, rules(FULL), ManualClock(), tmp_path / "s") as bench:
                await bench.show(BUSY)
                await asyncio.to_thread(receiver.wait, lambda seen: bool(seen.asked))
                await until(lambda: bench.alerting.delivery.workers["hook"].last)
                figures = bench.alerting.figures()
                assert figures is not None
                assert figures.undelivered == ()
                await bench.show(BUSY, seconds=61)
                figures = bench.alerting.figures()
                assert figures is not None
                (one,) = figures.undelivered
                assert (one.receiver, one.why, one.messages) == ("hook", UndeliveredReason.FAILING, 1)
                assert "503" in one.reason
                receiver.behave = always(Reply())
                await bench.emptied(meanwhile_seconds=60)
                await bench.show(BUSY)
                figures = bench.alerting.figures()
                assert figures is not None
                assert figures.undelivered == ()

    run(test)


def test_heartbeats_are_shown(tmp_path: Path) -> None:
    """How often it was called, and what came of the last call."""

    async def test() -> None:
        with sink(always(Reply(404))) as receiver:
            beats = [{"name": "alive", "heartbeat": {"url": f"{receiver.url}/tops3cret"}}]
            settings = config(tmp_path, None, receivers=beats)
            async with alerting(settings, rules(FULL), ManualClock(), tmp_path / "s") as bench:
                await asyncio.to_thread(receiver.wait, lambda seen: bool(seen.asked))
                await until(lambda: bench.alerting.heartbeats[0].failed)
                (beat,) = (await bench.commands.alerts())["heartbeats"]
                assert (beat["receiver"], beat["interval_seconds"], beat["sent"]) == ("alive", 60.0, 0)
                assert "404" in beat["last"]
                assert "tops3cret" not in str(beat)

    run(test)


def test_a_rule_that_can_never_fire_is_told_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """ALERT-06: at the start and at each reload, with the rule and what was probably meant."""
    typo = "alert: Typo, expr: gpuagent_gpu_memory_used_ratioo > 1"
    percent = "alert: Percent, expr: gpuagent_gpu_memory_used_ratio > 90"
    caplog.set_level(logging.WARNING)

    async def test() -> None:
        settings = config(tmp_path, None)
        async with alerting(settings, rules(FULL, typo, percent), ManualClock(), tmp_path / "s") as bench:
            assert caplog.text.count('rule "Typo"') == 1
            assert "a ratio is between 0 and 1; write 0.9" in caplog.text
            assert "did you mean gpuagent_gpu_memory_used_ratio?" in caplog.text
            await bench.alerting.reload(settings, rules(FULL, typo), lambda: True)
            assert caplog.text.count('rule "Typo"') == 2
            await bench.alerting.reload(settings, rules(FULL), lambda: True)
            assert caplog.text.count('rule "Typo"') == 2

    run(test)


@pytest.mark.slow
def test_when_it_ended_is_known_until_all_are_told(tmp_path: Path) -> None:
    """More ends than a message holds: the last one too is told with the time at which it came."""
    count = MAX_ALERTS + 20
    many = [
        f"alert: Full, expr: gpuagent_gpu_memory_used_ratio > 0.9, labels: {{number: 'n{n}'}}" for n in range(count)
    ]

    async def test() -> None:
        clock = ManualClock()
        with sink() as receiver:
            settings = config(tmp_path, receiver, routes=[{"receivers": ["hook"], "group_by": ["alertname"]}])
            async with alerting(settings, rules(*many), clock, tmp_path / "s") as bench:
                await bench.show(BUSY, times=3)
                await bench.show(CALM)
                ended = clock.wall()
                await bench.show(CALM, times=3)
                await bench.emptied()
        ends = {}
        for request in receiver.processed:
            for alert in json.loads(request.body)["alerts"]:
                if alert["status"] == "resolved":
                    ends[alert["labels"]["number"]] = datetime.fromisoformat(alert["endsAt"]).timestamp()
        assert len(ends) == count
        assert set(ends.values()) == {ended}

    run(test)
