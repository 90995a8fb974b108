"""Alertmanager's document, signed by Standard Webhooks."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook as Oracle

from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.notify.outbox.attempt import DeliveryOutcome, MessageContext, Reason
from gpuagent_alerts.notify.receivers.base import Receiver
from gpuagent_alerts.notify.receivers.http import HttpClient
from gpuagent_alerts.notify.receivers.webhook import Webhook, sign, version_4
from gpuagent_alerts.secret import Misconfigured, Secret
from tests.alerts.messages import CONTEXT, SHOWN, SHOWN_ENDED, alert, message
from tests.alerts.notify.receivers.sink import Sink, sink

KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER_KEY = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"


def post(receiver: Sink, keys: Path | None = None, context: MessageContext = CONTEXT) -> DeliveryOutcome:
    """One message, through everything that a message goes through."""

    async def once() -> DeliveryOutcome:
        http = HttpClient()
        secret = None if keys is None else Secret("key for signatures", file=keys)
        try:
            kind = Webhook(http, Secret("URL", receiver.url + "/hook"), secret)
            return await Receiver("hook", kind).send(message(name="gpa_1"), context)
        finally:
            await http.close()

    return asyncio.run(once())


def test_the_published_vector() -> None:
    """The signature is that of the specification's libraries, for the vector that they are tested with."""
    signature = sign(KEY, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')

    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@given(st.text(max_size=200), st.integers(0, 2**33), st.binary(min_size=24, max_size=64))
def test_it_signs_as_the_reference_does(body: str, seconds: int, key: bytes) -> None:
    """For any body, time and key, the reference library makes the same signature."""
    import base64

    secret = "whsec_" + base64.b64encode(key).decode()
    data = body.encode("utf-8", "replace")
    expected = Oracle(secret).sign("gpa_1", datetime.fromtimestamp(seconds, UTC), data.decode())

    assert sign(secret, "gpa_1", seconds, data) == expected


def test_a_receiver_can_verify_what_arrives(tmp_path: Path) -> None:
    """The reference library accepts the request as it came over the wire; during a change of keys, with either key."""
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY}\n{OTHER_KEY}\n")
    now = MessageContext("node7", "", datetime.now(UTC).timestamp())
    with sink() as receiver:
        outcome = post(receiver, keys, now)
        (request,) = receiver.processed

    assert outcome.ok
    assert request.headers["webhook-id"] == "gpa_1"
    for key in (KEY, OTHER_KEY):
        assert Oracle(key).verify(request.body, request.headers)["status"] == "firing"


def test_without_a_key_there_is_an_id_and_no_signature() -> None:
    """A repeat can be told by everybody, signed or not."""
    with sink() as receiver:
        post(receiver)
        (request,) = receiver.processed

    assert (request.method, request.path, request.headers["webhook-id"]) == ("POST", "/hook", "gpa_1")
    assert request.headers["webhook-timestamp"] == "1700000000"
    assert "webhook-signature" not in request.headers


@pytest.mark.parametrize("key", ["whsec_", "whsec_c2hvcnQ=", "whsec_" + "A" * 100, "whsec_not base64!", "tops3cret!"])
def test_a_key_that_is_none_is_never_quoted(tmp_path: Path, key: str) -> None:
    """A key that cannot sign is said to be bad, without being shown; nothing goes out unsigned."""
    (tmp_path / "key").write_text(key)
    with sink() as receiver:
        outcome = post(receiver, tmp_path / "key")

        assert (outcome.reason, receiver.asked) == (Reason.MISCONFIGURED, [])
    assert key.removeprefix("whsec_")[:8] not in outcome.detail or len(key) < 8


def test_the_document_is_alertmanagers() -> None:
    """Every field of version 4, so that whoever reads Alertmanager's webhook reads this."""
    firing = alert(uuid="GPU-1")
    ended = alert(gpu="1", uuid="GPU-1", ended=True)
    document = version_4(message(firing, ended, labels={"uuid": "GPU-1"}), CONTEXT)

    assert document == {
        "version": "4",
        "schema": 1,
        "simulated": False,
        "headline": "CRITICAL node7: 2 alerts: GpuLost",
        "incident": None,
        "digest": [],
        "groupKey": "g",
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "hook",
        "groupLabels": {"uuid": "GPU-1"},
        "commonLabels": {"alertname": "GpuLost", "severity": "critical", "uuid": "GPU-1"},
        "commonAnnotations": {"runbook_url": "https://example.org/GpuLost"},
        "externalURL": "http://node7:9837/",
        "alerts": [
            {
                "status": "firing",
                "labels": firing.labels,
                "annotations": SHOWN,
                "startsAt": "2023-11-14T22:03:20.000Z",
                "endsAt": "0001-01-01T00:00:00Z",
                "notTrueSince": None,
                "keptUntil": None,
                "generatorURL": "http://node7:9837/",
                "fingerprint": firing.fingerprint,
            },
            {
                "status": "resolved",
                "labels": ended.labels,
                "annotations": SHOWN_ENDED,
                "startsAt": "2023-11-14T22:03:20.000Z",
                "endsAt": "2023-11-14T22:13:10.000Z",
                "notTrueSince": None,
                "keptUntil": None,
                "generatorURL": "http://node7:9837/",
                "fingerprint": ended.fingerprint,
            },
        ],
    }


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=10),
        st.text(st.characters(codec="utf-8"), max_size=20),
        max_size=4,
    ),
    st.floats(),
)
def test_any_alert_becomes_json(labels: dict[str, str], value: float) -> None:
    """Names that a process chose, odd characters included, never break the message."""
    odd = Alert(labels, labels, Status.FIRING, 0.0, None, value)
    document = json.dumps(version_4(message(odd), CONTEXT))

    assert json.loads(document)["alerts"][0]["labels"] == labels


def test_keys_are_read_anew(tmp_path: Path) -> None:
    """A key that was replaced signs the next message, without a restart."""
    file = tmp_path / "key"
    with sink() as receiver:
        for key in (KEY, OTHER_KEY):
            file.write_text(key)
            post(receiver, file)
        first, second = (request.headers["webhook-signature"] for request in receiver.processed)

    assert first != second


def test_signing_refuses_what_is_no_key() -> None:
    """The reason is raised in words, for whoever calls it."""
    with pytest.raises(Misconfigured, match="24 to 64 bytes"):
        sign("whsec_c2hvcnQ=", "gpa_1", 0, b"")
