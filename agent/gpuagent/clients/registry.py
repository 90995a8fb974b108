"""Registry of the connected apps: admit them, count them, and keep what they sent."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuagent.clients.admission import Allowance, ConnectionSlots, CpuShare, NoFreeSlot, Rate
from gpuagent.clients.connection import Connection
from gpuagent.clients.disposal import SocketDisposer
from gpuagent.clients.identification import PeerIdentifier
from gpuagent.clients.protocol import ClientEvent
from gpuagent.clients.wire import Peer, PeerQuotas, RefusedPeer, Wire, open_peer
from gpuagent.core.clock import Clock
from gpuagent.core.snapshot import GpuState, ProcessInfo, Snapshot
from gpuagent.procfs.files import ProcFiles
from gpuagent.procfs.reader import ProcessReader
from gpuagent_exporters.api.process_routes import CommandFailure

log = logging.getLogger(__name__)

REFUSED = ("crowded", "descriptors", "gone", "hanging", "pid", "rate", "unknown")
"""Why a connection never became a client: too many of one user or in all; descriptors that its user has sent do not
close; ended; it or others of its user hang in the kernel; a false pid; connects too often; in a pid namespace that the
agent does not see."""
DROPPED = ("crowded", "failed", "malformed", "replaced", "sender", "silent", "stalled")
"""Why the agent ended a connection. crowded: it gave up its place to another; sender: another process than the one that
connected has sent something; silent: it did not say hello in time."""
_UNKNOWN_ACCOUNT = "users that the kernel does not tell"
_LINES_OF_A_CONNECT = 5
"""A connection costs about as much as so many lines."""
_LOG_PAUSE_SECONDS = 60.0
_READ_BYTES = 16 * 1024
"""With a line of 64 KiB, a connection holds at most 80 KiB of what its app has sent."""


_PER_USER = Rate(1500, 4 * 1024**2)
_PER_CONNECTION = Rate(100, 1024**2)
_ASSURED = Rate(2, 8 * 1024, burst_seconds=2.0)
"""Taken from every connection, whatever others send: figures of 16 GPUs once a second. 1024 apps: 5 % of a core."""
_IN_ALL = Rate(2000, 8 * 1024**2)
"""At about 25 us a line, 5 % of a core. An app sends one line a second, and one for each thing it measures."""
MOST_WAITING = 256
"""Connections that have not said hello: with 80 KiB each, 20 MiB at most."""
_CONNECTING_RATIO = 0.2
_CONNECTING_BURST_SECONDS = 1.0
"""1000 apps that come back at once, when the agent has started again: 0.5 ms each for accept, hello and /proc."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What apps may cost, and whether others may become such apps while they run."""

    max_connections: int = 1024
    max_connections_per_user: int = 512
    user: Rate = _PER_USER
    connection: Rate = _PER_CONNECTION
    total: Rate = _IN_ALL
    hello_seconds: float = 5.0
    """A connection that says nothing is no app."""
    max_waiting: int = MOST_WAITING
    """Connections that have not said hello yet, beside those that have."""
    assured: Rate = _ASSURED
    may_attach: bool = True
    """Whether `gpuagent attach` may bring the client into a process."""


