"""Run a program for a message or a step: no shell, no capability, hardly an environment, and an end."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpuagent.core.background import in_daemon_thread
from gpuagent_alerts.programs.marked import VARIABLE, end_marked

CONFINED = (sys.executable, "-I", "-S", str(Path(__file__).with_name("drop_privileges.py")))
"""In front of a command: it is run without a capability."""
_CONTAIN = str(Path(__file__).with_name("subreaper.py"))
_END_SECONDS = 10.0
"""Time that a container has to end all that its program has started; as much again is given to what is left of both."""
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH of every program."""
WORKING_DIRECTORY = "/"
"""Working directory of every program."""
ENVIRONMENT = {"PATH": SEARCH_PATH, "LANG": "C.UTF-8"}
"""Environment of every program."""
_KILL_SECONDS = 2.0
_KEPT_BYTES = 4096
_LAST_WORDS_SECONDS = 0.5
"""Time to read the last of standard error, which children of the program may hold open."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """Result of a program."""

    status: int | None
    """Its exit status, negative for a signal; None when it took too long and was killed."""
    said: str
    """The end of what it wrote to its standard error."""
    whole: bool = True
    """Whether `said` is all that it wrote there."""


async def run_program(
    command: Sequence[str], stdin: bytes, timeout_seconds: float, *, contained: bool = False
) -> ProgramResult:
    """Run a command to its end, or kill it and all of its process group. Raises OSError if Python cannot be started.

    Where it is `contained`, nothing that it starts outlives it, whichever group or session that is in, and should it
    kill what contains it: then all that has kept its environment is ended.
    """
    word = secrets.token_hex()
    python = (sys.executable, "-I", "-S")
    container = (*python, _CONTAIN, str(os.getpid())) if contained else ()
    transport, watch = await asyncio.get_running_loop().subprocess_exec(
        _Watch,
        *(*container, *CONFINED, *command),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        cwd=WORKING_DIRECTORY,
        env={**ENVIRONMENT, VARIABLE: word} if contained else ENVIRONMENT,
        start_new_session=True,
    )
    try:
        _feed(transport, stdin)
        async with asyncio.timeout(timeout_seconds):
            await watch.exited.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                await watch.silent.wait()
    except TimeoutError:
        pass
    finally:
        status = transport.get_returncode()
        if status is None and contained:
            with suppress(ProcessLookupError):
                os.kill(transport.get_pid(), signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(_END_SECONDS):
                    await watch.exited.wait()
        if status is None and not watch.exited.is_set():
            with suppress(ProcessLookupError):
                os.killpg(transport.get_pid(), signal.SIGKILL)
            await asyncio.shield(watch.exited.wait())
        transport.close()
        if contained and (status is None or status < 0):
            with suppress(TimeoutError):
                async with asyncio.timeout(_END_SECONDS):  # no thread that is joined at exit: it may hang
                    await in_daemon_thread(partial(end_marked, word), "end of a program")
    return ProgramResult(status, watch.tail.decode("utf-8", "replace"), watch.whole)


async def end_program(process: asyncio.subprocess.Process) -> None:
    """Send SIGKILL to a program and wait a moment for its end: one that hangs in the kernel is left to it."""
    with suppress(ProcessLookupError):
        process.kill()
    with suppress(TimeoutError):
        async with asyncio.timeout(_KILL_SECONDS):
            await process.wait()


def _feed(transport: asyncio.SubprocessTransport, data: bytes) -> None:
    pipe = transport.get_pipe_transport(0)
    if isinstance(pipe, asyncio.WriteTransport):
        pipe.write(data)
        pipe.close()  # once all of it is read; it need not be


class _Watch(asyncio.SubprocessProtocol):
    """Tells of the program's end by itself, whatever it left behind holds its pipes open.

    asyncio's own Process waits for the pipes too.
    """

    def __init__(self) -> None:
        self.tail = bytearray()
        self.whole = True
        self.exited = asyncio.Event()
        self.silent = asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:  # noqa: ARG002 (asyncio's)
        self.tail += data
        self.whole = self.whole and len(self.tail) <= _KEPT_BYTES
        del self.tail[:-_KEPT_BYTES]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's)
        if fd == 2:
            self.silent.set()

    def process_exited(self) -> None:
        self.exited.set()
