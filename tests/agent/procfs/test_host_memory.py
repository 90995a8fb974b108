"""Memory of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuagent.core.hardware import HostMemory, MemoryPressure
from gpuagent.procfs.host_memory import read_host_memory, read_memory_pressure
from tests.agent.collector.cgroup_memory import read_cgroup_memory

KIB = 1024
MEMINFO = """\
MemTotal:       125000000 kB
MemFree:         4000000 kB
MemAvailable:   60000000 kB
Buffers:          100000 kB
Cached:         58000000 kB
SwapTotal:      16000000 kB
SwapFree:       15000000 kB
Shmem:           1000000 kB
SUnreclaim:       500000 kB
KernelStack:       10000 kB
PageTables:        20000 kB
Percpu:             5000 kB
HugePages_Total:       4
HugePages_Free:        3
Hugepagesize:       2048 kB
"""


def test_this_machine() -> None:
    """NUM-05: tells of itself, and what is free is available."""
    found = read_host_memory()

    assert found
    assert 0 < found.available_bytes <= found.total_bytes
    assert found.page_cache_bytes < found.total_bytes


def test_what_is_what(tmp_path: Path) -> None:
    """NUM-05: shared memory is no page cache, huge pages are set aside, and counts are no sizes."""
    (tmp_path / "meminfo").write_text(MEMINFO)
    found = read_host_memory(tmp_path)

    assert found
    assert found.available_bytes == 60_000_000 * KIB
    assert found.page_cache_bytes == 57_100_000 * KIB
    assert found.kernel_bytes == 535_000 * KIB
    assert (found.swap_total_bytes, found.swap_free_bytes) == (16_000_000 * KIB, 15_000_000 * KIB)
    assert found.huge_pages_free_bytes == 3 * 2048 * KIB


@pytest.mark.parametrize(
    "text", ["", "MemTotal: 5 kB\n", "MemTotal: 5 kB\nMemAvailable: 6 kB\n", "MemTotal:\n", "\xff"]
)
def test_what_cannot_be_true_is_not_told(tmp_path: Path, text: str) -> None:
    """NUM-05: no figure is better than a wrong one."""
    (tmp_path / "meminfo").write_text(text, encoding="latin-1")

    assert read_host_memory(tmp_path) is None


def test_no_proc(tmp_path: Path) -> None:
    """NUM-05: nothing is told, and nothing is raised."""
    assert read_host_memory(tmp_path) is None
    assert read_memory_pressure(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("some avg10=12.50 total=5000000\nfull avg10=3.00 avg60=0.00 total=1500000\n", (0.125, 0.03, 5.0, 1.5)),
        ("some avg60=1.00 avg10=12.50\nfull avg10=3.00\n", (0.125, 0.03)),
        ("some avg10=12.50\nfull avg60=1\n", None),
        ("some\n", None),
        ("", None),
    ],
)
def test_pressure(tmp_path: Path, text: str, expected: tuple[float, ...] | None) -> None:
    """NUM-05: as shares of the last 10 s; what has another form is not guessed at."""
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure" / "memory").write_text(text)

    assert read_memory_pressure(tmp_path) == (MemoryPressure(*expected) if expected else None)  # type: ignore[arg-type]


def test_direct_reclaim(tmp_path: Path) -> None:
    """NUM-05: what programs had to free themselves is counted over all zones, and compaction with it."""
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure" / "memory").write_text("some avg10=0.00\nfull avg10=0.00\n")
    (tmp_path / "vmstat").write_text("allocstall_dma 1\nallocstall_normal 40\npgscan_direct 9\ncompact_stall 2\n")

    assert read_memory_pressure(tmp_path) == MemoryPressure(0, 0, direct_reclaims=43)


def test_a_cgroup_is_read_like_a_machine(tmp_path: Path) -> None:
    """NUM-05: its lower limit is all that there is, and its page cache can be given up."""
    for name, text in {
        "memory.max": "max\n", "memory.high": "1000\n", "memory.current": "900\n",
        "memory.pressure": "some avg10=5.00 total=7000000\nfull avg10=1.00 total=1000000\n",
        "memory.stat": "anon 500\nactive_file 100\ninactive_file 200\nslab_unreclaimable 10\npgscan_direct 3\n",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)

    assert read_cgroup_memory(tmp_path) == (
        HostMemory(1000, 400, 100, 300, 10),
        MemoryPressure(0.05, 0.01, 7.0, 1.0, 3),
    )


@pytest.mark.parametrize("missing", ["memory.high", "memory.current", "memory.pressure"])
def test_a_cgroup_without_limit_or_figures(tmp_path: Path, missing: str) -> None:
    """NUM-05: nothing is made up for it."""
    for name, text in {
        "memory.high": "1000\n", "memory.current": "900\n", "memory.pressure": "some avg10=0\nfull avg10=0\n",
    }.items():  # fmt: skip
        (tmp_path / name).write_text("max\n" if name == missing else text)

    assert read_cgroup_memory(tmp_path) is None
