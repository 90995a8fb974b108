"""Commands on a terminal of their own, as a person runs them."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.integration.agent import GPUAGENT, Agent


@contextmanager
def terminal(agent: Agent, *words: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A command on a terminal of its own; the descriptor is the person's end."""
    ours, theirs = pty.openpty()
    command = [*GPUAGENT, *words, "--socket", str(agent.control_socket)]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    try:
        yield ours, process
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(descriptor: int, text: bytes) -> bytes:
    """What the terminal shows up to this text; b"" for its end."""
    seen = b""
    while not text or text not in seen:
        try:
            more = os.read(descriptor, 4096)
        except OSError:  # EIO: the other end is closed
            break
        if not more:
            break
        seen += more
    return seen
