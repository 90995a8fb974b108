"""Opaque pointers that the library hands out: device handles, event sets, GPM samples."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Hashable
from typing import Any, TypeVar

from gpuagent.simulated.arguments import address
from gpuagent.simulated.codes import Code, Refusal

T = TypeVar("T")


class Pointers:
    """Real addresses, so that callers can compare them, each standing for one object of ours.

    What was handed out before the driver was reloaded is dead, and its address is not used again: a
    caller that kept a handle gets INVALID_ARGUMENT, never another GPU.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._generation = 0
        self._cells: dict[int, tuple[ctypes.c_ulonglong, int, Hashable]] = {}
        self._issued: dict[Hashable, int] = {}

    def issue(self, thing: Hashable) -> int:
        """The address that stands for `thing`, the same until the driver is reloaded."""
        with self._lock:
            where = self._issued.get(thing)
            if where is None:
                cell = ctypes.c_ulonglong()
                where = ctypes.addressof(cell)
                self._cells[where] = (cell, self._generation, thing)
                self._issued[thing] = where
            return where

    def resolve(self, kind: type[T], argument: Any) -> T:
        """What a caller's pointer stands for.

        Raises:
            Refusal: NULL, freed, from before a reload, or of another kind.
        """
        cell = self._cells.get(address(argument))
        if cell is None or cell[1] != self._generation or not isinstance(cell[2], kind):
            raise Refusal(Code.INVALID_ARGUMENT)
        return cell[2]

    def withdraw(self, argument: Any) -> None:
        """Free what was issued; its address may be used again."""
        with self._lock:
            cell = self._cells.pop(address(argument), None)
            if cell is not None:
                self._issued.pop(cell[2], None)

    def invalidate(self) -> None:
        """The driver was reloaded: everything handed out so far is dead."""
        with self._lock:
            self._generation += 1
            self._issued.clear()
