"""Who keeps a place when more apps connect than there is room for.

Places are counted by account: a user of the agent's own user namespace, or all users of other user namespaces together
(anybody may have 65536 of these, subuid(5), and only one user of the agent's). When no place is left, the account with
the most gives one up to an account that has fewer. So an account never loses a place to one that has more, and as long
as there are fewer accounts than places, no set of accounts can keep another one out. Processes on a GPU are exempt:
they are not counted, never give up a place, and one of them always gets a place while others hold some.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from operator import itemgetter
from typing import NamedTuple


class Crowded(Exception):
    """No place can be had; the text says why."""


class Candidate(NamedTuple):
    """The process that is the first to give up its place."""

    pid: int
    account_places: int
    """Places of its account, processes on a GPU not counted."""


class Places:
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
            raise Crowded(f"{account} has {own} connections already")
        if len(self._accounts) < most:
            return None
        candidate = self._candidate(exempt, newest=True)
        if candidate is None or not (is_exempt or candidate.account_places >= own + 2):
            raise Crowded(f"there are {len(self._accounts)} clients already, and {own} of {account}")
        return candidate.pid

    def _count(self, account: str, exempt: Container[int]) -> int:
        return sum(each == account and pid not in exempt for pid, each in self._accounts.items())

    def _candidate(self, exempt: Container[int], *, newest: bool) -> Candidate | None:
        counts = Counter(account for pid, account in self._accounts.items() if pid not in exempt)
        if not counts:
            return None
        largest, places = max(counts.items(), key=itemgetter(1))
        order = reversed(self._accounts) if newest else iter(self._accounts)
        pid = next(pid for pid in order if self._accounts[pid] == largest and pid not in exempt)
        return Candidate(pid, places)
