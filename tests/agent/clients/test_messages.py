"""What a client says, as the agent takes it."""

from __future__ import annotations

from typing import Any

import pytest

from gpuagent.clients.protocol import ClientEvent, CommandResult, Hello, Malformed, Stats, read_message
from tests.fakes.embedded import hello, stats
from tests.tables import table


def said(message: dict[str, Any]) -> Any:
    """Of one message."""
    return read_message(message)


def test_a_hello() -> None:
    """Who the app is, what it obeys, and what it declares that it needs."""
    found = said(hello(7, declared={"minimum_bytes": 1, "typical_bytes": 2}))

    assert isinstance(found, Hello)
    assert (found.pid, found.app, found.torch_version, found.backend) == (7, "web", "2.13.0", "native")
    assert found.capabilities == ("census", "limit", "lines", "rate", "release", "reset")
    assert (found.declared_minimum_bytes, found.declared_typical_bytes) == (1, 2)


def test_what_else_a_hello_may_tell() -> None:
    """The app's own interval, and frameworks that use the GPU; what a later version may say of one is left out."""
    found = said(
        hello(7, interval=15, frameworks={"jax": True, "tensorflow": False, "new": {"a": 1}, "Bad name": True})
    )

    assert (found.interval_seconds, found.frameworks) == (15.0, {"jax": True, "tensorflow": False})
    plain = said(hello(7))
    assert (plain.interval_seconds, plain.frameworks) == (None, {})
    assert len(said(hello(7, frameworks={f"f{'x' * number}": True for number in range(30)})).frameworks) == 8


def test_an_app_without_a_name_goes_by_its_program() -> None:
    """A label `app` should tell something."""
    assert said(hello(7, app="")).app == "app.py"


def test_texts_are_printable_and_bounded() -> None:
    """A name ends up in labels and on terminals: no escapes, and no megabytes."""
    app = said(hello(7, app="a\x1b[31m\n\u202e" + "x" * 1000)).app

    assert app.isprintable()
    assert len(app.encode()) <= 128


def test_capabilities_are_words() -> None:
    """What is no command's name is left out, and so is what comes after the first 32."""
    caps = ["release", 7, "Rm -rf", "x" * 50, *["lines"] * 40]

    assert set(said(hello(7, caps=caps)).capabilities) == {"release", "lines"}
    assert len(said(hello(7, caps=caps)).capabilities) <= 32


@table(
    "changes",
    [
        {"pid": -1},
        {"pid": True},
        {"pid": "7"},
        {"pid": 2**63},
        {"v": 0},
        {"v": None},
        {"app": 7},
        {"caps": "release"},
        {"declared": []},
        {"declared": {"typical_bytes": -1}},
        {"declared": {"typical_bytes": 0.5}},
        {"interval": 0},
        {"interval": "1"},
        {"interval": True},
        {"interval": float("inf")},
        {"frameworks": ["jax"]},
    ],
)
def test_a_hello_that_cannot_be(changes: dict[str, Any]) -> None:
    """A known field of the wrong type or size is a fault."""
    with pytest.raises(Malformed):
        said({**hello(7), **changes})


def test_figures() -> None:
    """What the allocator does not tell is None, never 0."""
    found = said(stats({"uuid": "u", "index": 0, "allocated_bytes": 5, "ooms": 0, "fraction": 0.5}))

    assert isinstance(found, Stats)
    (device,) = found.devices
    assert (device.uuid, device.ordinal) == ("u", 0)
    assert (device.reading.allocated_bytes, device.reading.ooms, device.reading.limit_ratio) == (5, 0, 0.5)
    assert (device.reading.reserved_bytes, device.reading.segments) == (None, None)


@table(
    "device",
    [
        7,
        {"uuid": 7},
        {"allocated_bytes": 1.5},
        {"allocated_bytes": -1},
        {"ooms": True},
        {"fraction": float("inf")},
        {"fraction": "all"},
        {"fraction": -0.1},
    ],
)
def test_figures_that_cannot_be(device: Any) -> None:
    """A broken client is found, rather than believed."""
    with pytest.raises(Malformed):
        said(stats(device))


def test_devices_are_bounded() -> None:
    """No node has more than 64 GPUs for one process."""
    assert len(said(stats(*[{"uuid": str(number)} for number in range(1000)])).devices) == 64


def test_a_result() -> None:
    """Begun, done, or refused with a reason."""
    assert said({"t": "res", "id": 7, "ok": True, "state": "running"}) == CommandResult(7, ok=True, running=True)
    assert said({"t": "res", "id": 7, "ok": True, "r": {"a": 1}}) == CommandResult(7, ok=True, value={"a": 1})
    assert said({"t": "res", "id": 7, "ok": False, "err": "no"}) == CommandResult(7, ok=False, error="no")
    with pytest.raises(Malformed):
        said({"t": "res", "ok": True})


def test_an_event_keeps_plain_values() -> None:
    """Texts and finite numbers: what JSON for a reader can hold."""
    fields = {"a": 1, "b": 1.5, "c": "text", "d": True, "e": [1], "f": None, "g": float("inf"), "h": 10**400}

    assert said({"t": "event", "name": "load", "fields": fields}) == ClientEvent(
        "load", {"a": 1, "b": 1.5, "c": "text", "d": True}
    )


def test_a_kind_that_is_not_known() -> None:
    """A newer client may say more."""
    assert read_message({"t": "weather"}) is None
