"""Numbers whose listings were dropped before they were over: in bounded memory, for no longer than a listing can last.

A number that comes back within that time may be listed for whoever had it before, and proves nothing. The kernel gives
numbers in turn, so the next ones share no slot with those that were dropped a while ago; where they do, one is taken
for the other, which withholds an act and permits none.
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

_SLOTS = 1 << 16
"""256 KiB per table; none before the first number is dropped."""


class Absent(NamedTuple):
    """A number that is not listed now."""

    pid: int
    uid: int
    gone_seconds: float
    """For how long complete lists have lacked it."""


class ForgottenNumbers:
    """Until when each number may still be listed for who had it. Seconds are those of complete lists."""

    def __init__(self, seconds: float = 0.0) -> None:
        """`seconds` is for how long still any number may be one that was dropped: over a restart it is not known."""
        self._any_until = seconds
        self._latest = seconds
        self._until: array[int] | None = None

    def add(self, pid: int, until_seconds: float) -> None:
        """Note a number that is dropped, and when its listing is over in any case."""
        if self._until is None:
            self._until = array("I", bytes(4 * _SLOTS))
        slot = pid % _SLOTS
        self._until[slot] = max(self._until[slot], math.ceil(until_seconds))
        self._latest = max(self._latest, until_seconds)

    def may_have(self, pid: int, now_seconds: float) -> bool:
        """Return whether the number may be one that was dropped, and whose listing may not be over."""
        if now_seconds >= self._latest:
            self._until = None
            return False
        return now_seconds < self._any_until or (self._until is not None and now_seconds < self._until[pid % _SLOTS])

    def seconds_left(self, now_seconds: float) -> float:
        """Return for how long numbers that were dropped matter; 0 where none do."""
        return max(self._latest - now_seconds, 0.0)


def choose_to_drop(absent: Iterable[Absent], number: int) -> list[Absent]:
    """Return whose listings are dropped: of the user with the most of them first, and those gone for longest.

    So nobody's numbers make room for the many of another user.
    """
    of_users: dict[int, list[Absent]] = defaultdict(list)
    for each in absent:
        of_users[each.uid].append(each)
    ranked = []
    for own in of_users.values():
        own.sort(key=lambda each: each.gone_seconds)
        ranked += list(enumerate(own))
    ranked.sort(key=lambda each: (each[0], each[1].gone_seconds), reverse=True)
    return [each for _, each in ranked[:number]]
