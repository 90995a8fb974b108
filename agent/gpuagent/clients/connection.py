"""Handle the agent's end of one app's connection.

It never waits for the app: who is slow to read is dropped, who sends too much is not read from for a while, and who
says what cannot be understood loses the connection and nothing else happens. Nor does it take another process's word:
each message must come from the process that connected, and that process must be alive.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gpuagent.clients.admission import Allowance
from gpuagent.clients.protocol import (
    VERSION,
    ClientEvent,
    CommandResult,
    Hello,
    LineBuffer,
    Malformed,
    Stats,
    decode,
    encode,
    read_message,
)
from gpuagent.clients.wire import Peer, RefusedPeer, Wire
from gpuagent.core.snapshot import ProcessInfo
from gpuagent_exporters.api.process_routes import CommandFailure

_LINES_AT_ONCE = 32
"""Lines taken at once, before other connections have their turn."""
_MOST_UNREAD_BYTES = 64 * 1024
"""Beyond what the kernel keeps for a client that does not read."""
_EVENTS_KEPT = 16


class Host(Protocol):
    """What a connection needs of the registry that keeps it."""

    @property
    def read_buffer(self) -> memoryview:
        """What is read goes here first: one for all, of a fixed size. asyncio's own takes 256 KiB for each read."""
        ...

    async def identify(self, peer: Peer, claimed_pid: int) -> ProcessInfo:
        """Return the process behind a hello. Raises RefusedPeer."""
        ...

    def joined(self, connection: Connection) -> float:
        """Admit a connection that has said hello; return the seconds between two figures. Raises RefusedPeer."""
        ...

    def left(self, connection: Connection) -> None:
        """Forget a connection that is over."""
        ...

    def heard(self, said: object) -> None:
        """Note a line that was understood (None: of a kind that is not known)."""
        ...

    def refused(self, reason: str, text: str) -> None:
        """Note a peer that was not taken as a client."""
        ...

    def dropped(self, connection: Connection, reason: str, text: str) -> None:
        """Note a connection that the agent ended."""
        ...

    def throttled(self) -> None:
        """Note that somebody sends more than their share."""
        ...

    def now(self) -> float:
        """Return seconds of the agent's clock."""
        ...


