"""The door to the outside, against a receiver that does everything wrong."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from email.utils import formatdate
from pathlib import Path

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent_alerts.masker import Masker
from gpuagent_alerts.notify.outbox.attempt import DeliveryOutcome, Reason
from gpuagent_alerts.notify.receivers.base import HttpRequest
from gpuagent_alerts.notify.receivers.http import HttpClient
from gpuagent_alerts.secret import Secret
from tests.alerts.notify.receivers.sink import Received, Reply, Sink, always, sink
from tests.exporters.certificates import Authority

SECRET_PATH = "/services/T00000000/B00000000/tops3cretpath"


def post(url: str, *, deadline_seconds: float = 15.0, trust: ssl.SSLContext | None = None) -> DeliveryOutcome:
    """One request with a client of its own."""

    async def once() -> DeliveryOutcome:
        http = HttpClient(clock=ManualClock(), deadline_seconds=deadline_seconds, trust=trust)
        try:
            return await http.send(HttpRequest(url, b'{"a": 1}', {"X-Secret": "tops3cretheader"}))
        finally:
            await http.close()

    return asyncio.run(once())


def ask(reply: Reply, **how: float) -> tuple[DeliveryOutcome, Sink]:
    """One request to a sink that always answers so."""
    with sink(always(reply)) as receiver:
        return post(receiver.url + SECRET_PATH, **how), receiver  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (200, Reason.DELIVERED),
        (202, Reason.DELIVERED),
        (204, Reason.DELIVERED),
        (301, Reason.REDIRECTED),
        (302, Reason.REDIRECTED),
        (304, Reason.REDIRECTED),
        (307, Reason.REDIRECTED),
        (308, Reason.REDIRECTED),
        (400, Reason.REFUSED),
        (401, Reason.REFUSED),
        (403, Reason.REFUSED),
        (404, Reason.REFUSED),
        (408, Reason.UNAVAILABLE),
        (410, Reason.GONE),
        (413, Reason.REFUSED),
        (425, Reason.UNAVAILABLE),
        (429, Reason.SLOW_DOWN),
        (500, Reason.UNAVAILABLE),
        (502, Reason.UNAVAILABLE),
        (503, Reason.UNAVAILABLE),
        (504, Reason.UNAVAILABLE),
    ],
)
def test_each_status_has_its_reason(status: int, reason: Reason) -> None:
    """What is tried again, given up or switched off follows from the status alone."""
    outcome, _ = ask(Reply(status, body=b"" if status in {204, 304} else b"why"))

    assert outcome.reason is reason


def test_no_redirect_is_followed() -> None:
    """ALERT-07: a redirect, to cloud metadata for example, takes neither the message nor its secrets along."""
    with sink() as other, sink() as receiver:
        receiver.behave = always(Reply(307, {"Location": other.url + "/latest/meta-data"}))
        outcome = post(receiver.url)

        assert (outcome.reason, outcome.retry, len(receiver.asked), other.asked) == (Reason.REDIRECTED, False, 1, [])


@pytest.mark.parametrize("host", ["169.254.169.254", "[fe80::1]"])
def test_link_local_addresses_are_refused(host: str) -> None:
    """ALERT-07: no receiver lives there, but the cloud's metadata do."""
    assert post(f"http://{host}/latest").reason is Reason.MISCONFIGURED


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("30", 30.0),
        ("0", 0.0),
        (formatdate(1_700_000_120, usegmt=True), 120.0),
        (formatdate(1_600_000_000, usegmt=True), 0.0),
        ("soon", None),
        ("-5", None),
        ("1e9", None),
        ("9" * 400, None),
        ("Mon, 99 Foo 99999 99:99:99", None),
    ],
)
def test_retry_after_is_read_as_seconds_or_a_date(header: str, seconds: float | None) -> None:
    """What the receiver asks for is kept; what cannot be read is as if it were not there."""
    outcome, _ = ask(Reply(429, {"Retry-After": header}))

    assert (outcome.reason, outcome.retry_after_seconds) == (Reason.SLOW_DOWN, seconds)


@pytest.mark.parametrize("drop", ["before", "after"])
def test_a_connection_that_ends_is_tried_again(drop: str) -> None:
    """Whether it has processed the message cannot be known: at least once means again."""
    outcome, _ = ask(Reply(drop=drop))

    assert (outcome.reason, outcome.retry) == (Reason.UNREACHABLE, True)


def test_one_byte_at_a_time_ends_at_the_deadline() -> None:
    """ALERT-07: a limit per chunk would never end this; the deadline is for all of it."""
    outcome, _ = ask(Reply(trickle_seconds=0.3), deadline_seconds=1.0)

    assert (outcome.reason, outcome.retry) == (Reason.TIMED_OUT, True)


def test_an_endless_answer_is_not_read() -> None:
    """ALERT-07: the status counts, and of 4 GiB only the beginning is taken from the socket."""
    outcome, receiver = ask(Reply(200, endless=True))

    assert outcome.ok
    assert receiver.sent_bytes < 64 * 2**20  # what sockets buffer, not 4 GiB


