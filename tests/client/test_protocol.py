"""The wire: golden lines, and whatever else may come over it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent_client import protocol
from gpuagent_client.protocol import (
    MAX_SENT_BYTES,
    Command,
    Declared,
    Level,
    LineReader,
    Malformed,
    TooLong,
    Welcome,
    decode,
    encode,
)
from tests.tables import table

GOLDEN = Path(__file__).parents[1] / "golden" / "protocol"
GIB = 1024**3
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
MESSAGE = st.dictionaries(st.text(), JSON, max_size=5).map(lambda fields: {**fields, "t": "any"})


def golden(name: str) -> list[bytes]:
    """The lines of a golden file, each with its line feed."""
    lines = (GOLDEN / name).read_bytes().splitlines(keepends=True)
    assert lines
    return lines


def described(**changes: Any) -> dict[str, Any]:
    """Arguments of `messages.hello` for the second golden line, and what differs."""
    plain: dict[str, Any] = {
        "library": "0.1.0",
        "pid": 4711,
        "parent_pid": 4700,
        "program": "",
        "python": "3.9.18",
        "torch": "",
        "app": "",
        "backend": "",
        "commands": [],
        "declared": Declared(),
    }
    return {**plain, **changes}


def test_the_client_writes_the_golden_lines() -> None:
    """An agent of any version understands what this client says: the lines are those that it was tested with."""
    first = {
        "program": "whisper/app.py",
        "python": "3.11.7",
        "torch": "2.13.0+cu130",
        "app": "whisper-api",
        "backend": "native",
        "commands": ["release", "census", "limit", "lines", "notice", "rate", "reset"],
        "declared": Declared(4 * GIB, 6 * GIB),
    }
    devices = [
        [],
        json.loads(golden("client.jsonl")[3])["dev"],
        [{"index": 0, "allocated_bytes": 1024, "reserved_bytes": 2097152}],
        [],
    ]
    released = {
        "collected": False,
        "reserved_before_bytes": 3221225472,
        "reserved_after_bytes": 1075838976,
        "took_ms": 12.5,
    }
    figures = {"allocated_bytes": 1073741824, "reserved_bytes": 3221225472, "peak_bytes": 2147483648}
    measured = {"kind": "measure", **figures, "delta_bytes": 1073741824, "seconds": 2.5, "exact": False}
    said = [
        protocol.hello(**described(**first)),
        protocol.hello(**described()),
        *(
            protocol.stats(
                number=number,
                timestamp=1789989999.25 + number,
                initialized=number > 1,
                devices=devices[number - 1],
                error="unsupported" if number == 4 else "",
            )
            for number in (1, 2, 3, 4)
        ),
        protocol.begun(7),
        protocol.done(7, released),
        protocol.refused(8, "unsupported"),
        protocol.event("load model", measured),
        protocol.event("before_request", {"kind": "report", **figures}),
        protocol.hello(**described(interval_seconds=15.0, frameworks={"jax": True, "tensorflow": False})),
    ]

    assert [encode(message) for message in said] == golden("client.jsonl")


def test_the_client_reads_the_golden_lines() -> None:
    """A client of this version understands what any agent has ever said."""
    uuid = "GPU-1f8b4a3e-7c2d-4e5f-9a0b-c1d2e3f40516"

    heard = [protocol.read(decode(line)) for line in golden("agent.jsonl")]

    assert heard == [
        Welcome(1, 1.0, "ok"),
        Level("warning", {uuid: GIB}, {uuid: 25394413568}, {uuid: "NVIDIA GeForce RTX 4090"}),
        Level("critical", {}, {}, {}),
        Level("ok", {}, {}, {}),
        Command(1, "rate", {"interval": 5.0}, 1.0),
        Command(2, "release", {"collect": True}, 10.0),
        Command(3, "limit", {"ratio": 0.9}, 5.0),
        Command(4, "census", {"window_seconds": 60, "show_keys": False, "top": 5}, 180.0),
        Command(5, "lines", {"window_seconds": 60}, 180.0),
        Command(6, "notice", {"action": "kill", "reason": "leaks 1.9 GiB an hour", "seconds": 30.0}, 5.0),
        Command(7, "reset", {}, 30.0),
    ]


@pytest.mark.parametrize("line", golden("ignored.jsonl"), ids=range(len(golden("ignored.jsonl"))))
def test_what_a_later_version_says_is_no_error(line: bytes) -> None:
    """An agent may be newer than the client: its new fields and kinds cost nothing."""
    message = decode(line)
    plain = {key: value for key, value in message.items() if key != "colour"}

    assert protocol.read(message) == protocol.read(plain)


@table("line", golden("malformed.txt"))
def test_what_is_no_message_is_refused(line: bytes) -> None:
    """A peer that speaks something else is recognized at its first line."""
    with pytest.raises(Malformed):
        LineReader().feed(line)


@table(
    "message",
    [
        {"t": "welcome", "v": "1", "interval": 1.0, "level": "ok"},
        {"t": "welcome", "v": 1, "interval": "1", "level": "ok"},
        {"t": "welcome", "v": 1, "interval": -1.0, "level": "ok"},
        {"t": "welcome", "v": 1, "interval": 10**400, "level": "ok"},
        {"t": "welcome", "v": 1, "interval": 1.0},
        {"t": "level", "level": 3},
        {"t": "level", "level": "ok", "free_bytes": [1]},
        {"t": "level", "level": "ok", "free_bytes": {"GPU-1": -1}},
        {"t": "level", "level": "ok", "names": {"GPU-1": 1}},
        {"t": "cmd", "id": True, "cmd": "release", "args": {}, "deadline_ms": 1},
        {"t": "cmd", "id": 1, "cmd": ["release"], "args": {}, "deadline_ms": 1},
        {"t": "cmd", "id": 1, "cmd": "release", "args": [], "deadline_ms": 1},
        {"t": "cmd", "id": 1, "cmd": "release", "args": {}},
    ],
)
def test_a_known_field_of_a_wrong_type_is_malformed(message: dict[str, Any]) -> None:
    """Half understood is worse than not at all."""
    with pytest.raises(Malformed):
        protocol.read(message)


def test_a_level_of_a_later_version_is_a_warning() -> None:
    """A client that does not know how bad it is does not take it for good."""
    assert protocol.read({"t": "level", "level": "purple"}) == Level("warning", {}, {}, {})


@pytest.mark.parametrize(("asked", "taken"), [(0.0, 0.2), (0.001, 0.2), (1.0, 1.0), (86400.0, 60.0)])
def test_an_interval_stays_within_its_bounds(asked: float, taken: float) -> None:
    """An agent cannot make an app busy, nor silence it for good."""
    assert protocol.read({"t": "welcome", "v": 1, "interval": asked, "level": "ok"}) == Welcome(1, taken, "ok")


@given(st.lists(MESSAGE, max_size=5), st.integers(1, 50))
def test_messages_survive_any_cut(sent: list[dict[str, Any]], size: int) -> None:
    """A stream has no boundaries: however it is cut into pieces, the same messages come out."""
    stream = b"".join(encode(message) for message in sent)
    reader = LineReader()

    got = [message for start in range(0, len(stream), size) for message in reader.feed(stream[start : start + size])]

    assert got == sent


@given(st.binary(max_size=200))
def test_garbage_is_malformed_or_waits_for_more(data: bytes) -> None:
    """Whatever bytes come, there is a message, a Malformed, or nothing yet; never another error."""
    try:
        found = LineReader().feed(data)
    except Malformed:
        return
    assert all(isinstance(message["t"], str) for message in found)


@given(JSON.filter(lambda value: isinstance(value, dict)), st.sampled_from(["welcome", "level", "cmd", "other"]))
def test_any_object_is_understood_or_malformed(fields: dict[str, Any], kind: str) -> None:
    """JSON of any form in a message's place costs at most the connection."""
    try:
        protocol.read({**fields, "t": kind})
    except Malformed:
        return


def test_a_line_that_does_not_end_is_given_up() -> None:
    """An agent gone wrong cannot fill the app's memory."""
    reader = LineReader(max_bytes=100)
    reader.feed(b"x" * 99)

    with pytest.raises(Malformed, match="100 bytes"):
        reader.feed(b"x")


def test_a_deeply_nested_line_is_malformed() -> None:
    """A thousand brackets must not become a RecursionError in the app."""
    with pytest.raises(Malformed):
        decode(b'{"t":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


def test_a_message_that_does_not_fit_is_not_sent() -> None:
    """The agent closes on longer lines, so the client knows the bound itself."""
    fits = {"t": "x", "text": "a" * (MAX_SENT_BYTES - len(encode({"t": "x", "text": ""})))}

    assert len(encode(fits)) == MAX_SENT_BYTES
    with pytest.raises(TooLong):
        encode({**fits, "t": "xx"})
