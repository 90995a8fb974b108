"""Take the place of libnvidia-ml under pynvml: an object with an attribute for each C symbol."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from gpuagent_simulator import (
    entries_devices,
    entries_fields,
    entries_gauges,
    entries_processes,
)
from gpuagent_simulator.abi import Code, NvmlError, error_text, number
from gpuagent_simulator.faults import FaultKind
from gpuagent_simulator.session import EntryPoint, EntryTable, SimulatedSession, bind

TABLES: tuple[EntryTable, ...] = (
    entries_devices.ENTRIES,
    entries_gauges.ENTRIES,
    entries_fields.ENTRIES,
    entries_processes.ENTRIES,
)
LIFE = ("nvmlInitWithFlags", "nvmlInit_v2", "nvmlInit", "nvmlShutdown")
SYMBOLS = frozenset({"nvmlErrorString", *LIFE, *(symbol for table in TABLES for symbol in table)})
"""Every C symbol that a simulated library has."""


class SimulatedLibrary:
    """NVML's C entry points as attributes.

    A symbol that is not there is an AttributeError, as it is with ctypes.
    """

    def __init__(self, session: SimulatedSession) -> None:
        self._session = session
        self._functions: dict[str, Callable[..., Any]] = {
            symbol: bind(symbol, entry, session) for table in TABLES for symbol, entry in table.items()
        }
        for symbol in LIFE:
            action = session.shutdown if symbol == "nvmlShutdown" else session.initialize
            self._functions[symbol] = self._life(symbol, action)
        self._functions["nvmlErrorString"] = _error_string

    def __getattr__(self, symbol: str) -> Callable[..., Any]:
        if symbol.startswith("_"):
            raise AttributeError(symbol)
        if symbol not in self._functions or self._is_taken_away(symbol):
            raise AttributeError(f"undefined symbol: {symbol}")
        return self._functions[symbol]

    def _is_taken_away(self, symbol: str) -> bool:
        """Return whether a fault says that the library lacks this symbol."""
        missing = (f for f in self._session.faults.of(None) if f.kind is FaultKind.MISSING)
        now = self._session.scenario_clock.now()
        return any(f.active_at(now) and f.applies_to(symbol) for f in missing)

    def _life(self, symbol: str, action: Callable[[], None]) -> EntryPoint:
        faults = self._session.faults

        def call(_flags: object = 0) -> int:
            try:
                faults.wait(symbol, None)
                faults.refuse(symbol, None)
                action()
            except NvmlError as refusal:
                return refusal.code
            return Code.SUCCESS

        return call


def _error_string(code: object) -> bytes:
    return error_text(number(code)).encode()


def unknown_calls(patterns: Iterable[str]) -> Iterator[str]:
    """Return what is wrong with these names of entry points, each with the nearest right one."""
    for pattern in patterns:
        if any(fnmatchcase(symbol, pattern) for symbol in SYMBOLS):
            continue
        near = get_close_matches(pattern, SYMBOLS, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        yield f"no entry point is called {pattern}{hint}"
