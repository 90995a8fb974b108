"""Apps with the embedded client, each a process of its own: they tell figures, and come back when they are cut off.

Started by the stage as a program: `python -m tests.torture.crowd SOCKET COUNT [UID]`. It ends with its standard input.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import PIPE, Popen

from tests.fakes.embedded import FakeApp, stats

APP = "crowd"
_BETWEEN_SECONDS = 0.25


def _live(path: Path) -> None:
    """One app: connect, tell, listen; after an end, connect anew."""
    while True:
        with suppress(OSError, ValueError, KeyError), FakeApp(path) as app:
            if not app.meet(app=APP, caps=[]):
                continue
            app.socket.setblocking(False)
            while True:
                app.send(stats())
                with suppress(BlockingIOError):
                    if not app.socket.recv(65536):
                        break
                time.sleep(_BETWEEN_SECONDS)
        time.sleep(_BETWEEN_SECONDS)


def main(path: Path, count: int, uid: int | None) -> None:
    """Fork the apps, and wait."""
    if uid is not None:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    pids = []
    for _ in range(count):
        pid = os.fork()
        if not pid:
            _live(path)
        pids.append(pid)
    sys.stdin.read()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@contextmanager
def crowd(path: Path, count: int, uid: int | None) -> Iterator[Popen[bytes]]:
    """So many apps at a socket, under another user where that can be had."""
    words = [sys.executable, "-m", "tests.torture.crowd", str(path), str(count)]
    process = Popen([*words, str(uid)] if uid is not None else words, stdin=PIPE, cwd=Path(__file__).parents[2])
    try:
        yield process
    finally:
        process.communicate()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
