"""A fault that comes back each second has one traceback, and then a line a minute."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpuagent.runtime import logs
from gpuagent.runtime.logs import FORGOTTEN_SECONDS, TOLD_AGAIN_SECONDS, Repeats


class _Told:
    """A logger of its own whose handler has such a filter, by a clock that is set."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.stream = io.StringIO()
        handler = logging.StreamHandler(self.stream)
        handler.addFilter(Repeats(lambda: self.seconds))
        self.log = logging.Logger("told")  # noqa: LOG001  the root logger is the tests' own
        self.log.addHandler(handler)

    def fail(self, error: Exception, message: str = "a tick failed") -> None:
        """Raise it, at one place, and log it."""
        try:
            raise error
        except Exception:
            self.log.exception(message)

    def taken(self) -> str:
        """What was written since the last look."""
        text = self.stream.getvalue()
        self.stream.seek(0)
        self.stream.truncate()
        return text


@pytest.fixture
def told() -> _Told:
    """One."""
    return _Told()


def test_a_fault_of_each_second_is_one_traceback_and_a_line_a_minute(told: _Told) -> None:
    """Two minutes of the same fault are one traceback and two lines that count."""
    for second in range(int(2 * TOLD_AGAIN_SECONDS) + 1):
        told.seconds = second
        told.fail(RuntimeError(f"at {second}"))

    text = told.taken()
    assert text.count("Traceback") == 1
    lines = [line for line in text.splitlines() if "again" in line]
    assert lines == [
        "a tick failed: RuntimeError('at 60') again, 60 times in 60 s",
        "a tick failed: RuntimeError('at 120') again, 60 times in 60 s",
    ]


def test_another_fault_is_told_at_once(told: _Told) -> None:
    """Of another kind, with other words, or raised elsewhere."""
    told.fail(RuntimeError())
    told.fail(ValueError())
    told.fail(RuntimeError(), "an evaluation of rules failed")
    try:
        raise RuntimeError
    except RuntimeError:
        told.log.exception("a tick failed")

    assert told.taken().count("Traceback") == 4


def test_what_was_gone_for_an_hour_is_news(told: _Told) -> None:
    """Its traceback is shown again."""
    told.fail(RuntimeError())
    told.seconds = FORGOTTEN_SECONDS + 1
    told.fail(RuntimeError())

    assert told.taken().count("Traceback") == 2


def test_other_lines_pass(told: _Told) -> None:
    """What is no exception is never held back; an exception that was not raised is one fault."""
    for _ in range(3):
        told.log.warning("a line")
    told.log.error("never raised", exc_info=RuntimeError())
    told.log.error("never raised", exc_info=RuntimeError())

    text = told.taken()
    assert text.count("a line") == 3
    assert text.count("never raised") == 1


class _Unspeakable(Exception):
    """Cannot be put into words."""

    def __repr__(self) -> str:
        raise ValueError


def test_what_cannot_be_said_is_no_fault_of_who_logs(told: _Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words that cannot be formatted, and an exception without them, come to the handler as ever."""
    monkeypatch.setattr(logging, "raiseExceptions", False)
    told.fail(_Unspeakable())
    told.seconds = TOLD_AGAIN_SECONDS
    told.fail(_Unspeakable())
    try:
        raise RuntimeError
    except RuntimeError:
        told.log.exception("%d words", "three")

    assert told.taken().count("a tick failed") == 2


def test_from_any_thread(told: _Told) -> None:
    """Eight threads that fail in turns and together lose no fault and break nothing."""

    def fail(first: int) -> None:
        for number in range(first, first + 200):
            told.fail(RuntimeError(), f"fault {number}")

    with ThreadPoolExecutor(8) as threads:
        for ended in [threads.submit(fail, 200 * number) for number in range(8)]:
            ended.result()

    assert told.taken().count("Traceback") == 1600


def test_the_faults_that_it_remembers_are_bounded(told: _Told) -> None:
    """After a thousand others the first is news again."""
    told.fail(RuntimeError(), "first")
    for number in range(1000):
        told.fail(RuntimeError(), f"other {number}")
    told.taken()
    told.fail(RuntimeError(), "first")

    assert "Traceback" in told.taken()


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, put back as it was."""
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    yield logger
    logger.handlers[:], logger.level = handlers, level


def test_the_agents_log_has_it(root: logging.Logger) -> None:
    """In every style of the log, after the line about memory that ran out."""
    stream = io.StringIO()
    logs.set_up(style="json", stream=stream)
    for error in (RuntimeError(), RuntimeError(), MemoryError(), MemoryError()):
        try:
            raise error
        except (RuntimeError, MemoryError):
            root.exception("a tick failed")

    written = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert ["exception" in entry for entry in written] == [True, False, False]
    assert [entry["message"] for entry in written][1:] == ["a tick failed: out of memory"] * 2