def test_a_refusal_is_explained_by_its_beginning() -> None:
    """What the receiver says about it is what a person needs, but not all of it, and on one line."""
    outcome, _ = ask(Reply(400, body=b"invalid_blocks\n\x1b[31m" + b"x" * 100_000))

    assert outcome.detail.startswith("it refused the message (400): invalid_blocks")
    assert outcome.detail.isprintable()
    assert len(outcome.detail) < 250


def test_the_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message for 127.0.0.1 must not go through a proxy because a shell had one."""
    with sink() as proxy, sink() as receiver:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        outcome = post(receiver.url)

        assert (outcome.ok, proxy.asked) == (True, [])


def test_only_plain_answers_are_asked_for() -> None:
    """A compressed answer of 4 KiB could become any size."""
    _, receiver = ask(Reply())

    assert receiver.asked[0].headers["accept-encoding"] == "identity"


def test_nobody_listens() -> None:
    """A receiver that is down is tried again, and said to be."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    outcome = post(f"http://127.0.0.1:{port}{SECRET_PATH}")

    assert (outcome.reason, outcome.detail) == (Reason.UNREACHABLE, "it refused the connection")


@pytest.mark.parametrize(
    "url", ["ftp://127.0.0.1/x", "http://[::1", "no url", "http://127.0.0.1:99999/", "", "http://\udcff/"]
)
def test_an_address_that_is_none_is_said_to_be(url: str) -> None:
    """A file may hold anything: it is an outcome, and does not quote the address."""
    outcome = post(url)

    assert (outcome.reason, outcome.retry) == (Reason.MISCONFIGURED, True)


def test_a_certificate_has_to_be_trusted(tmp_path: Path) -> None:
    """A certificate that nobody here trusts gets no message; one of a trusted authority does."""
    authority = Authority()
    authority.issue("127.0.0.1").write(tmp_path, "server")
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    with sink(tls=own) as receiver:
        stranger = post(receiver.url + SECRET_PATH)
        friend = post(receiver.url, trust=authority.client())

        assert (stranger.reason, stranger.detail) == (Reason.UNREACHABLE, "its certificate is not trusted here")
        assert friend.ok
        assert len(receiver.asked) == 1


@pytest.mark.parametrize(
    "reply",
    [
        Reply(200),
        Reply(302, {"Location": "/elsewhere"}),
        Reply(400, body=f"no such hook {SECRET_PATH}; key tops3cretheader".encode()),
        Reply(404, body=b"http://127.0.0.1/services/T00000000/x B00000000 tops3cretpath"),
        Reply(429),
        Reply(500, body=b"tops3cretpath"),
        Reply(drop="before"),
        Reply(trickle_seconds=0.3),
    ],
    ids=["taken", "redirect", "echo", "echo-url", "slow-down", "fault", "dropped", "dragging"],
)
def test_no_secret_in_any_text(reply: Reply, caplog: pytest.LogCaptureFixture) -> None:
    """ALERT-07: whatever happens, neither the outcome nor a log line at any level holds a piece of the URL."""
    caplog.set_level(logging.DEBUG)
    logging.getLogger("httpx").setLevel(logging.NOTSET)
    logging.getLogger("httpcore").setLevel(logging.NOTSET)
    with sink(always(reply)) as receiver:

        async def once() -> DeliveryOutcome:
            http = HttpClient(deadline_seconds=0.5)
            request = HttpRequest(receiver.url + SECRET_PATH, b"x", secrets=("tops3cretheader",))
            assert "tops3cret" not in repr(request)
            try:
                return await http.send(request)
            finally:
                await http.close()

        texts = repr(asyncio.run(once())) + caplog.text
    for piece in (SECRET_PATH, "tops3cret", "T00000000", "B00000000", str(receiver.port)):
        assert piece not in texts


@pytest.mark.parametrize("user_info", ["user:passw0rd", "user:p%40ss%2Fw0rd", "user:", "t0ken-as-user"])
@pytest.mark.parametrize("spaces", [0, 4050])
def test_the_header_made_of_the_urls_user_is_not_shown(user_info: str, spaces: int) -> None:
    """ALERT-07: a receiver that quotes our own credentials gives away neither the header nor what it is made of.

    That includes a header of which the end was not read any more.
    """

    def quote_headers(request: Received) -> Reply:
        header = request.headers["authorization"]
        return Reply(403, body=b"not you: " + b" " * spaces + header.removeprefix("Basic ").encode() + b"." * 100)

    with sink(quote_headers) as receiver:
        outcome = post(receiver.url.replace("://", f"://{user_info}@"))
        header = receiver.asked[0].headers["authorization"].removeprefix("Basic ")

    assert outcome.detail.startswith("it refused the message (403): not you:")
    assert header[:4] not in outcome.detail


def test_what_the_masker_knows_is_hidden_in_every_answer() -> None:
    """ALERT-07: a receiver may quote the secret of another one, as a gateway in front of both does."""

    async def once(url: str) -> DeliveryOutcome:
        http = HttpClient(masker=Masker([Secret("key", "0ther-receivers-key")]))
        try:
            return await http.send(HttpRequest(url))
        finally:
            await http.close()

    with sink(always(Reply(403, body=b"0ther-receivers-key is no key"))) as receiver:
        outcome = asyncio.run(once(receiver.url))

    assert outcome.detail == "it refused the message (403): <hidden> is no key"
