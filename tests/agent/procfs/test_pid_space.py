"""Whether the kernel may have given a number twice."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpuagent.procfs.pid_space import PidSpace


def proc(folder: Path, forks: str, numbers: str = "1000\n") -> PidSpace:
    """A /proc with these counters."""
    (folder / "stat").write_text(f"cpu 1 2 3\nprocesses {forks}\nprocs_running 1\n")
    (folder / "sys" / "kernel").mkdir(parents=True, exist_ok=True)
    (folder / "sys" / "kernel" / "pid_max").write_text(numbers)
    return PidSpace(str(folder))


@pytest.mark.parametrize(("now", "wrapped"), [("7000", False), ("7499", False), ("7500", True), ("9000", True)])
def test_after_half_of_all_numbers_one_may_come_again(tmp_path: Path, now: str, wrapped: bool) -> None:
    """KILL-01: numbers are given in turn, so that one comes again only after about as many forks."""
    assert proc(tmp_path, now).may_have_wrapped(7000) == wrapped


@pytest.mark.parametrize(
    ("forks", "numbers", "then"), [("x", "1000", 1), ("5", "x", 1), ("5", "1000", None), ("5", "1000", 6)]
)
def test_a_counter_that_is_missing_proves_nothing(tmp_path: Path, forks: str, numbers: str, then: int | None) -> None:
    """What cannot be read, or has gone backwards, may have been anything."""
    assert proc(tmp_path, forks, numbers).may_have_wrapped(then)


def test_the_real_counter_counts_forks() -> None:
    """The kernel's own counter rises with every process."""
    space = PidSpace()
    before = space.forks()
    subprocess.run(["true"], check=True)
    after = space.forks()
    assert before is not None
    assert after is not None
    assert after > before
    assert not space.may_have_wrapped(before)
