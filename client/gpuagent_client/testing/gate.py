"""Call a function many times, and say whether it leaks: what the memory after the calls shows, and who holds it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gpuagent_client.blame.judgment import Judgment
from gpuagent_client.blame.tensors import loaded_torch
from gpuagent_client.blame.wire import WireGroup, sentence, size
from gpuagent_client.errors import Refused
from gpuagent_client.testing.growth import NODES, PARTS, Figures, Growth, confirmed, growing, suspects
from gpuagent_client.testing.holders import HolderSearch
from gpuagent_client.testing.memory import MemoryReader

FIRST_LOOK, SECOND_LOOK = 2, 3
"""Parts before which holders are looked for."""
SAMPLES = 9
"""How often what was found is asked for its length in the last part."""
READINGS = 3
"""How often memory is read in each part."""
CALLER = re.compile(r"local function of find_leak\(\) at [^`]*?gate\.py:\d+")
"""The function under test, as the root that holds what nothing else does."""
EXPLAINED_SHARE = 0.9
"""Share of the growth that containers with a bound of their own must hold for it to be no leak."""


class Settings(NamedTuple):
    """How a function is called and judged."""

    warmup: int = 5
    """Calls before anything is measured: what is made once is there after them."""
    calls: int = 20
    """Calls that are measured."""
    confirm: int = 240
    """Further calls where those grew: a cache has to level off within them."""
    allowed_bytes: int = 0
    """Growth in bytes for each call that is no leak, such as a history of losses."""
    max_seconds: float = 120.0
    """Time that the further calls may take, from what those before took: there are fewer of slow functions."""

    def checked(self) -> Settings:
        """Return the same.

        Raises:
            ValueError: a number is out of its range.
        """
        if self.warmup < 1:
            raise ValueError("warmup must be 1 or more: what is made at the first call is no leak")
        if self.calls < PARTS:
            raise ValueError(f"calls must be {PARTS} or more: the run has so many parts")
        if self.confirm < self.calls:
            raise ValueError("confirm must not be less than calls")
        if self.allowed_bytes < 0:
            raise ValueError("allowed_bytes must not be negative")
        return self


class Leak(NamedTuple):
    """Growth that does not stop, and who holds it."""

    growth: Sequence[Growth]
    calls: int
    """Number of calls between the two looks."""
    holders: Sequence[WireGroup]
    """Holders that go on growing, most growth first, as in the answer of a census."""
    notes: Sequence[str]

    def text(self) -> str:
        """Return the leak in words: how much each call leaves behind, and the line that keeps it."""
        lines = [f"leaks {_amount(one)}" for one in self.growth]
        lines += [CALLER.sub("function", sentence(group, f"{self.calls} calls")) for group in self.holders]
        if not self.holders:
            lines.append("what holds it is not known: no object of Python's that goes on growing was found")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def _amount(one: Growth) -> str:
    each = one.amount / one.calls
    if one.name == NODES:
        return f"{each:.1f} nodes of autograd graphs with each call, through {one.calls} calls"
    return f"{size(round(each))} with each call on {one.name}: {size(one.amount)} in {one.calls} calls"


def find_leak(
    function: Callable[[], object],
    *,
    warmup: int = 5,
    calls: int = 20,
    confirm: int = 240,
    allowed_bytes: int = 0,
    max_seconds: float = 120.0,
) -> Leak | None:
    """Call the function again and again, and return how it leaks; None if it does not.

    A function that does not grow is called `warmup + calls` times. Where memory grew in the second half of `calls`,
    `confirm` more calls in four equal parts have to grow in each part, without slowing down. The garbage collector runs
    before each figure. See `Settings` for the numbers.

    Raises:
        ValueError: a number is out of its range.
    """
    settings = Settings(warmup, calls, confirm, allowed_bytes, max_seconds).checked()
    return _Run(function, settings).find()


class _Run:
    def __init__(self, function: Callable[[], object], settings: Settings) -> None:
        self._function = function
        self._settings = settings
        self._memory = MemoryReader()

    def find(self) -> Leak | None:
        self._call(self._settings.warmup)
        part = self._settings.calls // PARTS
        figures: list[Figures] = [self._memory.read()]
        seconds = 0.0
        for _ in range(PARTS):
            seconds += self._call(part)
            figures.append(self._memory.read())
        names = suspects(figures, part, self._settings.allowed_bytes)
        if not names:
            return None
        seconds_per_call = seconds / (PARTS * part)
        affordable = int(self._settings.max_seconds / max(seconds_per_call, 1e-9))
        return self._confirm(names, max(part, min(self._settings.confirm, affordable) // PARTS))

    def _confirm(self, names: list[str], part: int) -> Leak | None:
        """Call it in four more parts: the first two may end the suspicion, holders are looked for around the third."""
        search = _Search()
        parts: list[list[Figures]] = [[self._memory.read()]]
        for number in range(PARTS):
            parts.append([])
            if number == FIRST_LOOK:
                search.first_look()
            elif number == SECOND_LOOK:
                search.second_look()
            for done in range(SAMPLES):
                self._call(part * (done + 1) // SAMPLES - part * done // SAMPLES)
                if number >= SECOND_LOOK:
                    search.sample()
                if (done + 1) % (SAMPLES // READINGS) == 0:
                    parts[-1].append(self._memory.read())
            if not growing(names, parts, part, self._settings.allowed_bytes):
                return None
        growth = confirmed(names, parts, part, self._settings.allowed_bytes)
        if not growth:
            return None
        judgment = search.judge()
        if not judgment.growing and _is_bounded(judgment, growth):
            return None
        return Leak(growth, part, judgment.growing, judgment.notes)

    def _call(self, times: int) -> float:
        """Call the function, and return the seconds that it took."""
        began = time.perf_counter()
        for _ in range(times):
            self._function()
        return time.perf_counter() - began


def _is_bounded(judgment: Judgment, growth: Sequence[Growth]) -> bool:
    """Return whether containers that state a bound, as functools.lru_cache does, hold what grew between the looks."""
    grown = sum(one.amount for one in growth if one.name != NODES) / PARTS
    return judgment.bounded_bytes > 0 and judgment.bounded_bytes >= grown * EXPLAINED_SHARE


class _Search:
    """Search for holders that says why where it cannot be done: the growth is told all the same."""

    def __init__(self) -> None:
        torch = loaded_torch()
        self._search = HolderSearch(torch, find_leak.__code__) if torch is not None else None
        self._refusal = ""

    def first_look(self) -> None:
        self._attempt(HolderSearch.first_look)

    def second_look(self) -> None:
        self._attempt(HolderSearch.second_look)

    def sample(self) -> None:
        self._attempt(HolderSearch.sample)

    def judge(self) -> Judgment:
        if self._search is None or self._refusal:
            return Judgment([], [f"holders were not looked for: {self._refusal or 'torch is not loaded'}"])
        return self._search.judge(1.0)

    def _attempt(self, act: Callable[[HolderSearch], None]) -> None:
        if self._search is None or self._refusal:
            return
        try:
            act(self._search)
        except Refused as refusal:
            self._refusal = str(refusal)
