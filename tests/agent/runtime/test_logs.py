"""The agent's own log, in three styles."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from gpuagent.runtime.logs import set_up

log = logging.getLogger("gpuagent.test")


@pytest.fixture(autouse=True)
def logging_put_back() -> Iterator[None]:
    """The root logger is the one thing that is the process', and is left as it was."""
    root, scheduler = logging.getLogger(), logging.getLogger("apscheduler")
    handlers, levels = root.handlers[:], (root.level, scheduler.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    scheduler.setLevel(levels[1])


def lines(style: str, level: str = "info", **environ: str) -> list[str]:
    """What comes out when a debug line, an info line, a warning of two lines, and an error with its cause go in."""
    stream = io.StringIO()
    set_up(level, style, stream=stream, environ=environ)
    log.debug("details")
    log.info("2 GPUs, %d processes", 3)
    log.warning("first\nsecond ü")
    try:
        raise ValueError("no good")
    except ValueError:
        log.exception("it failed")
    return stream.getvalue().splitlines()


def test_text() -> None:
    """For people: time, level, message."""
    first, *_ = lines("text")

    assert first.endswith(" INFO 2 GPUs, 3 processes")
    assert len(lines("text", "debug")) == len(lines("text")) + 1


def test_json() -> None:
    """For shippers: one object a line, whatever is in the message."""
    entries = [json.loads(line) for line in lines("json")]

    assert [(entry["level"], entry["message"], entry["logger"]) for entry in entries] == [
        ("info", "2 GPUs, 3 processes", "gpuagent.test"),
        ("warning", "first\nsecond ü", "gpuagent.test"),
        ("error", "it failed", "gpuagent.test"),
    ]
    assert all(len(entry["time"]) == len("2024-01-01T00:00:00+0000") for entry in entries)
    assert "ValueError: no good" in entries[2]["exception"]


def test_journal() -> None:
    """For journald: the priority at the start of each line, of each line of an exception too (sd-daemon(3))."""
    written = lines("journal")

    assert written[:3] == ["<6>2 GPUs, 3 processes", "<4>first", "<4>second ü"]
    assert all(line.startswith("<3>") for line in written[3:])
    assert written[-1] == "<3>ValueError: no good"


@pytest.mark.parametrize(("environ", "style"), [({"JOURNAL_STREAM": "8:1"}, "journal"), ({}, "text")])
def test_the_style_is_found_out(environ: dict[str, str], style: str) -> None:
    """Under systemd it is journald's."""
    found, expected = lines("auto", **environ), lines(style)

    assert [line.startswith("<") for line in found] == [line.startswith("<") for line in expected]


def test_jobs_that_run_are_no_news() -> None:
    """APScheduler tells of each: only its warnings are kept."""
    stream = io.StringIO()
    set_up("debug", "text", stream=stream, environ={})
    logging.getLogger("apscheduler.executors.default").info("Running job")
    logging.getLogger("apscheduler.executors.default").warning("missed")

    assert [line.rpartition(" ")[2] for line in stream.getvalue().splitlines()] == ["missed"]


def test_memory_that_ran_out_is_one_line() -> None:
    """No traceback: any line may be hit, and none is at fault."""
    stream = io.StringIO()
    set_up("info", "text", stream=stream, environ={})
    try:
        raise MemoryError
    except MemoryError:
        log.exception("could not answer a request for %r", "/metrics")

    (line,) = stream.getvalue().splitlines()
    assert line.endswith("ERROR could not answer a request for '/metrics': out of memory")


def test_a_line_that_cannot_be_written_for_want_of_memory_is_lost() -> None:
    """And nothing else is: whoever logs goes on, and the reserve is let go of for the next line."""

    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise MemoryError

    released: list[bool] = []
    set_up("info", "text", stream=Full(), environ={}, on_shortage=lambda: released.append(True))
    log.info("2 GPUs")

    assert released == [True]
