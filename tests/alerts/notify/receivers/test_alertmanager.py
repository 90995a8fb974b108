"""What Alertmanager is told: both times, all annotations, never a time in the future for an end."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

from gpuagent_alerts.notify.outbox.attempt import DeliveryOutcome, Reason
from gpuagent_alerts.notify.receivers.alertmanager import Alertmanager, alert_document
from gpuagent_alerts.notify.receivers.http import HttpClient
from gpuagent_alerts.secret import Secret
from tests.alerts.messages import CONTEXT, NOW, SHOWN_ENDED, alert, message
from tests.alerts.notify.receivers.sink import Reply, always, sink


def test_an_alert_that_fires_has_an_end_ahead() -> None:
    """Both times always; it ends by itself five minutes after the last word from here, five resend intervals."""
    document = alert_document(alert(), CONTEXT)

    assert (document["startsAt"], document["endsAt"]) == ("2023-11-14T22:03:20.000Z", "2023-11-14T22:18:20.000Z")
    assert document["generatorURL"] == "http://node7:9837/"


def test_an_alert_that_ended_is_told_whole() -> None:
    """A resolve replaces the annotations: without them the message would be empty."""
    ended = alert(ended=True)
    document = alert_document(ended, CONTEXT)

    assert (document["endsAt"], document["annotations"]) == ("2023-11-14T22:13:10.000Z", SHOWN_ENDED)


def test_an_end_is_never_in_the_future() -> None:
    """An alert whose end is yet to come is firing to Alertmanager: a clock that was set back must not do that."""
    ended = replace(alert(ended=True), starts_at=NOW + 100, ends_at=NOW + 500)
    document = alert_document(ended, CONTEXT)

    assert (document["startsAt"], document["endsAt"]) == ("2023-11-14T22:13:20.000Z", "2023-11-14T22:13:20.000Z")


def test_it_is_posted_to_the_second_version_of_the_interface() -> None:
    """The address is without /api, with or without a slash, or with a prefix."""

    async def once(url: str) -> DeliveryOutcome:
        http = HttpClient()
        try:
            return await Alertmanager(http, Secret("URL", url)).send(message(alert(), alert(gpu="1")), CONTEXT)
        finally:
            await http.close()

    with sink() as receiver:
        for suffix in ("", "/", "/am/"):
            assert asyncio.run(once(receiver.url + suffix)).ok
        receiver.behave = always(Reply(400, body=b'"bad labels"'))
        refused = asyncio.run(once(receiver.url))

        assert [r.path for r in receiver.processed] == ["/api/v2/alerts", "/api/v2/alerts", "/am/api/v2/alerts"]
        assert len(json.loads(receiver.processed[0].body)) == 2
        assert (refused.reason, refused.retry) == (Reason.REFUSED, False)
