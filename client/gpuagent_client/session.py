"""Talk to the agent over one connection: hello, then figures at each interval, and commands as they come.

The hello says which frameworks preallocate GPU memory. TensorFlow and JAX do, unless they are told not to; nothing in a
process's name tells, and its environment is readable by its own user only. A framework that is merely imported has
taken nothing, so this checks whether it has the GPU up, and calls none of its functions: a call could bring it up.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections import deque
from collections.abc import Mapping
from types import ModuleType
from typing import Callable

import gpuagent_client
from gpuagent_client import protocol
from gpuagent_client.allocator import Allocator, Reading, Torch, to_wire
from gpuagent_client.commands import CommandRunner, Limits, NoLimits
from gpuagent_client.connection import Connection, ConnectionLost
from gpuagent_client.errors import warn_once
from gpuagent_client.protocol import Command, Level, Message, TooLong, Welcome, clamp_interval, encode
from gpuagent_client.settings import ClientState

_JAX_GPU_PLATFORMS = ("cuda", "gpu", "rocm")


def frameworks(modules: Mapping[str, ModuleType], environment: Mapping[str, str]) -> dict[str, bool]:
    """Return whether each framework took most of the GPU when it came up, without those that do not use it.

    `modules` is `sys.modules`. What a version keeps elsewhere is not found, and then nothing is said.
    """
    found: dict[str, bool] = {}
    if _jax_is_up(modules):
        found["jax"] = _jax_preallocates(environment)
    growing = _tensorflow_growth(modules)
    if growing:
        # The environment overrides what the program has set with set_memory_growth, by these two words alone.
        forced = environment.get("TF_FORCE_GPU_ALLOW_GROWTH", "")
        found["tensorflow"] = forced != "true" if forced in {"true", "false"} else not all(growing)
    return found


def _jax_is_up(modules: Mapping[str, ModuleType]) -> bool:
    """Return whether JAX has clients of a platform."""
    backends = _names(modules.get("jax._src.xla_bridge")).get("_backends")
    return isinstance(backends, dict) and any(name in backends for name in _JAX_GPU_PLATFORMS)


def _jax_preallocates(environment: Mapping[str, str]) -> bool:
    """Return whether JAX takes 75 % by default: https://docs.jax.dev/en/latest/gpu_memory_allocation.html.

    As jaxlib reads them: the allocator's name in any case, but `False` and not `FALSE` (`xla_client.py`,
    `generate_pjrt_gpu_plugin_options`).
    """
    if environment.get("XLA_PYTHON_CLIENT_ALLOCATOR", "").lower() == "platform":
        return False
    return environment.get("XLA_PYTHON_CLIENT_PREALLOCATE", "") not in {"0", "false", "False"}


def _tensorflow_growth(modules: Mapping[str, ModuleType]) -> list[bool]:
    """Return whether memory grows with the need, for each GPU that TensorFlow uses; [] where it uses none.

    https://www.tensorflow.org/guide/gpu#limiting_gpu_memory_growth
    """
    context = _names(modules.get("tensorflow.python.eager.context")).get("_context")
    own = getattr(context, "__dict__", {})
    if own.get("_context_handle") is None:  # the devices may be listed already, but nothing is allocated
        return []
    grows = own.get("_memory_growth_map")
    return [value is True for value in list(grows.values())] if isinstance(grows, dict) else []


def _names(module: ModuleType | None) -> Mapping[str, object]:
    """Return a module's own names. Not by getattr: a __getattr__ may import what the app has not asked for."""
    found = getattr(module, "__dict__", {})
    return found if isinstance(found, dict) else {}


COST_SHARE = 0.01
"""Largest share of the time spent inside the allocator: the interpreter's lock is held meanwhile."""
MAX_SPARED_SECONDS = 4.0
"""The agent no longer believes figures that are older than five seconds."""
MAX_PROGRAM_CHARACTERS = 200


