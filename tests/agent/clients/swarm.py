"""Many real processes that connect at once, for each a user of its own choice.

Started as a program: `python swarm.py SOCKET COUNT UID KIND`. Prints the pids as JSON once all are connected (and
welcomed, where they say hello), and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE

SILENT, TALKING, FOREIGN, FLOOD = "silent", "talking", "foreign", "flood"
"""Say nothing; say hello; say nothing from a user namespace of their own; connect and hang up for ever."""
_CLONE_NEWUSER = 0x10000000
_PR_SET_PDEATHSIG = 1


def _connected(path: str) -> socket.socket:
    """A connection; one that is refused because the queue is full is tried again."""
    while True:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(path)
        except OSError:
            sock.close()
            continue
        return sock


def _live(path: str, uid: int, kind: str, ready: int) -> None:
    """One app, in its own process."""
    libc = ctypes.CDLL(None, use_errno=True)
    if uid:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    if kind == FOREIGN and libc.unshare(_CLONE_NEWUSER):
        raise OSError(ctypes.get_errno(), "unshare")
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with _connected(path) as sock:
        if kind == TALKING:
            hello = {"v": 1, "t": "hello", "pid": os.getpid(), "app": f"user {uid}"}
            with contextlib.suppress(ConnectionError):
                sock.sendall(json.dumps(hello).encode() + b"\n")
                sock.recv(65536)  # the welcome, or the end
        os.write(ready, b".")
        if kind != FLOOD:
            signal.pause()
    while True:
        _connected(path).close()


def main(path: str, count: int, uid: int, kind: str) -> None:
    """Fork the apps, tell their pids, and wait."""
    ready, ready_end = os.pipe()
    pids = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            try:
                _live(path, uid, kind, ready_end)
            finally:
                os._exit(0)
        pids.append(pid)
    os.close(ready_end)
    told = 0
    while told < count:
        some = os.read(ready, count)
        assert some, "an app has failed"
        told += len(some)
    sys.stdout.write(json.dumps(pids) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@asynccontextmanager
async def swarm(path: Path, count: int, uid: int, kind: str) -> AsyncIterator[list[int]]:
    """So many processes of a user; yields their pids once they are connected, the oldest first."""
    command = [sys.executable, __file__, str(path), str(count), str(uid), kind]
    with await asyncio.to_thread(lambda: subprocess.Popen(command, stdin=PIPE, stdout=PIPE)) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield json.loads(await asyncio.to_thread(process.stdout.readline))
        finally:
            process.stdin.close()
            await asyncio.to_thread(process.wait)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
