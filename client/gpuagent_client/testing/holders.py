"""Find who holds what grows: the two looks and the watch of a census, between calls and not between moments."""

from __future__ import annotations

import gc
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from gpuagent_client.blame.census import Names, find, values_of
from gpuagent_client.blame.fork import ChildWork, ThreadFrame, run_in_child
from gpuagent_client.blame.heap import Carried
from gpuagent_client.blame.judgment import Judgment, Watch, judge
from gpuagent_client.blame.look import take_look
from gpuagent_client.blame.report import SecondLookInput, report_holders
from gpuagent_client.blame.sites import PARAMETERS_OF
from gpuagent_client.errors import Refused

CHILD_SECONDS = 60.0
TOP = 5
RUNNERS = ("_pytest", "pytest", "pluggy", "xdist", "execnet", "unittest", "threading", "runpy", "gpuagent_client")
"""Packages whose running functions hold the test itself: as roots they would give everything a name of theirs."""


class HolderSearch:
    """Search for what holds more than at the first look and goes on growing after the second.

    Each method raises Refused where the process cannot be looked into.
    """

    def __init__(self, torch: ModuleType, caller: CodeType) -> None:
        """`caller` is the code of the function that holds the function under test, by whose variables it is named."""
        self._torch = torch
        self._caller = caller
        self._then = b""
        self._complete = True
        self._thread_locals: Names = []
        self._found: dict[str, Any] = {}
        self._watch: Watch | None = None

    def first_look(self) -> None:
        """Remember what there is."""

        def work(frames: list[ThreadFrame], values: list[Carried]) -> Iterator[bytes]:
            look = take_look(self._torch, frames, values, CHILD_SECONDS, is_first=True)
            look.read_graphs()
            yield json.dumps([look.table().encode().decode(), find(look), look.marking.complete]).encode()

        table, self._thread_locals, self._complete = json.loads(self._perform(work))
        self._then = str(table).encode()

    def second_look(self) -> None:
        """Find what holds more than then."""
        self._found = json.loads(
            self._perform(
                lambda frames, values: report_holders(
                    self._torch,
                    SecondLookInput(frames, values, self._then, self._complete, CHILD_SECONDS),
                    show_keys=True,
                    top=TOP,
                )
            )
        )
        self._found["freed_by_gc"] = True  # the gate collects before each figure
        self._watch = Watch(self._found["groups"])

    def sample(self) -> None:
        """Ask what was found for its lengths, after the second look."""
        if self._watch is not None:
            self._watch.sample()

    def judge(self, pace: float) -> Judgment:
        """Return who goes on growing; `pace` is the number of calls after the second look for each one before it."""
        if self._watch is None:
            raise Refused("there was no second look")
        return judge(self._found, self._watch.series, pace, least_bytes=1)

    def _perform(self, work: Callable[[list[ThreadFrame], list[Carried]], ChildWork]) -> bytes:
        """Run a task in a forked child, from a thread of its own: functions that wait here are looked into as well."""
        gc.collect()  # what is garbage holds nothing
        answers: list[bytes] = []
        failures: list[Refused] = []

        def perform() -> None:
            values = values_of(self._thread_locals)
            try:
                answers.append(run_in_child(lambda frames: work(self._of_the_app(frames), values), CHILD_SECONDS).data)
            except Refused as refusal:
                failures.append(refusal)
            finally:
                values.clear()

        thread = threading.Thread(target=perform, name="gpuagent-leak-gate")
        thread.start()
        thread.join()
        if failures:
            raise failures[0]
        if not answers:
            raise Refused("the look ended without an answer")
        return answers[0]

    def _of_the_app(self, frames: list[ThreadFrame]) -> list[ThreadFrame]:
        return [one for one in frames if one.frame.f_code is self._caller or not _is_runner(one.frame)]


def _is_runner(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__")
    return type(name) is str and name.partition(".")[0] in RUNNERS


class NamedFixtures:
    """Name for the fixtures of a test as long as the block lasts: a module of this name has them as its variables.

    pytest alone holds them, and its functions are no roots here. `test` is the function whose parameters they are.
    """

    def __init__(self, fixtures: Mapping[str, object], test: FunctionType) -> None:
        self._module = ModuleType("fixtures")
        self._module.__dict__.update(fixtures)
        self._module.__dict__["__file__"] = test.__code__.co_filename  # a module of the app's, not of a library
        self._module.__dict__[PARAMETERS_OF] = test
        self._name = ""

    def __enter__(self) -> None:
        """Add the module under the first of its names that is free."""
        self._name = next(
            name for name in ("fixtures", "test_fixtures", "_fixtures_of_test") if name not in sys.modules
        )
        sys.modules[self._name] = self._module

    def __exit__(self, *_: object) -> None:
        """Remove it."""
        sys.modules.pop(self._name, None)
