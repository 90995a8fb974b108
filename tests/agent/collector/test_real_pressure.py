"""Real memory pressure in a small cgroup, read by the code that reads a machine: within its limit it is one.

On a kernel that has memory in the hierarchy of version 1, that limits and the pressure is still told by version 2.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from gpuagent.collector.memory_watch import MemoryWatch
from gpuagent.core.hardware import HostMemory, MemoryOutlook, MemoryPressure, StallRisk
from tests.agent.collector.cgroup_memory import read_cgroup_memory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

LIMIT = 256 * 2**20
INTERVAL = 0.25
"""Seconds between two readings, as on a node under pressure."""
CGROUPS = Path("/sys/fs/cgroup")
NAME = f"gpuagent-test-{os.getpid()}"
ENTER = """
import mmap, os, sys, time
for folder in sys.argv[1].split(":"):
    with open(folder + "/cgroup.procs", "w") as procs:
        procs.write("0")
for name in sys.argv[2], sys.argv[2] + ".large":
    with open(name, "rb") as opened:  # what others have read of it counts for them
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
with open(sys.argv[2], "rb") as opened:
    file = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
def read_all():
    return sum(file[page] for page in range(0, len(file), 4096))
"""
GROWS = (
    ENTER
    + """
held = []
while True:
    held.append(b"x" * 2**22)
    read_all()
    time.sleep(0.1)
"""
)
"""A model server that reads its mapped weights for each request, and leaks."""
MAPPED = (
    ENTER
    + """
held = b"x" * (48 * 2**20)
while True:
    read_all()
    time.sleep(0.05)
"""
)
"""The same without the leak: weights and what it holds fit in."""
CACHED = (
    ENTER
    + """
held = b"x" * (48 * 2**20)
while True:
    with open(sys.argv[2] + ".large", "rb", buffering=0) as large:
        while large.read(2**20):
            pass
    read_all()
    time.sleep(0.05)
"""
)
"""It reads a file that is larger than all of the memory: the page cache is always full."""


@dataclass
class Group:
    """A cgroup with a limit, and how it is read."""

    folders: tuple[Path, ...]
    read: Callable[[], tuple[HostMemory, MemoryPressure] | None]


class Story(NamedTuple):
    """What was seen of a program."""

    outlooks: list[MemoryOutlook]
    status: int | None
    """Status with which it ended: -9 where the kernel ended it because there was no more memory; None if it lives."""


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    """A cgroup of 256 MiB without swap, so that this machine is never in danger."""
    if os.geteuid() != 0:
        pytest.skip("needs root to make a cgroup")
    if not Path("/proc/pressure/memory").exists():
        pytest.skip("this kernel has no pressure stall information")
    controllers = CGROUPS / "cgroup.controllers"
    if controllers.exists() and "memory" in controllers.read_text().split():
        made = _version_2()
    elif (CGROUPS / "memory/memory.limit_in_bytes").exists() and (CGROUPS / "unified/cgroup.procs").exists():
        made = _hybrid(tmp_path)
    else:
        pytest.skip("no cgroup here can limit memory and tell of pressure")
    try:
        yield made
    finally:
        for folder in made.folders:
            folder.rmdir()


def _version_2() -> Group:
    if "memory" not in (CGROUPS / "cgroup.subtree_control").read_text().split():
        try:
            (CGROUPS / "cgroup.subtree_control").write_text("+memory")
        except OSError as error:
            pytest.skip(f"the memory controller cannot be used below {CGROUPS}: {error}")
    folder = CGROUPS / NAME
    folder.mkdir()
    (folder / "memory.max").write_text(str(LIMIT))
    (folder / "memory.high").write_text(str(LIMIT - 2**24))
    if (folder / "memory.swap.max").exists():
        (folder / "memory.swap.max").write_text("0")
    return Group((folder,), lambda: read_cgroup_memory(folder))


def _hybrid(tmp_path: Path) -> Group:
    """Limit in one hierarchy, pressure in the other; reaching the limit stands for direct reclaim."""
    limits, pressure, view = CGROUPS / "memory" / NAME, CGROUPS / "unified" / NAME, tmp_path / "cgroup"
    for folder in (limits, pressure, view):
        folder.mkdir()
    (limits / "memory.limit_in_bytes").write_text(str(LIMIT))
    (view / "memory.max").symlink_to(limits / "memory.limit_in_bytes")
    (view / "memory.current").symlink_to(limits / "memory.usage_in_bytes")
    (view / "memory.pressure").symlink_to(pressure / "memory.pressure")

    def read() -> tuple[HostMemory, MemoryPressure] | None:
        reclaims = (limits / "memory.failcnt").read_text().strip()
        (view / "memory.stat").write_text(f"{(limits / 'memory.stat').read_text()}pgscan_direct {reclaims}\n")
        return read_cgroup_memory(view)

    return Group((limits, pressure), read)


def watch(group: Group, program: str, weights: Path, seconds: float, *, acts: bool = False) -> Story:
    """Run a program in the cgroup until it ends, for so many seconds at most; one that `acts` ends it by SIGTERM."""
    folders = ":".join(str(folder) for folder in group.folders)
    outlooks: list[MemoryOutlook] = []
    memory_watch = MemoryWatch()
    process = subprocess.Popen([sys.executable, "-I", "-c", program, folders, str(weights)])
    try:
        begun = time.monotonic()
        while process.poll() is None and (now := time.monotonic()) < begun + seconds:
            read = group.read()
            assert read is not None
            outlook = memory_watch.observe(now, *read)
            if outlook is not None:
                outlooks.append(outlook)
                if acts and outlook.risk is StallRisk.IMMINENT:
                    process.terminate()
                    process.wait(30)
            time.sleep(INTERVAL)
        return Story(outlooks, process.poll())
    finally:
        process.kill()
        process.wait(30)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A file of 96 MiB that programs map, and one of 400 MiB beside it."""
    file = tmp_path / "weights"
    with file.open("wb") as written:
        for _ in range(96):
            written.write(os.urandom(2**20))
    with file.with_suffix(".large").open("wb") as written:
        written.truncate(400 * 2**20)
    os.sync()
    return file


def test_a_stall_is_told_before_memory_is_gone(group: Group, weights: Path) -> None:
    """A program that leaks beside weights that it needs is ended by SIGTERM, before the kernel has to do it."""
    story = watch(group, GROWS, weights, 60, acts=True)

    assert story.status == -signal.SIGTERM
    assert story.outlooks[0].risk is StallRisk.NONE
    assert story.outlooks[-1].risk is StallRisk.IMMINENT


@pytest.mark.parametrize("program", [MAPPED, CACHED], ids=["mapped", "page cache"])
def test_a_healthy_program_is_none(group: Group, weights: Path, program: str) -> None:
    """Mapped weights that fit in, and a page cache that is always full, are no stall."""
    story = watch(group, program, weights, 8)

    assert story.status is None
    assert StallRisk.IMMINENT not in {outlook.risk for outlook in story.outlooks}
