"""A process whose threads run in different containers is in none of them for certain."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuagent.procfs.credentials import thread_elsewhere
from gpuagent.procfs.files import RealProc
from tests.alerts.remedies.processes import refusals_of

THREADS = """
import threading, time
for _ in range(3):
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
print('ready', flush=True)
time.sleep(1000)
"""
CONTAINERS = "/docker/" + "a" * 64, "/docker/" + "b" * 64


@pytest.fixture
def scattered() -> Iterator[int]:
    """A process whose first thread alone is in one container, by version 1, and all others in another."""
    base = Path("/sys/fs/cgroup/pids")
    if not (base / "tasks").exists() or os.geteuid():
        pytest.skip("needs root and a hierarchy of version 1")
    folders = [base / f"docker-{os.getpid()}" / each.removeprefix("/docker/") for each in CONTAINERS]
    for folder in folders:
        folder.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", THREADS], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            (folders[1] / "cgroup.procs").write_text(str(process.pid))
            (folders[0] / "tasks").write_text(str(process.pid))
            yield process.pid
        finally:
            process.kill()
            process.wait()
            for folder in (*folders, folders[0].parent):
                folder.rmdir()


def test_threads_in_different_containers(scattered: int) -> None:
    """KILL-03: whatever the first thread's container permits, the others are not there."""
    found = thread_elsewhere(RealProc(), scattered, RealProc().read(scattered, "cgroup"))
    assert "runs in another unit, container or job" in found
    assert found in refusals_of(scattered)


def test_threads_in_one_place() -> None:
    """A process whose threads all run in one place is what its first thread says."""
    with subprocess.Popen([sys.executable, "-c", THREADS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        assert thread_elsewhere(RealProc(), process.pid, RealProc().read(process.pid, "cgroup")) == ""
        process.kill()
    assert thread_elsewhere(RealProc(), process.pid, b"0::/\n") == ""
