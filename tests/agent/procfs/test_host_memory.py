"""Memory of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuagent.core.hardware import MemoryPressure
from gpuagent.procfs.host_memory import read_host_memory, read_memory_pressure

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
        ("some avg10=12.50 avg60=1.00 total=5\nfull avg10=3.00 avg60=0.00 total=1\n", (0.125, 0.03)),
        ("some avg60=1.00 avg10=12.50\nfull avg10=3.00\n", (0.125, 0.03)),
        ("some avg10=12.50\nfull avg60=1\n", None),
        ("some\n", None),
        ("", None),
    ],
)
def test_pressure(tmp_path: Path, text: str, expected: tuple[float, float] | None) -> None:
    """NUM-05: as shares of the last 10 s; what has another form is not guessed at."""
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure" / "memory").write_text(text)

    assert read_memory_pressure(tmp_path) == (MemoryPressure(*expected) if expected else None)
