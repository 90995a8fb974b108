"""The wire format: golden lines, pieces of any size, and anything else that can be sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.clients.protocol import (
    MAX_LINE_BYTES,
    ClientEvent,
    CommandResult,
    Hello,
    LineBuffer,
    Malformed,
    Stats,
    decode,
    encode,
    read_message,
)
from tests.tables import table

GOLDEN = Path(__file__).parents[2] / "golden" / "protocol"


def golden(name: str) -> list[bytes]:
    """The lines of a file, without their line feeds."""
    return (GOLDEN / name).read_bytes().splitlines()


def lines_in(pieces: list[bytes], max_line_bytes: int = MAX_LINE_BYTES) -> list[bytes]:
    """What a buffer makes of these."""
    buffer, found = LineBuffer(max_line_bytes), []
    for piece in pieces:
        buffer.feed(piece)
        while (line := buffer.next_line()) is not None:
            found.append(line)
    return found


@table("line", golden("client.jsonl"))
def test_every_golden_line_of_a_client_is_read(line: bytes) -> None:
    """A client of any version that was released is understood."""
    assert isinstance(read_message(decode(line)), Hello | Stats | CommandResult | ClientEvent)


@table("line", golden("agent.jsonl"))
def test_every_golden_line_of_an_agent_is_written_so(line: bytes) -> None:
    """Compact, in ASCII, in this order: what clients were tested with."""
    assert encode(json.loads(line)) == line + b"\n"


@pytest.mark.parametrize("line", golden("ignored.jsonl"))
def test_what_is_not_known_is_ignored(line: bytes) -> None:
    """A newer client may say more: that is no fault."""
    read_message(decode(line))


@table("line", golden("malformed.txt"))
def test_malformed_lines(line: bytes) -> None:
    """What is no message is told from one."""
    with pytest.raises(Malformed):
        read_message(decode(line))


@pytest.mark.parametrize(
    "line",
    [b"[" * 60_000, b'{"t":' * 10_000, b'{"t":"stats","seq":' + b"9" * 5000 + b"}", b"\xff\xfe", b"", b"\x00" * 100],
    ids=["deep list", "deep object", "huge number", "no UTF-8", "empty", "zeros"],
)
def test_lines_that_hurt_other_parsers(line: bytes) -> None:
    """Depth, huge numbers and bytes that are no text are malformed, nothing worse."""
    with pytest.raises(Malformed):
        decode(line)


@given(st.lists(st.binary(max_size=40).filter(lambda line: b"\n" not in line), max_size=8), st.data())
def test_pieces_of_any_size(lines: list[bytes], data: st.DataObject) -> None:
    """However the stream is cut, the same lines come out."""
    stream = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    assert lines_in(pieces) == lines


@given(st.binary(max_size=400))
def test_garbage_costs_nothing_else(data: bytes) -> None:
    """Any bytes are lines that are messages, or Malformed: no other error comes out."""
    try:
        for line in lines_in([data], max_line_bytes=64):
            read_message(decode(line))
    except Malformed:
        pass


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_KEYS = st.sampled_from(
    ["v", "pid", "app", "caps", "declared", "dev", "init", "err", "id", "ok", "r", "state", "name", "fields", "argv0"]
)


@given(st.sampled_from(["hello", "stats", "res", "event"]), st.dictionaries(_KEYS, _JSON, max_size=6))
def test_fields_of_any_kind(kind: str, fields: dict[str, Any]) -> None:
    """A known message with any values is read, and what is read can be written as JSON, or it is Malformed."""
    try:
        said = read_message(fields | {"t": kind})
    except Malformed:
        return
    if isinstance(said, ClientEvent):
        json.dumps(dict(said.fields), allow_nan=False)
    assert said is not None


def test_a_line_that_is_too_long() -> None:
    """64 KiB with the line feed is the longest; one byte more is malformed, whole or not."""
    longest = b"x" * (MAX_LINE_BYTES - 1)

    assert lines_in([longest + b"\n"]) == [longest]
    for pieces in ([longest + b"x\n"], [longest, b"x"]):
        with pytest.raises(Malformed):
            lines_in(pieces)


def test_what_is_pending_is_forgotten() -> None:
    """A buffer that was cleared has nothing of a line that had begun."""
    buffer = LineBuffer()
    buffer.feed(b"abc")
    buffer.clear()
    buffer.feed(b"d\n")
    assert (buffer.next_line(), buffer.next_line()) == (b"d", None)
