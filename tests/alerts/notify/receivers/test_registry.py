"""Receivers from a real configuration: the agent's models fit what is expected here."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuagent.config.alerting import Receiver as ReceiverModel
from gpuagent.core.clock import ManualClock, ScaledClock
from gpuagent_alerts.notify.outbox.attempt import DeliveryOutcome, Reason
from gpuagent_alerts.notify.receivers.base import Dependencies, Receiver, ReceiverConfig
from gpuagent_alerts.notify.receivers.heartbeat import Heartbeat
from gpuagent_alerts.notify.receivers.http import HttpClient
from gpuagent_alerts.notify.receivers.registry import KINDS, build_heartbeat, build_receiver, kind_of, recipient_of
from gpuagent_alerts.notify.routes import Recipient, RouteConfig, Routes
from gpuagent_alerts.secret import Secret
from tests.agent.config.loading import COMPLETE, load, write
from tests.alerts.messages import CONTEXT, alert, message
from tests.alerts.notify.receivers.sink import Reply, Sink, always, sink

EVERY_KIND = """
receivers:
  - {{name: hook, webhook: {{url: "{url}/hook/tops3cret"}}}}
  - {{name: chat, slack: {{url: "{url}/services/tops3cret"}}}}
  - {{name: fleet, alertmanager: {{url: "{url}"}}}}
  - {{name: pager, pagerduty: {{routing_key: R0UT1NGtops3cret}}, send_resolved: false}}
  - {{name: script, exec: {{command: [/bin/sh, -c, "cat > {folder}/got"]}}}}
  - {{name: mail, apprise: {{url: "json://127.0.0.1:{port}/tops3cret"}}}}
  - {{name: alive, heartbeat: {{url: "{url}/alive/tops3cret"}}}}
routes:
  - {{match: ['gpu=~"0|1"'], receivers: [pager, alive], group_by: [gpu]}}
"""


def configured(receiver: Sink, folder: Path) -> tuple[Sequence[ReceiverConfig], Sequence[RouteConfig]]:
    """Receivers and routes as the agent loads them; that they fit is checked by mypy too."""
    assert [kind for kind in KINDS if f"{kind}: {{{{" not in EVERY_KIND] == [], "EVERY_KIND lacks a kind: add a line"
    config = load(write(folder, EVERY_KIND.format(url=receiver.url, port=receiver.port, folder=folder)))
    return config.receivers, config.routes


@pytest.mark.slow
def test_every_kind_of_the_configuration_tells(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each delivers, in its own form, to its own place; none is shown with its secret."""
    caplog.set_level(logging.DEBUG)

    async def scene(receiver: Sink) -> list[str]:
        http = HttpClient()
        receivers, _ = configured(receiver, tmp_path)
        shared = Dependencies(http, ManualClock(), api_urls={"pagerduty": receiver.url + "/v2/enqueue"})
        shown = []
        for config in receivers:
            made = build_receiver(config, shared)
            if made is not None:
                assert (await made.send(message(name="gpa_1"), CONTEXT)).ok
                shown.append(repr(made))
            beat = build_heartbeat(config, shared, lambda: True)
            assert (beat is None) is (made is not None)
            if beat is not None:
                assert (await beat.beat()) is not None
                shown.append(repr(beat))
        await http.close()
        return shown

    with sink() as receiver:
        shown = asyncio.run(scene(receiver))
        paths = [request.path for request in receiver.processed]

    assert [path.partition("?")[0].rstrip("/") for path in paths] == [
        "/hook/tops3cret",
        "/services/tops3cret",
        "/api/v2/alerts",
        "/v2/enqueue",
        "/tops3cret",
        "/alive/tops3cret",
    ]
    assert json.loads((tmp_path / "got").read_text())["id"] == "gpa_1"
    assert "tops3cret" not in " ".join(shown) + caplog.text


def test_routing_knows_what_it_must(tmp_path: Path) -> None:
    """A heartbeat takes no alerts, an Alertmanager has its own rhythm, a pager may not want ends."""
    with sink() as receiver:
        receivers, routes = configured(receiver, tmp_path)
    known = [found for found in map(recipient_of, receivers) if found is not None]
    table = Routes(routes, known)

    assert [kind_of(config) for config in receivers] == [
        *("webhook", "slack", "alertmanager", "pagerduty", "exec", "apprise", "heartbeat"),
    ]
    assert [one.name for one in known] == ["hook", "chat", "fleet", "pager", "script", "mail"]
    assert known[2] == Recipient("fleet", True, True, True, 60.0, 300.0)
    assert not known[3].send_resolved
    assert [(d.recipient.name, d.group_by) for d in table.of(alert().labels)] == [("pager", ("gpu",))]


