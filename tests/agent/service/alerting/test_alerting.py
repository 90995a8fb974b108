"""From a snapshot to a message that arrives, and what keeps it from being sent."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.config.alerting import Route
from gpuagent.core.clock import ManualClock
from gpuagent.core.matchers import parse_matcher
from gpuagent_alerts.notify.outbox.attempt import Reason
from tests.agent.service.alerting.bench import BLIND, BUSY, CALM, FULL, Told, alerting, config, rules, run, told
from tests.alerts.notify.receivers.sink import Reply, always, sink

FOR_10S = f"{FULL}, for: 10s"


def what(messages: list[Told]) -> list[tuple[str, list[str]]]:
    """Without their ids."""
    return [(message.status, message.alerts) for message in messages]


def test_a_rule_holds_fires_and_ends(tmp_path: Path) -> None:
    """A condition that holds is told once, after `for`, and its end is told once."""

    async def test() -> None:
        with sink() as receiver:
            async with alerting(config(tmp_path, receiver), rules(FOR_10S), ManualClock(), tmp_path / "s") as bench:
                await bench.show(CALM)
                assert await bench.state() is None
                await bench.show(BUSY, times=2)
                assert (await bench.state())["state"] == "pending"
                await bench.show(BUSY, times=5)
                state = await bench.state()
                assert (state["state"], state["receivers"]) == ("firing", ["hook"])
                await bench.emptied()
                assert what(told(receiver)) == [("firing", ["Full"])]
                await bench.show(CALM, times=3)
                await bench.emptied()
                assert what(told(receiver)) == [("firing", ["Full"]), ("resolved", ["Full"])]

    run(test)


def test_what_holds_too_short_is_not_told(tmp_path: Path) -> None:
    """A peak that is shorter than `for` reaches nobody."""

    async def test() -> None:
        with sink() as receiver:
            async with alerting(config(tmp_path, receiver), rules(FOR_10S), ManualClock(), tmp_path / "s") as bench:
                for _ in range(4):
                    await bench.show(BUSY, times=2)
                    await bench.show(CALM)
                await bench.emptied()
                assert told(receiver) == []

    run(test)


def test_missing_data_changes_nothing(tmp_path: Path) -> None:
    """ALERT-06: a GPU that cannot be read neither ends its alert nor lets the time count."""

    async def test() -> None:
        with sink() as receiver:
            async with alerting(config(tmp_path, receiver), rules(FOR_10S), ManualClock(), tmp_path / "s") as bench:
                await bench.show(BUSY, times=2)
                await bench.show(BLIND, times=20)
                state = await bench.state()
                assert (state["state"], state["active_seconds"], state["fires_in_seconds"]) == ("pending", 5.0, 5.0)
                await bench.show(BUSY, times=2)
                state = await bench.state()
                assert (state["state"], state["fires_in_seconds"]) == ("firing", None)
                await bench.show(BLIND, times=20)
                assert (await bench.state())["state"] == "firing"
                await bench.emptied()
                assert what(told(receiver)) == [("firing", ["Full"])]

    run(test)


def test_a_silence_stops_the_message(tmp_path: Path) -> None:
    """What is silenced fires and is told to nobody; once the silence has ended, it is."""

    async def test() -> None:
        with sink() as receiver:
            async with alerting(config(tmp_path, receiver), rules(FULL), ManualClock(), tmp_path / "s") as bench:
                silence = await bench.commands.add_silence(['severity="critical"'], 3600, "work", "alice")
                await bench.show(BUSY, times=3)
                await bench.emptied()
                state = await bench.state()
                assert (state["state"], state["silenced_by"]) == ("firing", [silence["id"]])
                assert told(receiver) == []

                await bench.commands.expire_silence(silence["id"])
                await bench.show(BUSY)
                await bench.emptied()
                assert what(told(receiver)) == [("firing", ["Full"])]

    run(test)


@pytest.mark.parametrize("acknowledged", [False, True])
def test_an_acknowledgement_stops_repeats(tmp_path: Path, acknowledged: bool) -> None:
    """What somebody is at is not repeated, and its end is told all the same."""

    async def test() -> None:
        with sink() as receiver:
            routes = [{"receivers": ["hook"], "repeat_interval": "1m"}]
            settings = config(tmp_path, receiver, routes=routes)
            async with alerting(settings, rules(FULL), ManualClock(), tmp_path / "s") as bench:
                await bench.show(BUSY)
                await bench.emptied()
                if acknowledged:
                    found = await bench.commands.acknowledge("Full", "mine", "alice")
                    state = await bench.state()
                    assert (found, state["acknowledged_by"]) == ([state["fingerprint"]], "alice")
                for _ in range(4):
                    await bench.show(BUSY, seconds=40)
                    await bench.emptied()
                repeats = [] if acknowledged else [("firing", ["Full"])] * 2
                assert what(told(receiver)) == [("firing", ["Full"]), *repeats]
                await bench.show(CALM)
                await bench.emptied()
                assert what(told(receiver))[-1] == ("resolved", ["Full"])

    run(test)


def test_a_reload_keeps_states(tmp_path: Path) -> None:
    """Other rules beside it do not let a firing alert begin anew; a rule that is gone is told as ended."""

    async def test() -> None:
        with sink() as receiver:
            settings = config(tmp_path, receiver)
            async with alerting(settings, rules(FOR_10S), ManualClock(), tmp_path / "s") as bench:
                await bench.show(BUSY, times=3)
                began = (await bench.state())["starts_at_seconds"]
                other = "alert: Other, expr: vector(0) > 1"
                await bench.alerting.reload(settings, rules(other, FOR_10S), lambda: True)
                await bench.show(BUSY, times=3)
                state = await bench.state()
                assert (state["state"], state["starts_at_seconds"]) == ("firing", began)
                await bench.emptied()
                assert what(told(receiver)) == [("firing", ["Full"])]

                await bench.alerting.reload(settings, rules(other), lambda: True)
                await bench.show(BUSY)
                await bench.emptied()
                assert what(told(receiver)) == [("firing", ["Full"]), ("resolved", ["Full"])]

    run(test)


def test_a_reload_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    """Routes that RE2 does not take leave the rules and routes of before in force."""

    async def test() -> None:
        with sink() as receiver:
            settings = config(tmp_path, receiver)
            bad = replace(settings, routes=(Route(match=(parse_matcher('a=~"(?=b)"'),), receivers=("hook",)),))
            async with alerting(settings, rules(FULL), ManualClock(), tmp_path / "s") as bench:
                with pytest.raises(ValueError, match=r"routes\[0\]"):
                    await bench.alerting.reload(bad, rules("alert: Other, expr: vector(1)"), lambda: True)
                await bench.show(BUSY)
                assert bench.alerting.config is settings
                assert (await bench.state())["receivers"] == ["hook"]

    run(test)


@pytest.mark.parametrize("killed", [False, True])
def test_a_restart_neither_repeats_nor_forgets(tmp_path: Path, killed: bool) -> None:
    """ALERT-08: after a restart a firing alert is not told again, and its end is."""

    async def test() -> None:
        clock, state_file = ManualClock(), tmp_path / "s"
        with sink() as receiver:
            settings = config(tmp_path, receiver)
            async with alerting(settings, rules(FOR_10S), clock, state_file) as first:
                await first.show(BUSY, times=3)
                await first.emptied()
                if killed:  # what the files are without a proper end
                    state_file = tmp_path / "killed"
                    for suffix in ("", "-wal"):
                        shutil.copy(f"{tmp_path / 's'}{suffix}", f"{state_file}{suffix}")
            clock.advance(600)
            async with alerting(settings, rules(FOR_10S), clock, state_file) as second:
                assert (await second.state())["state"] == "firing"
                await second.show(BLIND, times=2)
                await second.show(BUSY, times=5)
                await second.emptied()
                assert what(told(receiver)) == [("firing", ["Full"])]
                await second.show(CALM)
                await second.emptied()
                assert what(told(receiver)) == [("firing", ["Full"]), ("resolved", ["Full"])]

    run(test)


def test_what_ended_while_nobody_looked_is_told(tmp_path: Path) -> None:
    """ALERT-08: the end of an alert is told too when it came while the agent was down."""

    async def test() -> None:
        clock = ManualClock()
        with sink() as receiver:
            settings = config(tmp_path, receiver)
            async with alerting(settings, rules(FULL), clock, tmp_path / "s") as first:
                await first.show(BUSY)
                await first.emptied()
            async with alerting(settings, rules(FULL), clock, tmp_path / "s") as second:
                await second.show(CALM)
                await second.emptied()
                assert what(told(receiver)) == [("firing", ["Full"]), ("resolved", ["Full"])]

    run(test)


def test_what_was_not_sent_is_sent_by_the_next_agent(tmp_path: Path) -> None:
    """ALERT-07: a message to a receiver that is down outlives the agent, under the same id."""

    async def test() -> None:
        clock = ManualClock()
        with sink(always(Reply(503))) as receiver:
            settings = config(tmp_path, receiver)
            async with alerting(settings, rules(FULL), clock, tmp_path / "s") as first:
                await first.show(BUSY)
                await asyncio.to_thread(receiver.wait, lambda seen: bool(seen.asked))
            refused = receiver.asked[0].headers["webhook-id"]
            receiver.behave = always(Reply())
            clock.advance(600)
            async with alerting(settings, rules(FULL), clock, tmp_path / "s") as second:
                await second.emptied()
            assert told(receiver) == [Told("firing", ["Full"], refused)]

    run(test)


def test_a_fleet_is_paged_once(tmp_path: Path) -> None:
    """With `alerting: prometheus` alerts are shown, and this agent sends nothing."""

    async def test() -> None:
        with sink() as receiver:
            settings = config(tmp_path, receiver, alerting="prometheus")
            async with alerting(settings, rules(FULL), ManualClock(), tmp_path / "s") as bench:
                await bench.show(BUSY, times=3)
                await bench.emptied()
                document = await bench.commands.alerts()
                assert (document["alerting"], document["alerts"][0]["state"]) == ("prometheus", "firing")
                with pytest.raises(ValueError, match="this agent sends nothing"):
                    await bench.commands.test_receiver("hook")
                assert receiver.asked == []

    run(test)


def test_without_a_file_it_still_sends(tmp_path: Path) -> None:
    """A state file that cannot be opened costs what a restart would need, not the messages; it is shown."""

    async def test() -> None:
        (tmp_path / "file").write_text("no folder")
        with sink() as receiver:
            state_file = tmp_path / "file" / "s"
            async with alerting(config(tmp_path, receiver), rules(FULL), ManualClock(), state_file) as bench:
                await bench.show(BUSY)
                await bench.emptied()
                assert what(told(receiver)) == [("firing", ["Full"])]
                assert "kept in memory only" in (await bench.commands.alerts())["store_problem"]
                figures = bench.alerting.figures()
                assert figures is not None
                assert not figures.store_ok

    run(test)


def test_housekeeping_forgets_old_silences(tmp_path: Path) -> None:
    """Expired silences do not pile up until no new one can be made."""

    async def test() -> None:
        clock = ManualClock()
        async with alerting(config(tmp_path, None), rules(FULL), clock, tmp_path / "s") as bench:
            await bench.commands.add_silence(['gpu="0"'], 60, "old", "alice")
            clock.advance(6 * 86_400)
            await bench.alerting.housekeeping()
            assert (await bench.commands.alerts())["silences"] == []

    run(test)


def test_a_receiver_that_wants_nothing_is_used_again_after_a_test(tmp_path: Path) -> None:
    """410 switches a receiver off, which is shown; a test that it takes switches it on, and what waited arrives."""

    async def test() -> None:
        with sink(always(Reply(410))) as receiver:
            async with alerting(config(tmp_path, receiver), rules(FULL), ManualClock(), tmp_path / "s") as bench:
                await bench.show(BUSY)
                await asyncio.to_thread(receiver.wait, lambda seen: bool(seen.asked))
                while not bench.alerting.delivery.off():
                    await bench.show(BUSY)
                assert (await bench.commands.alerts())["receivers"][0]["off"]
                assert bench.alerting.delivery.off()["hook"].outcome.reason is Reason.GONE
                assert not (await bench.commands.test_receiver("hook"))[0]

                receiver.behave = always(Reply())
                bench.clock.advance(600)
                assert (await bench.commands.test_receiver("hook"))[0]
                await bench.emptied()
                assert what(told(receiver)) == [
                    ("firing", ["GpuagentTest"]),
                    ("resolved", ["GpuagentTest"]),
                    ("firing", ["Full"]),
                ]

    run(test)