class ClientRegistry:
    """For one event loop."""

    def __init__(
        self,
        clock: Clock,
        reader: ProcessReader,
        files: ProcFiles,
        limits: ClientLimits | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`monotonic` is the machine's own: in a simulation that runs faster, apps do not send more."""
        self.limits = limits or ClientLimits()
        self.interval_seconds = 1.0
        """Seconds between two figures that apps are asked for."""
        self.accepted = 0
        self.lines = 0
        self.events = 0
        self.throttlings = 0
        self.refusals: Counter[str] = Counter(dict.fromkeys(REFUSED, 0))
        self.drops: Counter[str] = Counter(dict.fromkeys(DROPPED, 0))
        self.commands: Counter[tuple[str, str]] = Counter()
        self.connecting = CpuShare(_CONNECTING_RATIO, _CONNECTING_BURST_SECONDS)
        """CPU time that connecting and hellos may cost in all."""
        self.disposer = SocketDisposer()
        """Closes the sockets of connections."""
        self.read_buffer = memoryview(bytearray(_READ_BYTES))
        self._clock = clock
        self._seconds = monotonic
        self._identifier = PeerIdentifier(reader, files, self.connecting.spend)
        self._numbers = itertools.count(1)
        self._accounts = PeerQuotas(files)
        self._waiting: dict[int, Connection] = {}
        self._waiting_places = ConnectionSlots()
        self._by_pid: dict[int, Connection] = {}
        self._places = ConnectionSlots()
        self._by_account: Counter[str] = Counter()
        self._total = Allowance(self.limits.total, self._seconds)
        self._allowances: dict[str, Allowance] = {}
        self._gpu_pids: frozenset[int] = frozenset()
        self._complained: dict[str, float] = {}

    @property
    def clients(self) -> Iterable[Connection]:
        """The connected clients that have said who they are."""
        return self._by_pid.values()

    @property
    def connections(self) -> int:
        """Open ones, those without a hello too."""
        return len(self._waiting) + len(self._by_pid)

    def client(self, pid: int) -> Connection | None:
        """Return the app with this pid."""
        return self._by_pid.get(pid)

    def accept(self, sock: socket.socket) -> None:
        """Own a connection that was accepted: it becomes an app's, or is refused and closed."""
        self.accepted += 1
        try:
            peer = open_peer(sock)
        except (OSError, RefusedPeer) as error:
            reason = error.reason if isinstance(error, RefusedPeer) else "gone"
            self._refuse(sock, _UNKNOWN_ACCOUNT, RefusedPeer(reason, str(error)))
            return
        user = self._accounts.of(peer)
        account = f"pid {peer.pid}" if peer.pid in self._gpu_pids else user
        try:
            if self.disposer.is_busy(user):
                raise RefusedPeer("descriptors", f"descriptors that {user} has sent do not close")
            allowance = self._admit(account)
            wire = Wire(sock, asyncio.get_running_loop(), functools.partial(self.disposer.dispose, account=user))
        except (OSError, RefusedPeer) as error:
            peer.close()
            self._refuse(sock, user, error if isinstance(error, RefusedPeer) else RefusedPeer("gone", str(error)))
            return
        self._evict_waiting(peer.pid)
        own = Allowance(self.limits.connection, self._seconds, allowance, self.limits.assured)
        connection = Connection(self, wire, peer, account, own, hello_seconds=self.limits.hello_seconds)
        self._waiting[peer.pid] = connection
        self._waiting_places.add(peer.pid, account)
        self._by_account[account] += 1
        try:
            connection.open()
        except OSError as error:  # the event loop has no room for it: fs.epoll.max_user_watches
            connection.drop("failed", str(error))

    def observe(self, snapshot: Snapshot) -> None:
        """Learn which processes are on a GPU: these always find a place."""
        pids = frozenset(process.pid for process in snapshot.processes)
        if any(gpu.state is not GpuState.OK for gpu in snapshot.gpus):  # its processes are not known, so they stay
            pids |= {pid for pid in self._gpu_pids if pid in self._by_pid or pid in self._waiting}
        self._gpu_pids = pids
        for account in self.disposer.hanging():
            log.warning(
                "descriptors that %s has sent to the socket of embedded clients do not close: its apps are refused "
                "until they do", account,
            )  # fmt: skip

    def drop_unidentified(self) -> None:
        """End all connections that have not said hello: their descriptors are needed."""
        for connection in list(self._waiting.values()):
            connection.drop("crowded", "there are no descriptors left, and it has not said hello")

    def use(self, limits: ClientLimits, interval_seconds: float) -> None:
        """Put other limits in force for who connects from now on, and another interval for all."""
        self.limits = limits
        if interval_seconds == self.interval_seconds:
            return
        self.interval_seconds = interval_seconds
        for connection in list(self.clients):
            connection.welcome(interval_seconds)

    def close(self) -> None:
        """End all of them."""
        for connection in [*self._waiting.values(), *self._by_pid.values()]:
            connection.close()

    async def ask(self, pid: int, name: str, args: Mapping[str, Any], deadline_seconds: float) -> Mapping[str, Any]:
        """Have an app do something.

        Raises:
            CommandFailure: there is none, or it did not.
        """
        connection = self._by_pid.get(pid)
        outcome = "done"
        try:
            if connection is None:
                raise CommandFailure("absent", f"no app with an embedded client has the pid {pid}")
            return await connection.ask(next(self._numbers), name, args, deadline_seconds)
        except CommandFailure as failure:
            outcome = failure.reason
            raise
        finally:
            self.commands[name, outcome] += 1

    # What connections tell

    async def identify(self, peer: Peer, claimed_pid: int) -> ProcessInfo:
        return await self._identifier.identify(peer, claimed_pid, self._accounts.of(peer))

    def joined(self, connection: Connection) -> float:
        pid = connection.peer.pid
        before = self._by_pid.get(pid)
        if before is not None:
            before.drop("replaced", f"pid {pid} has connected anew")
        try:
            leaving = self._places.newest_of_largest(
                pid, connection.account, self._gpu_pids,
                most=self.limits.max_connections, most_of_account=self.limits.max_connections_per_user,
            )  # fmt: skip
        except NoFreeSlot as crowded:
            raise RefusedPeer("crowded", str(crowded)) from None
        if leaving is not None:
            self._by_pid[leaving].drop("crowded", "others have fewer places, or are on a GPU")
        del self._waiting[pid]
        self._waiting_places.remove(pid)
        self._by_pid[pid] = connection
        self._places.add(pid, connection.account)
        return self.interval_seconds

    def left(self, connection: Connection) -> None:
        pid, account = connection.peer.pid, connection.account
        if self._waiting.get(pid) is connection:
            del self._waiting[pid]
            self._waiting_places.remove(pid)
        if self._by_pid.get(pid) is connection:
            del self._by_pid[pid]
            self._places.remove(pid)
        self._by_account[account] -= 1
        if self._by_account[account] <= 0:
            del self._by_account[account]
            self._drop_idle_allowances()

    def heard(self, said: object) -> None:
        self.lines += 1
        self.events += isinstance(said, ClientEvent)

    def refused(self, reason: str, text: str) -> None:
        self.refusals[reason] += 1
        self._log_seldom(reason, f"an embedded client was refused: {text}")

    def dropped(self, connection: Connection, reason: str, text: str) -> None:
        self.drops[reason] += 1
        self._log_seldom(reason, f"the embedded client of pid {connection.peer.pid} was dropped: {text}")

    def throttled(self) -> None:
        self.throttlings += 1

    def now(self) -> float:
        return self._clock.now()

    # Inside

    def _refuse(self, sock: socket.socket, user: str, refusal: RefusedPeer) -> None:
        self.disposer.dispose(sock, user)
        self.refused(refusal.reason, str(refusal))

    def _admit(self, account: str) -> Allowance:
        """Return what all connections of an account may send together.

        Raises:
            RefusedPeer: it connects too often.
        """
        allowance = self._allowances.get(account)
        if allowance is None:
            allowance = self._allowances[account] = Allowance(self.limits.user, self._seconds, self._total)
        if allowance.in_debt:
            raise RefusedPeer("rate", f"{account} connects too often")
        allowance.spend(_LINES_OF_A_CONNECT, 0)
        return allowance

    def _evict_waiting(self, pid: int) -> None:
        before = self._waiting.get(pid)
        if before is not None:
            before.drop("replaced", f"pid {pid} has connected anew")
        leaving = self._waiting_places.oldest_of_largest(self.limits.max_waiting, self._gpu_pids)
        if leaving is not None:
            self._waiting[leaving].drop("crowded", "it has not said hello, and others wait")

    def _drop_idle_allowances(self) -> None:
        """Drop the allowances of accounts without a connection that owe nothing."""
        allowances = self._allowances
        for account in [each for each in allowances if each not in self._by_account and allowances[each].full]:
            del allowances[account]

    def _log_seldom(self, reason: str, text: str) -> None:
        """Log one line a minute for each reason: whoever may connect must not be able to fill the log."""
        now = self._seconds()
        if now - self._complained.get(reason, -_LOG_PAUSE_SECONDS) >= _LOG_PAUSE_SECONDS:
            self._complained[reason] = now
            log.warning("%s", text)