class Connection:
    """One app, from connect to end. `info` and `hello` are None until it has said who it is."""

    def __init__(
        self, host: Host, wire: Wire, peer: Peer, account: str, allowance: Allowance, *, hello_seconds: float
    ) -> None:
        """Own the wire and the peer from now on; `open` begins."""
        self.peer = peer
        self.account = account
        """Account under which its slot is counted."""
        self.info: ProcessInfo | None = None
        self.hello: Hello | None = None
        self.stats: Stats | None = None
        self.measured_seconds: float | None = None
        """Clock at which the last figures came."""
        self.since_seconds = 0.0
        self.level = "ok"
        self.interval_seconds = 1.0
        """Seconds between two figures, as the welcome asks for them."""
        self.rated_seconds: float | None = None
        """Seconds that a command has asked for since, which counts more than what the app has set."""
        self.informed = False
        """Whether it was sent the level of its GPUs once."""
        self.events: deque[tuple[float, ClientEvent]] = deque(maxlen=_EVENTS_KEPT)
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._wire = wire
        self._buffer = LineBuffer()
        self._allowance = allowance
        self._again: asyncio.Handle | None = None
        self._asked: tuple[int, str, asyncio.Future[CommandResult]] | None = None
        self._claimed_pid = 0
        self._introduction: asyncio.Task[None] | None = None
        """While it is found out who has said hello. Nothing is read meanwhile."""
        self._timer = self._loop.call_later(hello_seconds, self.drop, "silent", "it has not said hello")

    # What the agent does

    def open(self) -> None:
        """Begin to read, and to watch for the end of the process. Raises OSError."""
        self._loop.add_reader(self.peer.pidfd, self.close)
        self._wire.open(functools.partial(self._guard, self._read), self.close)

    def send(self, line: bytes) -> None:
        """Send without waiting; an app that has not read for long is dropped."""
        try:
            self._wire.send(line)
        except OSError:
            self.close()
        if self._wire.unsent_bytes > _MOST_UNREAD_BYTES:
            self.drop("stalled", "it does not read")

    async def ask(self, number: int, name: str, args: Mapping[str, Any], deadline_seconds: float) -> Mapping[str, Any]:
        """Have the app do something, and wait for its answer.

        Raises:
            CommandFailure: it is busy, refuses, fails, is too slow, or ends.
        """
        if self._asked is not None:
            raise CommandFailure("busy", f"the app is busy with {self._asked[1]}: try again when that is done")
        if self._wire.closed or self.hello is None:
            raise CommandFailure("gone", "the app's connection has ended")
        if name not in self.hello.capabilities:
            raise CommandFailure("forbidden", f"the app does not allow {name}, or its client does not know it")
        answer: asyncio.Future[CommandResult] = self._loop.create_future()
        self._asked = (number, name, answer)
        try:
            self.send(encode({"t": "cmd", "id": number, "cmd": name, "args": dict(args),
                              "deadline_ms": round(deadline_seconds * 1000)}))  # fmt: skip
            async with asyncio.timeout(deadline_seconds):
                result = await answer
        except TimeoutError:
            raise CommandFailure("late", f"the app has not answered within {deadline_seconds:.0f} s") from None
        finally:
            self._asked = None
        if not result.ok:
            raise CommandFailure("refused", result.error or "the app gives no reason")
        return result.value

    def welcome(self, interval_seconds: float) -> None:
        """Answer a hello; said again, it asks for figures at another interval, which every client understands."""
        assert self.hello is not None  # noqa: S101  it has said it
        self.interval_seconds, self.rated_seconds = interval_seconds, None
        version = min(self.hello.version, VERSION)
        self.send(encode({"v": version, "t": "welcome", "interval": interval_seconds, "level": self.level}))

    @property
    def pace_seconds(self) -> float:
        """How far apart its figures are."""
        own = self.hello.interval_seconds if self.hello else None
        return self.rated_seconds or own or self.interval_seconds

    def drop(self, reason: str, text: str) -> None:
        """End it, counted under `reason`."""
        if not self._wire.closed:
            self._host.dropped(self, reason, text)
            self.close()

    def close(self) -> None:
        """End it at once."""
        if self._wire.closed:
            return
        self._wire.close()
        self._timer.cancel()
        if self._again is not None:
            self._again.cancel()
        if self._introduction is not None:
            self._introduction.cancel()
        self._buffer.clear()
        if self._asked is not None and not self._asked[2].done():
            number = self._asked[0]
            self._asked[2].set_result(
                CommandResult(number, ok=False, error="the app has ended, or closed the connection")
            )
        self._loop.remove_reader(self.peer.pidfd)
        self.peer.close()
        self._host.left(self)

    # Inside

    def _guard(self, work: Callable[[], None]) -> None:
        """Do a part of the work; a defect costs this connection, for the loop would call again for ever."""
        try:
            work()
        except Exception as error:  # noqa: BLE001  see above
            self.drop("failed", f"what it says cannot be taken: {error!r}")

    def _read(self) -> None:
        """Read once, and take it if the process that connected has sent it."""
        buffer = self._host.read_buffer
        try:
            received = self._wire.receive(buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        if received.size_bytes == 0:
            self.close()
        elif received.passes_more:
            self.drop("malformed", "it passes descriptors")
        elif received.pid != self.peer.pid:
            self.drop("sender", f"process {received.pid} has sent something over its connection")
        elif self.peer.ended:  # its number may be another's, who has the connection from it
            self.close()
        else:
            self._buffer.feed(buffer[: received.size_bytes])
            if self._again is None:
                self._work()

    def _work(self) -> None:
        """Take some of the lines that have come; the rest later, when there is a share left or others had a turn."""
        self._again = None
        try:
            done = self._process_lines()
        except Malformed as fault:
            self.drop("malformed", str(fault))
            return
        except RefusedPeer as refusal:
            self._host.refused(refusal.reason, str(refusal))
            self.close()
            return
        if self._wire.closed:
            return
        if self._introduction is not None:
            self._wire.pause_reading()
            return
        wait_seconds = self._allowance.wait_seconds()
        if done and not wait_seconds:
            self._wire.resume_reading()
            return
        self._wire.pause_reading()
        if wait_seconds:
            self._host.throttled()
        self._again = self._loop.call_later(wait_seconds, self._guard, self._work)

    def _process_lines(self) -> bool:
        """Take lines as far as the share goes; True if no whole line is left."""
        for _ in range(_LINES_AT_ONCE):
            line = self._buffer.next_line()
            if line is None:
                return True
            self._allowance.spend(1, len(line) + 1)
            self._handle_line(line)
            if self._wire.closed or self._introduction is not None:
                return True
            if self._allowance.wait_seconds():
                return False
        return False

    def _handle_line(self, line: bytes) -> None:
        said = read_message(decode(line))
        self._host.heard(said)
        if isinstance(said, Hello):
            self._handle_hello(said)
        elif said is None:
            return
        elif self.hello is None:
            raise Malformed("its first line is no hello")
        elif isinstance(said, Stats):
            self.stats, self.measured_seconds = said, self._host.now()
        elif isinstance(said, ClientEvent):
            self.events.append((self._host.now(), said))
        elif not said.running:
            self._answered(said)

    def _answered(self, result: CommandResult) -> None:
        """Hand an answer to whoever waits for it; one that nobody waits for any more is dropped."""
        if self._asked is not None and self._asked[0] == result.id and not self._asked[2].done():
            self._asked[2].set_result(result)

    def _handle_hello(self, hello: Hello) -> None:
        """Take who it is from the first hello; later ones only say what has changed."""
        if self.info is None:
            self._timer.cancel()
            self._introduction = self._loop.create_task(self._introduce(hello), name="who an app is")
        elif hello.pid != self._claimed_pid:
            raise RefusedPeer("pid", f"pid {self.peer.pid} has changed its mind about its pid: it says {hello.pid}")
        else:
            self.hello = hello

    async def _introduce(self, hello: Hello) -> None:
        """Find out who has said hello, admit it, and go on with what it has said since."""
        info: ProcessInfo | RefusedPeer
        try:
            info = await self._host.identify(self.peer, hello.pid)
        except RefusedPeer as refusal:
            info = refusal
        except Exception as error:  # noqa: BLE001  a defect costs this connection, as in `_guard`
            self._introduction = None
            self.drop("failed", f"who it is cannot be told: {error!r}")
            return
        self._introduction = None
        self._guard(functools.partial(self._admit, hello, info))

    def _admit(self, hello: Hello, info: ProcessInfo | RefusedPeer) -> None:
        if self.peer.ended:  # what was read may be of another that was given the number
            info = RefusedPeer("gone", "it has ended already")
        try:
            if isinstance(info, RefusedPeer):
                raise info
            self.info, self.hello, self._claimed_pid = info, hello, hello.pid
            self.since_seconds = self._host.now()
            interval_seconds = self._host.joined(self)
        except RefusedPeer as refusal:
            self._host.refused(refusal.reason, str(refusal))
            self.close()
            return
        self.welcome(interval_seconds)
        if not self._wire.closed:
            self._work()
