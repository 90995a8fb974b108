"""Where a name leads, and where no message goes whatever a name server says."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuagent_alerts.notify.outbox.attempt import DeliveryOutcome, Reason
from gpuagent_alerts.notify.receivers.addresses import MAX_ADDRESSES, Resolver, is_forbidden
from gpuagent_alerts.notify.receivers.apprise import refuse_forbidden
from gpuagent_alerts.notify.receivers.base import HttpRequest
from gpuagent_alerts.notify.receivers.http import HttpClient
from tests.alerts.notify.receivers.sink import sink
from tests.exporters.certificates import Authority

NAME = "hooks.example"


class Names:
    """A name server that answers as it is told, and counts."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append((host, port))
        if not self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return self.addresses


def post(url: str, names: Names, trust: ssl.SSLContext | None = None) -> DeliveryOutcome:
    """One request."""

    async def once() -> DeliveryOutcome:
        http = HttpClient(resolve=names, trust=trust, deadline_seconds=10.0)
        try:
            return await http.send(HttpRequest(url, b"{}"))
        finally:
            await http.close()

    return asyncio.run(once())


@pytest.mark.parametrize(
    ("address", "forbidden"),
    [
        ("169.254.169.254", True),
        ("169.254.0.1", True),
        ("fe80::1", True),
        ("fe80::1%eth0", True),
        ("::ffff:169.254.169.254", True),
        ("fd00:ec2::254", True),
        ("100.100.100.200", True),
        ("127.0.0.1", False),
        ("10.0.0.1", False),
        ("::1", False),
        ("fd00::1", False),
        ("203.0.113.7", False),
    ],
)
def test_which_addresses_are_forbidden(address: str, forbidden: bool) -> None:
    """Link-local ones, also in the dress of IPv6, and the metadata services that clouds have elsewhere."""
    assert is_forbidden(address) is forbidden


def test_a_name_cannot_lead_to_metadata() -> None:
    """ALERT-07: what a name server says counts too: nothing is sent, the outcome says why, and shows no name."""
    names = Names("169.254.169.254", "fe80::1")
    outcome = post(f"http://{NAME}/latest/meta-data", names)

    assert (outcome.reason, str(outcome)) == (
        Reason.MISCONFIGURED,
        "it has a link-local address: nothing is sent there",
    )
    assert names.asked == [(NAME, 80)]


def test_of_several_addresses_the_others_are_used() -> None:
    """ALERT-07: a machine of the local network may have a link-local address beside its own."""
    with sink() as receiver:
        assert post(f"http://{NAME}:{receiver.port}/x", Names("fe80::1", "127.0.0.1")).ok
        assert receiver.asked[0].headers["host"] == f"{NAME}:{receiver.port}"


def test_it_goes_where_was_looked() -> None:
    """A name server that changes its mind is not asked again between the look and the connection."""
    names = Names("127.0.0.1")
    with sink() as receiver:
        assert post(f"http://{NAME}:{receiver.port}/x", names).ok

    assert names.asked == [(NAME, receiver.port)]


def test_an_address_that_refuses_is_not_the_last() -> None:
    """The next one is tried, and the message arrives once."""
    with sink() as receiver:
        assert post(f"http://{NAME}:{receiver.port}/", Names("127.0.0.2", "127.0.0.1")).ok
        assert len(receiver.asked) == 1


def test_only_a_few_addresses_are_tried() -> None:
    """There is a deadline for a message: a name with a hundred addresses does not use it up."""
    with sink() as receiver:
        many = [*(f"127.0.0.{n}" for n in range(2, 2 + MAX_ADDRESSES)), "127.0.0.1"]
        outcome = post(f"http://{NAME}:{receiver.port}/", Names(*many))

    assert (outcome.reason, receiver.asked) == (Reason.UNREACHABLE, [])


def test_a_name_that_is_not_known() -> None:
    """It may be known later: tried again."""
    outcome = post(f"http://{NAME}/", Names())

    assert (outcome.reason, str(outcome)) == (Reason.UNREACHABLE, "its name cannot be resolved")


@pytest.mark.parametrize(("issued_for", "ok"), [(NAME, True), ("other.example", False), ("127.0.0.1", False)])
def test_the_certificate_is_for_the_name(tmp_path: Path, issued_for: str, ok: bool) -> None:
    """Connected to by address, a receiver still has to prove that it has the name."""
    authority = Authority()
    authority.issue(issued_for).write(tmp_path, "server")
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    with sink(tls=own) as receiver:
        outcome = post(f"https://{NAME}:{receiver.port}/", Names("127.0.0.1"), authority.client())

        assert (outcome.ok, len(receiver.asked)) == (ok, int(ok))


def test_the_system_is_asked() -> None:
    """The real resolver knows this machine, each address once."""

    async def ask() -> Sequence[str]:
        resolver = Resolver()
        try:
            return await resolver("localhost", 80)
        finally:
            resolver.close()

    found = asyncio.run(ask())
    assert set(found) <= {"127.0.0.1", "::1"}
    assert len(set(found)) == len(found) > 0


@pytest.mark.parametrize(
    ("event", "address", "refused"),
    [
        ("socket.connect", ("169.254.169.254", 80), True),
        ("socket.connect", ("fe80::1", 80, 0, 2), True),
        ("socket.connect", ("127.0.0.1", 25), False),
        ("socket.connect", ("mail.example", 25), False),
        ("socket.connect", "/run/a/socket", False),
        ("socket.bind", ("169.254.169.254", 80), False),
    ],
)
def test_apprise_does_not_connect_there_either(event: str, address: object, refused: bool) -> None:
    """ALERT-07: whatever library it uses, its process refuses the connection itself."""
    if refused:
        with pytest.raises(PermissionError):
            refuse_forbidden(event, (None, address))
    else:
        refuse_forbidden(event, (None, address))
