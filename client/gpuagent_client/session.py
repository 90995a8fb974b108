"""One connection's conversation: hello, then figures at each interval, and commands as they come.

A command runs in a thread of its own, so that the figures go on flowing while a census waits for its second look.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Callable

from gpuagent_client import protocol
from gpuagent_client.allocator import Torch
from gpuagent_client.connection import Connection, Lost
from gpuagent_client.guard import log
from gpuagent_client.protocol import Command, Level, Message, TooLong, Welcome, clamp_interval, encode
from gpuagent_client.remedies import Refused, Remedies
from gpuagent_client.reporter import Reporter
from gpuagent_client.settings import Told

LONG = frozenset({"census", "lines", "reset"})
"""These say first that they have begun."""
MAX_ERROR_CHARACTERS = 400

Handler = Callable[[Mapping[str, Any], float], dict[str, Any]]
Reply = Callable[[Message], None]


class BlameContext:
    """What `gpuagent_client.blame` may know of the app."""

    def __init__(self, thread_id: int, told: Told, torch: Torch, wait: Callable[[float], bool]) -> None:
        self.thread_id = thread_id
        """The client's own thread: its frames hold nothing of the app's."""
        self._told = told
        self._torch = torch
        self._wait = wait

    def requests_served(self) -> int | None:
        """Return the number of requests so far; None where nobody counts them."""
        return self._told.requests_served()

    def is_capturing(self) -> bool:
        """Return whether a CUDA graph is being captured."""
        return self._torch.capturing()

    def wait(self, seconds: float) -> bool:
        """Wait; True as soon as the app is about to end."""
        return self._wait(seconds)


class Commands:
    """The list, and who is at work on it."""

    def __init__(self, told: Told, remedies: Remedies, blame_context: Callable[[], BlameContext]) -> None:
        self._told = told
        self._blame_context = blame_context
        self._worker: threading.Thread | None = None
        self._answered = False
        """The worker is done: who has its answer may ask for the next thing, also before the thread has ended."""
        self._handlers: dict[str, Handler] = {
            "census": lambda args, deadline: self._blame("census", args, deadline),
            "limit": remedies.limit,
            "lines": lambda args, deadline: self._blame("lines", args, deadline),
            "notice": remedies.notice,
            "release": remedies.release,
            "reset": remedies.reset,
        }

    @property
    def at_work(self) -> bool:
        """Whether a command is being carried out, or its answer is on the way."""
        return self._worker is not None and self._worker.is_alive()

    def take(self, command: Command, *, trusted: bool, reply: Reply) -> None:
        """Begin with a command, or say why not; the answer goes to `reply`, from another thread maybe."""
        handler = self._handlers.get(command.name)
        if handler is None:
            reply(protocol.refused(command.id, "unsupported"))
        elif not trusted:
            reply(protocol.refused(command.id, "forbidden: the client does not know this server as its agent"))
        elif command.name not in self._told.settings.obeyed:
            reply(protocol.refused(command.id, "forbidden: the app does not allow it"))
        elif self.at_work and not self._answered:
            reply(protocol.refused(command.id, "busy: another command is being carried out"))
        else:
            if command.name in LONG:
                reply(protocol.begun(command.id))
            self._answered = False
            self._worker = threading.Thread(
                target=self._carry_out, args=(handler, command, reply), name="gpuagent-command", daemon=True
            )
            try:
                self._worker.start()
            except RuntimeError as error:  # no more threads, or the interpreter is ending
                self._worker = None
                reply(protocol.refused(command.id, f"no thread: {error}"))

    def join(self, seconds: float) -> None:
        """Wait for the command that is being carried out, if any."""
        worker = self._worker
        if worker is not None and worker is not threading.current_thread():
            worker.join(seconds)

    def _carry_out(self, handler: Handler, command: Command, reply: Reply) -> None:
        try:
            answer = protocol.done(command.id, handler(command.args, command.deadline_seconds))
        except Refused as refusal:
            answer = protocol.refused(command.id, str(refusal)[:MAX_ERROR_CHARACTERS])
        except Exception as error:  # noqa: BLE001 - a failure is an answer
            log.warning("gpuagent_client could not carry out %s", command.name, exc_info=True)
            answer = protocol.refused(command.id, f"failed: {type(error).__name__}: {error}"[:MAX_ERROR_CHARACTERS])
        self._answered = True
        reply(answer)

    def _blame(self, command: str, args: Mapping[str, Any], deadline_seconds: float) -> dict[str, Any]:
        # Not loaded before it is asked for: an app that never leaks never pays for it.
        blame = importlib.import_module("gpuagent_client.blame")
        wanted = dict(args)
        if "lines" not in self._told.settings.obeyed:
            wanted.pop("lines", None)  # a census may record lines beside it: not in an app that forbids that
        result: dict[str, Any] = blame.run(command, wanted, deadline_seconds, self._blame_context())
        if result.get("ok") is False:
            raise Refused(str(result.get("err", "refused")))
        return result


WELCOME_SECONDS = 10.0
"""An agent that hangs accepts connections all the same: its kernel does."""
AT_WORK_POLL_SECONDS = 0.05
"""While a command is carried out, its answer is looked for this often."""


class Session:
    """Serves one connection until it is lost; the thread of the link runs it."""

    def __init__(
        self,
        connection: Connection,
        told: Told,
        reporter: Reporter,
        commands: Commands,
        *,
        trusted: bool,
        stopping: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._told = told
        self._reporter = reporter
        self._commands = commands
        self._trusted = trusted
        self._stopping = stopping
        self._clock = clock
        self._interval: float | None = None
        self._answers: deque[Message] = deque()
        self._hello: Message = {}

    def serve(self) -> None:
        """Serve the connection until the app is stopping.

        Raises:
            OSError: the connection is over.
            Malformed: the agent speaks another language.
        """
        opened = self._clock()
        self._say_hello()
        due: float | None = None
        while not self._stopping():
            now = self._clock()
            if self._interval is None:
                if now >= opened + WELCOME_SECONDS:
                    raise Lost("the agent does not answer")
            elif due is None or now >= due:
                self._report()
                due = now + self._reporter.pause_seconds(self._interval)
            self._send_answers()
            wait_seconds = (opened + WELCOME_SECONDS if due is None else due) - self._clock()
            if self._commands.at_work or self._answers:
                wait_seconds = min(wait_seconds, AT_WORK_POLL_SECONDS)
            before = self._interval
            for message in self._connection.receive(wait_seconds):
                self._hear(message)
            if self._interval != before:
                due = None
        self._send_answers()

    def _report(self) -> None:
        """Send figures and what else is new; an agent that has not read the last figures gets none now."""
        if self._connection.behind:
            self._connection.flush()
        if self._connection.behind:
            self._reporter.skip()
            return
        self._say_hello()
        self._connection.send(encode(self._reporter.stats()))
        while self._told.events:
            event = self._told.events.popleft()
            self._connection.send(encode(protocol.event(event.name, event.fields)))

    def _say_hello(self) -> None:
        hello = self._reporter.hello(obeying=self._trusted)
        if hello != self._hello:
            self._hello = hello
            self._connection.send(encode(hello))

    def _hear(self, message: Message) -> None:
        heard = protocol.read(message)
        if isinstance(heard, Welcome):
            self._interval = self._told.settings.interval_seconds or heard.interval_seconds
        elif isinstance(heard, Level):
            self._told.level = heard
        elif isinstance(heard, Command) and heard.name == "rate":
            self._answers.append(self._change_rate(heard))
        elif isinstance(heard, Command):
            self._commands.take(heard, trusted=self._trusted, reply=self._answers.append)

    def _change_rate(self, command: Command) -> Message:
        """Change the rate for as long as this connection lasts; another server's word does not count."""
        if not self._trusted or "rate" not in self._told.settings.obeyed:
            return protocol.refused(command.id, "forbidden: the app does not allow it")
        asked = command.args.get("interval")
        if not isinstance(asked, (int, float)) or isinstance(asked, bool):
            return protocol.refused(command.id, "interval must be a number of seconds")
        self._interval = clamp_interval(asked)
        return protocol.done(command.id, {"interval": self._interval})

    def _send_answers(self) -> None:
        while self._answers:
            answer = self._answers.popleft()
            try:
                line = encode(answer)
            except (TooLong, TypeError, ValueError) as error:
                line = encode(protocol.refused(answer["id"], f"the answer cannot be sent: {error}"))
            self._connection.send(line)
