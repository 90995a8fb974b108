"""What one connection, one user and all of them may cost the agent's loop, and who keeps a place when it is full.

Token buckets: what is used up comes back with time. Whoever is over it is not read from for a while, so it is the
sender that waits, and nothing it sent is lost.

Places are counted by account: a user of the agent's own user namespace, or all users of other user namespaces together
(anybody may have 65536 of these, subuid(5), and only one user of the agent's). When no place is left, the account with
the most gives one up to an account that has fewer. So an account never loses a place to one that has more, and as long
as there are fewer accounts than places, no set of accounts can keep another one out. Processes on a GPU are exempt:
they are not counted, never give up a place, and one of them always gets a place while others hold some.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container
from operator import itemgetter
from typing import NamedTuple


class Rate(NamedTuple):
    """The most that is taken in the long run; `burst_seconds` of it at once."""

    lines_per_second: float
    bytes_per_second: float
    burst_seconds: float = 4.0


class Allowance:
    """One bucket for lines and one for bytes, inside the allowance of a `parent`."""

    def __init__(
        self,
        rate: Rate,
        now: Callable[[], float],
        parent: Allowance | None = None,
        assured: Rate | None = None,
    ) -> None:
        """Begin with a full bucket.

        Args:
            rate: the most that is taken, as far as the parent has it.
            now: seconds that never go back.
            parent: what several of them share.
            assured: what is taken in any case, so that others who use up the parent's share cannot silence this one.
        """
        self._rate = rate
        self._now = now
        self._parent = parent
        self._assured = Allowance(assured, now) if assured else None
        self._lines = rate.lines_per_second * rate.burst_seconds
        self._bytes = rate.bytes_per_second * rate.burst_seconds
        self._at = now()

    def spend(self, lines: float, size_bytes: int) -> None:
        """Take this; it may lead into debt, which is waited for afterwards."""
        if self._assured is not None and not self._assured.in_debt:
            self._assured.spend(lines, size_bytes)
            return
        self._refill()
        self._lines -= lines
        self._bytes -= size_bytes
        if self._parent is not None:
            self._parent.spend(lines, size_bytes)

    def wait_seconds(self) -> float:
        """Return the seconds until something can be spent again; 0 where it can."""
        assured = self._assured.wait_seconds() if self._assured is not None else None
        if assured == 0.0:
            return 0.0
        self._refill()
        wait = max(-self._lines / self._rate.lines_per_second, -self._bytes / self._rate.bytes_per_second, 0.0)
        if self._parent is not None:
            wait = max(wait, self._parent.wait_seconds())
        return wait if assured is None else min(wait, assured)

    @property
    def in_debt(self) -> bool:
        """Whether more was spent than there was, whatever the parent has left."""
        self._refill()
        return self._lines < 0 or self._bytes < 0

    @property
    def full(self) -> bool:
        """Nothing is missing: forgetting it changes nothing."""
        self._refill()
        rate = self._rate
        return (
            self._lines >= rate.lines_per_second * rate.burst_seconds
            and self._bytes >= rate.bytes_per_second * rate.burst_seconds
        )

    def _refill(self) -> None:
        now = self._now()
        seconds, self._at = now - self._at, now
        rate = self._rate
        self._lines = min(self._lines + seconds * rate.lines_per_second, rate.lines_per_second * rate.burst_seconds)
        self._bytes = min(self._bytes + seconds * rate.bytes_per_second, rate.bytes_per_second * rate.burst_seconds)


class NoFreeSlot(Exception):
    """No place can be had; the text says why."""


class EvictionCandidate(NamedTuple):
    """The process that is the first to give up its place."""

    pid: int
    account_places: int
    """Places of its account, processes on a GPU not counted."""


class ConnectionSlots:
    """Processes that hold a place, in the order in which they came. A process holds one."""

    def __init__(self) -> None:
        self._accounts: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._accounts)

    def __contains__(self, pid: object) -> bool:
        return pid in self._accounts

    def add(self, pid: int, account: str) -> None:
        """Give a process a place, as the last that came."""
        self._accounts.pop(pid, None)
        self._accounts[pid] = account

    def remove(self, pid: int) -> None:
        """Take a process's place back, if it has one."""
        self._accounts.pop(pid, None)

    def oldest_of_largest(self, most: int, exempt: Container[int]) -> int | None:
        """Return the pid that has to go before another process may wait; None if fewer than `most` wait.

        Whoever comes is always let in: an app says hello as soon as it has connected, so who has waited longest is the
        least likely to be one.
        """
        if len(self._accounts) < most:
            return None
        candidate = self._candidate(exempt, newest=False)
        return candidate.pid if candidate else next(iter(self._accounts))

    def newest_of_largest(
        self, pid: int, account: str, exempt: Container[int], *, most: int, most_of_account: int
    ) -> int | None:
        """Return the pid that has to go before `pid` may have a place; None if there is room.

        Who has held a place for longer keeps it, and an account gives one up only to an account that has at least two
        fewer: so places do not go back and forth.

        Raises:
            Crowded: the account has its share, or nobody has to make room.
        """
        if len(self._accounts) < min(most, most_of_account):
            return None
        is_exempt = pid in exempt
        own = self._count(account, exempt)
        if not is_exempt and own >= most_of_account:
            raise NoFreeSlot(f"{account} has {own} connections already")
        if len(self._accounts) < most:
            return None
        candidate = self._candidate(exempt, newest=True)
        if candidate is None or not (is_exempt or candidate.account_places >= own + 2):
            raise NoFreeSlot(f"there are {len(self._accounts)} clients already, and {own} of {account}")
        return candidate.pid

    def _count(self, account: str, exempt: Container[int]) -> int:
        return sum(each == account and pid not in exempt for pid, each in self._accounts.items())

    def _candidate(self, exempt: Container[int], *, newest: bool) -> EvictionCandidate | None:
        counts = Counter(account for pid, account in self._accounts.items() if pid not in exempt)
        if not counts:
            return None
        largest, places = max(counts.items(), key=itemgetter(1))
        order = reversed(self._accounts) if newest else iter(self._accounts)
        pid = next(pid for pid in order if self._accounts[pid] == largest and pid not in exempt)
        return EvictionCandidate(pid, places)
