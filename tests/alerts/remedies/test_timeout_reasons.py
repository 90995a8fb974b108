"""What a refusal says where a look at all processes has not come back in time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuagent.procfs.hanging import HangingReads
from gpuagent_alerts.remedies.facts.timeout_reasons import MANY_PROCESSES, why_slow


@pytest.mark.parametrize(
    ("processes", "said"),
    [
        (MANY_PROCESSES, f": uid {os.geteuid()} has {MANY_PROCESSES} of {MANY_PROCESSES} processes, which have to end"),
        (MANY_PROCESSES - 1, ""),
    ],
)
def test_who_has_very_many_processes(tmp_path: Path, processes: int, said: str) -> None:
    """The user with very many processes, zombies too, is named; nothing is said to hang that does not."""
    for number in range(processes):
        (tmp_path / str(number + 1)).mkdir()
    (tmp_path / "sys").mkdir()
    told = why_slow(10, HangingReads(), str(tmp_path))
    assert told.startswith(f"/proc, or a path of remedies.never, does not answer within 10 s{said}")
    assert ("have to end first" in told) is bool(said)
    assert "hangs" not in told


def test_a_process_that_hangs_comes_first(tmp_path: Path) -> None:
    """Where a read waits in vain, that process is named, whoever else has many."""
    now = [0.0]
    reads = HangingReads(lambda: now[0])
    with reads.reading(os.getpid(), "stat"):
        now[0] = 60.0
        assert why_slow(10, reads, str(tmp_path)).startswith(f"pid {os.getpid()} of uid {os.geteuid()} hangs")