class Reporter:
    """Build the messages; the connection's thread calls it."""

    def __init__(
        self,
        state: ClientState,
        torch: Torch,
        allocator: Allocator,
        limits: Limits,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._state = state
        self._torch = torch
        self._allocator = allocator
        self._limits = limits
        self._clock = clock
        self._number = 0
        self.cost_seconds = 0.0
        """Seconds that the allocator took to answer the last time."""

    def hello(self, *, obeying: bool) -> Message:
        """Return who this is. Changes while the app runs: torch is imported, CUDA comes up, a need is declared."""
        return protocol.hello(
            library=gpuagent_client.__version__,
            pid=os.getpid(),
            parent_pid=os.getppid(),
            program=_program(),
            python=platform.python_version(),
            torch=self._torch.version(),
            app=self._state.settings.app,
            backend=self._torch.backend(),
            commands=sorted(self._state.settings.obeyed) if obeying else (),
            declared=self._state.declared,
            interval_seconds=self._state.settings.interval_seconds,
            frameworks=frameworks(sys.modules, os.environ),
        )

    def stats(self) -> Message:
        """Return the allocator's figures of now. A limit that the app wants is set on GPUs that it has begun to use."""
        started = self._clock()
        reading = self._allocator.read()
        self.cost_seconds = self._clock() - started
        self._apply_wanted_limit(reading)
        self._number += 1
        return protocol.stats(
            number=self._number,
            timestamp=round(time.time(), 3),
            initialized=reading.initialized,
            devices=[to_wire(device) for device in reading.devices],
            error=reading.error,
        )

    def skip(self) -> None:
        """Skip figures that the agent would not read: the gap in `seq` tells it how many."""
        self._number += 1

    def pause_seconds(self, interval_seconds: float) -> float:
        """Return the pause until the next figures: longer where a busy allocator kept this one waiting."""
        spared = min(self.cost_seconds / COST_SHARE, MAX_SPARED_SECONDS)
        return max(interval_seconds, spared)

    def _apply_wanted_limit(self, reading: Reading) -> None:
        try:
            self._limits.apply_wanted(reading.devices)
        except NoLimits as error:
            warn_once("limit the allocator", str(error))


def _program() -> str:
    program = sys.argv[0] if getattr(sys, "argv", None) else ""
    return program[:MAX_PROGRAM_CHARACTERS]


WELCOME_SECONDS = 10.0
"""Time to wait for the welcome: a hanging agent still accepts connections, because its kernel does."""
RUNNING_POLL_SECONDS = 0.05
"""Interval at which the answer of a running command is polled."""


class Session:
    """Serve one connection until it is lost; the client's thread runs it."""

    def __init__(
        self,
        connection: Connection,
        state: ClientState,
        reporter: Reporter,
        commands: CommandRunner,
        *,
        trusted: bool,
        stopping: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._state = state
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
        self._send_hello()
        due: float | None = None
        while not self._stopping():
            now = self._clock()
            if self._interval is None:
                if now >= opened + WELCOME_SECONDS:
                    raise ConnectionLost("the agent does not answer")
            elif due is None or now >= due:
                self._report()
                due = now + self._reporter.pause_seconds(self._interval)
            self._send_answers()
            wait_seconds = (opened + WELCOME_SECONDS if due is None else due) - self._clock()
            if self._commands.running or self._answers:
                wait_seconds = min(wait_seconds, RUNNING_POLL_SECONDS)
            before = self._interval
            for message in self._connection.receive(wait_seconds):
                self._handle(message)
            if self._interval != before:
                due = None
        self._send_answers()

    def _report(self) -> None:
        """Send figures and what else is new; an agent that has not read the last figures gets none now."""
        if self._connection.has_unsent:
            self._connection.flush()
        if self._connection.has_unsent:
            self._reporter.skip()
            return
        self._send_hello()
        self._connection.send(encode(self._reporter.stats()))
        while self._state.events:
            event = self._state.events.popleft()
            self._connection.send(encode(protocol.event(event.name, event.fields)))

    def _send_hello(self) -> None:
        hello = self._reporter.hello(obeying=self._trusted)
        if hello != self._hello:
            self._hello = hello
            self._connection.send(encode(hello))

    def _handle(self, message: Message) -> None:
        parsed = protocol.read(message)
        if isinstance(parsed, Welcome):
            self._interval = self._state.settings.interval_seconds or parsed.interval_seconds
        elif isinstance(parsed, Level):
            self._state.level = parsed
        elif isinstance(parsed, Command) and parsed.name == "rate":
            self._answers.append(self._change_rate(parsed))
        elif isinstance(parsed, Command):
            self._commands.submit(parsed, trusted=self._trusted, reply=self._answers.append)

    def _change_rate(self, command: Command) -> Message:
        """Change the rate for as long as this connection lasts; another server's word does not count."""
        if not self._trusted or "rate" not in self._state.settings.obeyed:
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
