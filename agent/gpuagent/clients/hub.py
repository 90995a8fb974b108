"""All apps that are connected: admits them, counts them, and tells what they said."""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuagent.clients.allowance import Allowance, Rate
from gpuagent.clients.connection import Connection
from gpuagent.clients.messages import Event
from gpuagent.clients.peer import Peer, Reader, RefusedPeer, hold_peer, identify
from gpuagent.clock import Clock
from gpuagent.procfs.files import ProcFiles
from gpuagent.reading import ProcessInfo
from gpuagent_exporters.client_routes import CommandFailure
from gpuagent_exporters.peers import HasSocketOptions

log = logging.getLogger(__name__)

REFUSED = ("crowded", "gone", "pid", "rate", "unknown")
"""Why a connection never became a client: too many of one user or in all; ended; a false pid; connects too often; in
a pid namespace that the agent does not see."""
DROPPED = ("flood", "malformed", "replaced", "silent", "stalled")
"""Why the agent ended a connection."""
_LINES_OF_A_CONNECT = 5
"""A connection costs about as much as so many lines."""
_QUIET_SECONDS = 60.0
_READ_BYTES = 64 * 1024


_PER_USER = Rate(1500, 4 * 1024**2)
_PER_CONNECTION = Rate(100, 1024**2)
_IN_ALL = Rate(2000, 8 * 1024**2)
"""At about 25 us a line, 5 % of a core. An app sends one line a second, and one for each thing it measures."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What apps may cost."""

    max_connections: int = 1024
    max_connections_per_user: int = 512
    user: Rate = _PER_USER
    connection: Rate = _PER_CONNECTION
    total: Rate = _IN_ALL
    hello_seconds: float = 10.0
    """A connection that says nothing is no app."""


class Hub:
    """For one event loop."""

    def __init__(
        self,
        clock: Clock,
        reader: Reader,
        files: ProcFiles,
        limits: Limits | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`monotonic` is the machine's own: in a simulation that runs faster, apps do not send more."""
        self.limits = limits or Limits()
        self.interval_seconds = 1.0
        """How often apps are asked to tell their figures."""
        self.accepted = 0
        self.lines = 0
        self.events = 0
        self.throttlings = 0
        self.refusals: Counter[str] = Counter(dict.fromkeys(REFUSED, 0))
        self.drops: Counter[str] = Counter(dict.fromkeys(DROPPED, 0))
        self.commands: Counter[tuple[str, str]] = Counter()
        self.read_buffer = memoryview(bytearray(_READ_BYTES))
        self._clock = clock
        self._seconds = monotonic
        self._reader = reader
        self._files = files
        self._numbers = itertools.count(1)
        self._connections: set[Connection] = set()
        self._by_pid: dict[int, Connection] = {}
        self._by_user: Counter[int] = Counter()
        self._total = Allowance(self.limits.total, self._seconds)
        self._allowances: dict[int, Allowance] = {}
        self._complained: dict[str, float] = {}

    @property
    def clients(self) -> Iterable[Connection]:
        """Those that have said who they are."""
        return self._by_pid.values()

    @property
    def connections(self) -> int:
        """Open ones, those without a hello too."""
        return len(self._connections)

    def client(self, pid: int) -> Connection | None:
        """The app with this pid."""
        return self._by_pid.get(pid)

    def protocol(self) -> Connection:
        """For each connection that is accepted."""
        return Connection(self, hello_seconds=self.limits.hello_seconds)

    def use(self, limits: Limits, interval_seconds: float) -> None:
        """Other limits, for who connects from now on; another interval, for those too that are connected."""
        self.limits = limits
        if interval_seconds == self.interval_seconds:
            return
        self.interval_seconds = interval_seconds
        for connection in list(self.clients):
            connection.welcome(interval_seconds)

    def close(self) -> None:
        """End all of them."""
        for connection in list(self._connections):
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

    def admit(self, connection: Connection, sock: HasSocketOptions) -> tuple[Peer, Allowance]:
        self.accepted += 1
        peer = hold_peer(sock)
        try:
            self._check_room(peer.uid)
            allowance = self._allowances.get(peer.uid)
            if allowance is None:
                allowance = self._allowances[peer.uid] = Allowance(self.limits.user, self._seconds, self._total)
            if allowance.wait_seconds():
                raise RefusedPeer("rate", f"user {peer.uid} connects too often")
        except RefusedPeer:
            peer.close()
            raise
        allowance.spend(_LINES_OF_A_CONNECT, 0)
        self._connections.add(connection)
        self._by_user[peer.uid] += 1
        return peer, Allowance(self.limits.connection, self._seconds, allowance)

    def identify(self, peer: Peer, claimed_pid: int) -> ProcessInfo:
        return identify(peer, claimed_pid, self._reader, self._files)

    def joined(self, connection: Connection) -> float:
        pid = connection.peer.pid if connection.peer else 0
        before = self._by_pid.pop(pid, None)
        if before is not None:
            before.drop("replaced", f"pid {pid} has connected anew")
        self._by_pid[pid] = connection
        return self.interval_seconds

    def left(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if connection.peer is None:
            return
        pid, uid = connection.peer.pid, connection.peer.uid
        if self._by_pid.get(pid) is connection:
            del self._by_pid[pid]
        self._by_user[uid] -= 1
        if self._by_user[uid] <= 0:
            del self._by_user[uid]
            self._forget_rested()

    def heard(self, said: object) -> None:
        self.lines += 1
        self.events += isinstance(said, Event)

    def refused(self, connection: Connection, reason: str, text: str) -> None:  # noqa: ARG002  part of the protocol
        self.refusals[reason] += 1
        self._complain(reason, f"an embedded client was refused: {text}")

    def dropped(self, connection: Connection, reason: str, text: str) -> None:
        self.drops[reason] += 1
        who = f"pid {connection.peer.pid}" if connection.peer else "nobody"
        self._complain(reason, f"the embedded client of {who} was dropped: {text}")

    def throttled(self) -> None:
        self.throttlings += 1

    def now(self) -> float:
        return self._clock.now()

    # Inside

    def _check_room(self, uid: int) -> None:
        if len(self._connections) >= self.limits.max_connections:
            raise RefusedPeer("crowded", f"there are {len(self._connections)} clients already")
        if self._by_user[uid] >= self.limits.max_connections_per_user:
            raise RefusedPeer("crowded", f"user {uid} has {self._by_user[uid]} connections already")

    def _forget_rested(self) -> None:
        """Allowances of users that are gone and owe nothing."""
        for uid in [uid for uid in self._allowances if uid not in self._by_user and self._allowances[uid].full]:
            del self._allowances[uid]

    def _complain(self, reason: str, text: str) -> None:
        """One line a minute for each reason: whoever may connect must not be able to fill the log."""
        now = self._seconds()
        if now - self._complained.get(reason, -_QUIET_SECONDS) >= _QUIET_SECONDS:
            self._complained[reason] = now
            log.warning("%s", text)
