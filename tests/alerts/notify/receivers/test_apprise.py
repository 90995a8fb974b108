"""Apprise in a process of its own."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import replace

import pytest

from gpuagent_alerts.alert import Incident, Message, Report
from gpuagent_alerts.notify.outbox.attempt import DeliveryOutcome, Reason
from gpuagent_alerts.notify.receivers.apprise import Apprise
from gpuagent_alerts.secret import Secret
from tests.alerts.incident_messages import about, incident
from tests.alerts.messages import CONTEXT, alert, message
from tests.alerts.notify.receivers.sink import Reply, always, sink


def tell(url: str, sent: Message | None = None, timeout_seconds: float = 30.0) -> DeliveryOutcome:
    """One message to an address."""
    return asyncio.run(Apprise(Secret("URL", url), timeout_seconds).send(sent or message(), CONTEXT))


ENDED = "RESOLVED node7: The GPU was gone: the GPU answers again after a reboot"


@pytest.mark.slow
def test_it_tells_in_plain_words() -> None:
    """Title, what was, and why it ended; nothing that was true while it fired."""
    with sink() as receiver:
        outcome = tell(f"json://127.0.0.1:{receiver.port}/x", message(alert(ended=True)))
        document = json.loads(receiver.processed[0].body)

    assert outcome.ok
    assert (document["title"], document["type"]) == (ENDED, "success")
    assert "The GPU was gone: the GPU answers again after a reboot" in document["message"]
    assert "Drain the node" not in document["message"]


@pytest.mark.slow
@pytest.mark.parametrize(("form", "text"), [("markdown", "| a\\_b |"), ("html", "<td>a</td>")])
def test_a_report_is_sent_in_its_form(form: str, text: str) -> None:
    """Title and text as they are, and nothing of an alert."""
    report = replace(message(alert(ended=True)), report=Report("GPU usage of n1", text, form))
    with sink() as receiver:
        outcome = tell(f"json://127.0.0.1:{receiver.port}/x?format={form}", report)
        document = json.loads(receiver.processed[0].body)

    assert outcome.ok
    assert (document["title"], document["message"], document["type"]) == ("GPU usage of n1", text, "info")


@pytest.mark.slow
def test_a_picture_is_attached() -> None:
    """A service that takes attachments has the picture of the incident, beside the text."""

    async def drawn(_: Incident) -> bytes:
        return b"\x89PNG drawn"

    with sink() as receiver:
        address = Secret("URL", f"json://127.0.0.1:{receiver.port}/x")
        outcome = asyncio.run(Apprise(address, picture_of=drawn).send(about(incident()), CONTEXT))
        document = json.loads(receiver.processed[0].body)

    assert outcome.ok
    (attached,) = document["attachments"]
    assert (attached["filename"], attached["mimetype"]) == ("memory.png", "image/png")
    assert base64.b64decode(attached["base64"]) == b"\x89PNG drawn"


@pytest.mark.slow
@pytest.mark.parametrize("query", ["", "?redirect=yes"])
def test_no_redirect_is_followed(query: str) -> None:
    """ALERT-07: Apprise follows a 302 as a GET and calls it success; not here, even where the address asks for it."""
    with sink() as other, sink(always(Reply(302))) as receiver:
        receiver.behave = always(Reply(302, {"Location": other.url}))
        outcome = tell(f"json://127.0.0.1:{receiver.port}/{query}")

        assert (outcome.reason, other.asked) == (Reason.FAILED, [])


@pytest.mark.slow
def test_a_failure_shows_no_address() -> None:
    """ALERT-07: whatever Apprise has to say about it stays in its process."""
    with sink(always(Reply(500, body=b"tops3cret"))) as receiver:
        outcome = tell(f"json://user:tops3cret@127.0.0.1:{receiver.port}/")

    assert (outcome.reason, str(outcome)) == (Reason.FAILED, "Apprise could not deliver it")


@pytest.mark.slow
def test_an_address_that_it_does_not_know() -> None:
    """A mistake in the configuration is called one."""
    assert tell("nosuchservice://x").reason is Reason.MISCONFIGURED


@pytest.mark.slow
def test_a_server_that_hangs_is_left() -> None:
    """The process is ended with its time."""
    with sink(always(Reply(trickle_seconds=1.0))) as receiver:
        assert tell(f"json://127.0.0.1:{receiver.port}/", timeout_seconds=2.0).reason is Reason.TIMED_OUT


@pytest.mark.slow
def test_the_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process has no environment to speak of."""
    with sink() as proxy, sink() as receiver:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)

        assert tell(f"json://127.0.0.1:{receiver.port}/").ok
        assert proxy.asked == []
