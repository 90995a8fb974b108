"""Whether the kernel may have given a number twice."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpuagent.procfs.machine import SINCE_BOOT, PidMark, PidSpace


def proc(folder: Path, forks: str, numbers: str = "1000\n") -> PidSpace:
    """A /proc with these counters."""
    (folder / "stat").write_text(f"cpu 1 2 3\nprocesses {forks}\nprocs_running 1\n")
    (folder / "sys" / "kernel").mkdir(parents=True, exist_ok=True)
    (folder / "sys" / "kernel" / "pid_max").write_text(numbers)
    return PidSpace(str(folder))


@pytest.mark.parametrize(("now", "wrapped"), [("7000", False), ("7499", False), ("7500", True), ("9000", True)])
def test_after_half_of_all_numbers_one_may_come_again(tmp_path: Path, now: str, wrapped: bool) -> None:
    """KILL-01: numbers are given in turn, so that one comes again only after about as many forks."""
    assert proc(tmp_path, now).may_have_wrapped(PidMark(7000, 1000)) == wrapped


@pytest.mark.parametrize(
    ("forks", "numbers", "then"), [("x", "1000", 1), ("5", "x", 1), ("5", "1000", None), ("5", "1000", 6)]
)
def test_a_counter_that_is_missing_proves_nothing(tmp_path: Path, forks: str, numbers: str, then: int | None) -> None:
    """What cannot be read, or has gone backwards, may have been anything."""
    space = proc(tmp_path, forks, numbers)
    assert space.may_have_wrapped(PidMark(then, 1000))
    assert space.may_have_wrapped(PidMark(1, None))


def test_the_real_counter_counts_forks() -> None:
    """The kernel's own counter rises with every process."""
    space = PidSpace()
    before = space.mark()
    subprocess.run(["true"], check=True)
    after = space.mark()
    assert before.forks is not None
    assert after.forks is not None
    assert after.forks > before.forks
    assert not space.may_have_wrapped(before)


@pytest.mark.parametrize("known", ["by the mark", "by itself"])
def test_more_numbers_later_hide_no_wrap(tmp_path: Path, known: str) -> None:
    """KILL-01: while `pid_max` was smaller, numbers came round sooner; raising it later changes nothing of that."""
    space = proc(tmp_path, "7000", "1000\n")
    before = space.mark()
    assert before == PidMark(7000, 1000)
    proc(tmp_path, "7500", "4194304\n")
    assert (PidSpace(str(tmp_path)) if known == "by the mark" else space).may_have_wrapped(before)
    assert space.mark() == PidMark(7500, 1000)


@pytest.mark.parametrize(("forks", "wrapped"), [("2097151", False), ("2097152", True)])
def test_since_the_boot(tmp_path: Path, forks: str, wrapped: bool) -> None:
    """What `pid_max` was since the boot nobody has noted: half of what it is now counts."""
    assert proc(tmp_path, forks, "4194304\n").may_have_wrapped(SINCE_BOOT) == wrapped
