"""Troubles of the machine: /proc, limits, disk, clocks, and what signals do to the agent itself."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from tests.integration.agent import GPUAGENT
from tests.integration.waiting import alongside, until
from tests.torture import times
from tests.torture.stage import Stage
from tests.torture.trouble import Cost, Trouble, shows

DAY = 24 * 3600
_IN_MEMORY = shows("gpuagent_store_healthy", 0)
_HELD_UP = frozenset({Cost.SCRAPES, Cost.TCP, Cost.LATE, Cost.GPUS, Cost.APPS})
_FORKS = """
import os, socket, sys
for number in range(int(sys.argv[2])):
    pid = os.fork()
    if not pid:
        if number % 20 == 0:
            try:
                door = socket.socket(socket.AF_UNIX); door.settimeout(1); door.connect(sys.argv[1]); door.send(b"{")
            except OSError:
                pass
        os._exit(0)
    os.waitpid(pid, 0)
"""


def _switch(name: str, value: int) -> Callable[[Stage], AbstractContextManager[None]]:
    return lambda stage: stage.shim.turned(name, value)


@contextmanager
def _few_descriptors(stage: Stage) -> Iterator[None]:
    """64, of which all but two are taken: by what it needs and by connections that ask for nothing."""
    before = resource.prlimit(stage.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(stage.pid, resource.RLIMIT_NOFILE, (min(64, stage.size().descriptors + 2), before[1]))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):  # it may have been told to stop
            resource.prlimit(stage.pid, resource.RLIMIT_NOFILE, before)


@contextmanager
def _no_more_memory(stage: Stage) -> Iterator[None]:
    """The address space may not grow by a byte. When that is over, the agent takes its reserve of 16 MiB again."""
    before = resource.prlimit(stage.pid, resource.RLIMIT_AS)
    size = _address_space_bytes(stage.pid)
    resource.prlimit(stage.pid, resource.RLIMIT_AS, (size, before[1]))
    try:
        yield
    finally:
        with suppress(ProcessLookupError, FileNotFoundError):  # it may have been told to stop
            resource.prlimit(stage.pid, resource.RLIMIT_AS, before)
            until(lambda: _address_space_bytes(stage.pid) > size - 8 * 2**20, "the reserve is there again", 15)


def _address_space_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def _starved(stage: Stage) -> Iterator[None]:
    """It runs for 5 ms of each 100 ms: stopped and continued, as a cgroup with a quota of 5 % does."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(0.005):
            os.kill(stage.pid, signal.SIGSTOP)
            ended.wait(0.095)
            os.kill(stage.pid, signal.SIGCONT)

    try:
        with alongside(run, ended, "starving the agent"):
            yield
    finally:
        os.kill(stage.pid, signal.SIGCONT)


@contextmanager
def _reloads(stage: Stage) -> Iterator[None]:
    """A hundred SIGHUPs, one after the other."""
    for _ in range(100):
        os.kill(stage.pid, signal.SIGHUP)
        time.sleep(0.002)
    yield


@contextmanager
def _second_agent(stage: Stage) -> Iterator[None]:
    """Another one with the same configuration says so and ends."""
    config = stage.folder / "gpuagent.yaml"
    started = subprocess.run(
        [*GPUAGENT, "run", "--config", str(config), "--simulate", "healthy"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert started.returncode == 71, started
    assert "another gpuagent is running" in started.stderr
    yield


@contextmanager
def _forks(stage: Stage) -> Iterator[None]:
    """Processes that end as soon as they begin; some of them have called the agent."""
    count = times(2_000, 20_000)
    process = subprocess.Popen([sys.executable, "-c", _FORKS, str(stage.client_socket), str(count)])
    try:
        yield
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()


@contextmanager
def _suspended(stage: Stage) -> Iterator[None]:
    """An hour that the machine slept: it is over for the clocks that go on meanwhile, and cannot be taken back."""
    for clock in ("boot_offset_s", "wall_offset_s"):
        stage.shim.set(clock, stage.shim.get(clock) + 3600)
    yield


ALL = (
    Trouble("/proc refuses every second file", _switch("proc_errno", errno.EACCES)),
    Trouble("processes are gone between two reads", _switch("proc_errno", errno.ESRCH)),
    Trouble("64 descriptors", _few_descriptors, frozenset({Cost.SCRAPES, Cost.TCP, Cost.APPS})),
    Trouble("short processes by the thousand", _forks),
    Trouble("the disk is full", _switch("write_errno", errno.ENOSPC), sign=_IN_MEMORY),
    Trouble("the disk fails", _switch("write_errno", errno.EIO), sign=_IN_MEMORY),
    Trouble("the disk is read-only", _switch("write_errno", errno.EROFS), sign=_IN_MEMORY),
    Trouble("nothing can be opened on the disk", _switch("open_errno", errno.EROFS)),
    Trouble("the disk is slow to sync", _switch("fsync_ms", 300)),
    Trouble("the clock is a day ahead", _switch("wall_offset_s", DAY)),
    Trouble("the clock is a day behind", _switch("wall_offset_s", -DAY)),
    Trouble("suspended for an hour", _suspended),
    Trouble("no more memory", _no_more_memory, least_seconds=3.0, broken_off=3),
    Trouble("a core's twentieth", _starved, _HELD_UP, least_seconds=3.0),
    Trouble("a storm of SIGHUP", _reloads, frozenset({Cost.GPUS})),
    Trouble("a second agent", _second_agent),
    Trouble("names are slow to look up", _switch("dns_ms", 1500), frozenset({Cost.OTHER})),
)
