"""One stage for all troubles, made anew after a failure; at the end a table of what each has cost."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.torture.checks import Bill
from tests.torture.shim import build
from tests.torture.stage import Stage, stage

_BILL = "bill"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shim, compiled."""
    return build(tmp_path_factory.mktemp("shim"))


class Theater:
    """Keeps a stage from one test to the next, until one of them fails."""

    def __init__(self, library: Path) -> None:
        self._library = library
        self._open = ExitStack()
        self._stage: Stage | None = None

    def enter(self) -> Stage:
        """The stage; a new one where there is none."""
        if self._stage is None:
            folder = self._open.enter_context(tempfile.TemporaryDirectory(prefix="gpuagent-", dir="/tmp"))
            self._stage = self._open.enter_context(stage(Path(folder), self._library))
        return self._stage

    def leave(self) -> None:
        """End the stage: what comes next gets another."""
        self._stage = None
        self._open.close()


@pytest.fixture(scope="module")
def theater(library: Path) -> Iterator[Theater]:
    """For all tests of a module."""
    made = Theater(library)
    yield made
    made.leave()


@pytest.fixture
def bills(request: pytest.FixtureRequest) -> Callable[[Bill], None]:
    """Puts a line into the table. It travels with the test's report, for the test may run in a process of its own."""
    properties: list[tuple[str, object]] = request.node.user_properties
    return lambda bill: properties.append((_BILL, tuple(bill)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table."""
    reports = terminalreporter.getreports("passed")
    bills = [Bill(*value) for report in reports for name, value in report.user_properties if name == _BILL]
    if not bills:
        return
    write = terminalreporter.write_line
    width = max(len(bill.name) for bill in bills)
    terminalreporter.section("troubles, and what each has cost")
    write(f"{'trouble':{width}}  seconds  told after  scrapes  failed  without GPU 0  RSS MiB")
    for bill in bills:
        write(
            f"{bill.name:{width}}  {bill.seconds:7.1f}  {bill.told_seconds:8.1f} s  {bill.scrapes:7}  "
            f"{bill.failed_scrapes:6}  {bill.unhealthy_scrapes:13}  {bill.resident_mib:7.1f}"
        )