def test_the_registry_has_every_kind_of_the_configuration() -> None:
    """A kind that can be configured can be made, and the other way round."""
    assert tuple(KINDS) == ReceiverModel.key_names()


def test_the_whole_configuration_of_the_documentation_fits() -> None:
    """Every receiver of the complete example can be made."""
    config = load(COMPLETE)
    shared = Dependencies(HttpClient(), ManualClock())
    made = [build_receiver(one, shared) or build_heartbeat(one, shared, lambda: True) for one in config.receivers]

    assert all(made)
    assert len(made) == len(config.receivers) > 0


def test_paces_are_those_of_the_kinds(tmp_path: Path) -> None:
    """Slack one message a second with what waits, a pager's messages for a week."""
    with sink() as receiver:
        receivers, _ = configured(receiver, tmp_path)
    shared = Dependencies(HttpClient(), ManualClock())
    made = [build_receiver(config, shared) for config in receivers]
    paces = {one.name: one.pace for one in made if one is not None}

    assert (paces["chat"].min_interval_seconds, paces["chat"].batch) == (1.0, 10)
    assert (paces["pager"].max_age_seconds, paces["hook"].max_age_seconds) == (7 * 86400.0, 86400.0)


def test_a_fault_of_ours_is_an_outcome(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a kind raises, its text is neither logged nor told."""

    class Broken:
        async def send(self, *_: object) -> DeliveryOutcome:
            raise RuntimeError("https://hooks.example/tops3cret")

    outcome = asyncio.run(Receiver("hook", Broken()).send(message(), CONTEXT))

    assert (outcome.reason, outcome.retry) == (Reason.FAULT, True)
    assert "tops3cret" not in repr(outcome) + caplog.text


def heartbeat(receiver: Sink, http: HttpClient, *, alive: bool = True) -> Heartbeat:
    """One by a clock that makes a minute of ten milliseconds."""
    return Heartbeat(
        "alive", http, Secret("URL", receiver.url + "/ping/tops3cret"), 60.0, ScaledClock(6000.0), lambda: alive
    )


def test_a_heartbeat_calls_at_its_interval() -> None:
    """Again and again, by GET, until it is stopped."""

    async def scene(receiver: Sink) -> None:
        http = HttpClient()
        task = asyncio.create_task(heartbeat(receiver, http).run())
        await asyncio.to_thread(receiver.wait, lambda seen: len(seen.processed) >= 3)
        task.cancel()
        await asyncio.wait([task])
        await http.close()

    with sink() as receiver:
        asyncio.run(scene(receiver))
        request = receiver.processed[0]

    assert (request.method, request.path, request.body) == ("GET", "/ping/tops3cret", b"")


def test_a_heartbeat_stops_when_the_agent_does_nothing() -> None:
    """A process that runs but does not measure is as good as dead: whoever listens has to notice."""

    async def scene(receiver: Sink) -> DeliveryOutcome | None:
        http = HttpClient()
        try:
            return await heartbeat(receiver, http, alive=False).beat()
        finally:
            await http.close()

    with sink() as receiver:
        assert asyncio.run(scene(receiver)) is None
        assert receiver.asked == []


def test_a_heartbeat_that_fails_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """One line for the failure, one for the recovery, without the address; counters for the rest."""
    caplog.set_level(logging.INFO)

    async def scene(receiver: Sink) -> Heartbeat:
        http = HttpClient()
        made = heartbeat(receiver, http)
        for reply in (Reply(500), Reply(500), Reply(302), Reply(200), Reply(200)):
            receiver.behave = always(reply)
            await made.beat()
        await http.close()
        return made

    with sink() as receiver:
        made = asyncio.run(scene(receiver))

    assert (made.sent, made.failed) == (2, 3)
    assert [record.message for record in caplog.records] == [
        "the heartbeat alive: it answered 500: ok",
        "the heartbeat alive: delivered",
    ]
