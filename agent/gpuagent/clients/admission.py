"""Bound what connections cost the agent's loop: one of them, one user's and all together, from accept(2) on.

Token buckets: what is used up comes back with time. Whoever is over it is not read from for a while, so it is the
sender that waits, and nothing it sent is lost.

Places are counted by account: a user of the agent's own user namespace, or all users of other user namespaces together
(anybody may have 65536 of these, subuid(5), and only one user of the agent's). When no place is left, the account with
the most gives one up to an account that has fewer. So an account never loses a place to one that has more, and as long
as there are fewer accounts than places, no set of accounts can keep another one out. Processes on a GPU are exempt:
they are not counted, never give up a place, and one of them always gets a place while others hold some.

A container that mounted the file itself would keep a dead socket when the agent starts again; so it is the directory
that is mounted, and is never removed.

Apps wait in the kernel's queue until they are accepted, in the order in which they came. Accepting is cheap, so that a
flood does not keep the queue full for long, and it takes a bounded share of a core, so that a flood does not keep the
loop from its other work.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from gpuagent.runtime.state_files import check_socket_directory
from gpuagent_exporters.http.listeners import ListenError, UnixListener, open_unix


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
            NoFreeSlot: the account has its share, or nobody has to make room.
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


SOCKET_NAME = "client.sock"
_SOCKET_MODE = 0o666
_DIRECTORY_MODE = 0o755


def open_client_socket(directory: Path, *, refuse_descriptors: bool = True) -> UnixListener:
    """Open the clients' socket: everybody may connect, nobody but the agent may put another socket in its place.

    With `refuse_descriptors`, a kernel that can do so refuses whoever sends descriptors.

    Raises:
        ListenError: the directory cannot be had, or others could tamper with it.
    """
    try:
        _make_directory(directory)
    except OSError as error:
        raise ListenError(f"{directory}: {error.strerror}; set client_dir to a directory this user may write") from None
    path = directory / SOCKET_NAME
    return open_unix(path, mode=_SOCKET_MODE, group=None, pass_credentials=True, refuse_descriptors=refuse_descriptors)


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, mode=_DIRECTORY_MODE)
        path.chmod(_DIRECTORY_MODE)  # whatever the umask: apps of other users have to get in
    except FileExistsError:
        pass
    check_socket_directory(path)


log = logging.getLogger(__name__)

_ACCEPTED_AT_ONCE = 64
"""Connections accepted before the loop does something else."""
_NO_DESCRIPTOR_SECONDS = 1.0
"""Pause after accept(2) has failed for lack of descriptors or memory; asyncio's servers wait as long."""
_LOG_PAUSE_SECONDS = 60.0


class CpuShare:
    """A share of one core: what is used beyond it has to be waited for."""

    def __init__(
        self,
        ratio: float,
        burst_seconds: float,
        *,
        now: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.thread_time,
    ) -> None:
        """Allow `burst_seconds` of work at once; `used` is the CPU time of this thread."""
        self._ratio = ratio
        self._burst_seconds = self._left_seconds = burst_seconds
        self._now = now
        self._used = used
        self._at = now()

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Count the work inside, also where it raises. Not to be nested."""
        self._refill()
        before = self._used()
        try:
            yield
        finally:
            self._left_seconds -= self._used() - before

    def spend(self, seconds: float) -> None:
        """Count work that another thread did."""
        self._refill()
        self._left_seconds -= seconds

    def wait_seconds(self) -> float:
        """Return how long to do none of this work; 0.0 while some of the share is left."""
        self._refill()
        return max(0.0, -self._left_seconds / self._ratio)

    def _refill(self) -> None:
        now = self._now()
        self._left_seconds = min(self._left_seconds + (now - self._at) * self._ratio, self._burst_seconds)
        self._at = now


class Acceptor:
    """Accept connections of a listening socket and pass each to `take`, which owns it from then on."""

    def __init__(
        self,
        listening: socket.socket,
        take: Callable[[socket.socket], None],
        make_room: Callable[[], None],
        share: CpuShare,
        is_closed: Callable[[], bool] = lambda: False,
    ) -> None:
        """Call `make_room` when there is no descriptor left for a connection; accept none while `is_closed`."""
        listening.setblocking(False)
        self._listening = listening
        self._take = take
        self._make_room = make_room
        self._share = share
        self._is_closed = is_closed
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._told_at = -_LOG_PAUSE_SECONDS
        self._resume()

    def close(self) -> None:
        """Accept no more. The listening socket stays open."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._listening)

    def _resume(self) -> None:
        self._timer = None
        self._loop.add_reader(self._listening, self._accept_some)

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listening)
        self._timer = self._loop.call_later(seconds, self._resume)

    def _accept_some(self) -> None:
        wait_seconds = 0.0
        with self._share.spending():
            try:
                for _ in range(_ACCEPTED_AT_ONCE):
                    if self._is_closed():
                        self._log_seldom("descriptors that were sent with others do not close")
                        wait_seconds = _NO_DESCRIPTOR_SECONDS
                        break
                    sock, _ = self._listening.accept()
                    self._take(sock)
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                pass
            except OSError as error:  # EMFILE, ENFILE, ENOBUFS, ENOMEM: it would fail again at once
                self._make_room()
                self._log_seldom(error.strerror or str(error))
                wait_seconds = _NO_DESCRIPTOR_SECONDS
        wait_seconds = max(wait_seconds, self._share.wait_seconds())
        if wait_seconds:
            self._pause(wait_seconds)

    def _log_seldom(self, reason: str) -> None:
        now = self._loop.time()
        if now - self._told_at >= _LOG_PAUSE_SECONDS:
            self._told_at = now
            log.warning("an embedded client's connection cannot be accepted: %s", reason)
