"""Whether /proc/meminfo is the machine's, or a container's view of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuagent.doctor.finding import Level
from gpuagent.doctor.machine import memory_view
from gpuagent.procfs.host_memory import limited_view

PLAIN = "22 1 0:21 / /proc rw,nosuid - proc proc rw\n"
OVER = "99 22 0:50 /proc/meminfo /proc/meminfo rw,nosuid - fuse.lxcfs lxcfs rw,user_id=0\n"
GIB_IN_KB = 1024 * 1024


def seen(root: Path, mountinfo: str, total_gib: float, *nodes_gib: float) -> str:
    """What is said of a machine with this memory by /proc and by its NUMA nodes."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text(mountinfo)
    total = int(total_gib * GIB_IN_KB)
    (root / "proc/meminfo").write_text(f"MemTotal: {total} kB\nMemAvailable: {total // 2} kB\n")
    for number, size in enumerate(nodes_gib):
        folder = root / f"node/node{number}"
        folder.mkdir(parents=True)
        (folder / "meminfo").write_text(f"Node {number} MemTotal:       {int(size * GIB_IN_KB)} kB\n")
    return limited_view(root / "proc", root / "node")


@pytest.mark.parametrize(
    ("mountinfo", "total", "nodes", "said"),
    [
        pytest.param(PLAIN, 119.6, (119.6,), "", id="the host"),
        pytest.param(PLAIN, 512.0, (256.0, 256.0), "", id="two nodes"),
        pytest.param(PLAIN, 119.6, (), "", id="a kernel without NUMA"),
        pytest.param(PLAIN + OVER, 16.0, (119.6,), "fuse.lxcfs is mounted over /proc/meminfo", id="LXCFS"),
        pytest.param(PLAIN, 16.0, (119.6,), "/proc/meminfo tells 16.0 GiB in total", id="another view"),
    ],
)
def test_whose_memory_it_is(tmp_path: Path, mountinfo: str, total: float, nodes: tuple[float, ...], said: str) -> None:
    """NUM-05: a container's share is told from the machine's by the mount, or by what the nodes have together."""
    found = seen(tmp_path, mountinfo, total, *nodes)
    assert found.startswith(said)
    assert bool(found) is bool(said)


def test_this_machine_tells_its_own() -> None:
    """NUM-05: where the tests run, /proc/meminfo agrees with the nodes, or a reason is given."""
    found = limited_view()
    assert found == "" or "/proc/meminfo" in found


@pytest.mark.parametrize("view", ["", "fuse.lxcfs is mounted over /proc/meminfo"])
def test_the_doctor_says_whose_memory_is_seen(monkeypatch: pytest.MonkeyPatch, view: str) -> None:
    """NUM-05: an agent that sees its own share of the memory alone is a warning, with the way out."""
    monkeypatch.setattr("gpuagent.doctor.machine.limited_view", lambda: view)
    found = list(memory_view())
    assert [finding.text.startswith(view) for finding in found] == [True] * bool(view)
    assert all(finding.level is Level.WARNING and "on the host" in finding.advice for finding in found)
