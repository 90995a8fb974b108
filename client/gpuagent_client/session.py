"""One connection's conversation: hello, then figures at each interval, and commands as they come."""

from __future__ import annotations

import time
from collections import deque
from typing import Callable

from gpuagent_client import messages
from gpuagent_client.commands import Commands
from gpuagent_client.connection import Connection, Lost
from gpuagent_client.messages import Command, Level, Welcome, clamp_interval
from gpuagent_client.protocol import Message, TooLong, encode
from gpuagent_client.reporter import Reporter
from gpuagent_client.told import Told

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
        """Until the app is stopping.

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
        """Figures, and what else is new. An agent that has not read the last figures does not get any now."""
        if self._connection.behind:
            self._connection.flush()
        if self._connection.behind:
            self._reporter.skip()
            return
        self._say_hello()
        self._connection.send(encode(self._reporter.stats()))
        while self._told.events:
            event = self._told.events.popleft()
            self._connection.send(encode(messages.event(event.name, event.fields)))

    def _say_hello(self) -> None:
        hello = self._reporter.hello(obeying=self._trusted)
        if hello != self._hello:
            self._hello = hello
            self._connection.send(encode(hello))

    def _hear(self, message: Message) -> None:
        heard = messages.read(message)
        if isinstance(heard, Welcome):
            self._interval = self._told.settings.interval_seconds or heard.interval_seconds
        elif isinstance(heard, Level):
            self._told.level = heard
        elif isinstance(heard, Command) and heard.name == "rate":
            self._answers.append(self._change_rate(heard))
        elif isinstance(heard, Command):
            self._commands.take(heard, trusted=self._trusted, reply=self._answers.append)

    def _change_rate(self, command: Command) -> Message:
        """As long as this connection lasts; another server's word does not count."""
        if not self._trusted or "rate" not in self._told.settings.obeyed:
            return messages.refused(command.id, "forbidden: the app does not allow it")
        asked = command.args.get("interval")
        if not isinstance(asked, (int, float)) or isinstance(asked, bool):
            return messages.refused(command.id, "interval must be a number of seconds")
        self._interval = clamp_interval(asked)
        return messages.done(command.id, {"interval": self._interval})

    def _send_answers(self) -> None:
        while self._answers:
            answer = self._answers.popleft()
            try:
                line = encode(answer)
            except (TooLong, TypeError, ValueError) as error:
                line = encode(messages.refused(answer["id"], f"the answer cannot be sent: {error}"))
            self._connection.send(line)
