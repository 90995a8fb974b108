"""The pause of a fork: foretold from the memory and from how long work takes, and short where that may be asked for."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuagent_client.blame import fork, pause
from gpuagent_client.errors import Refused

ALL_CAPABILITIES = "000001ffffffffff"


def proc(root: Path, capabilities: str = ALL_CAPABILITIES, seccomp: str = "0") -> Path:
    """Return a /proc in which this thread has these capabilities."""
    (root / "thread-self").mkdir()
    (root / "thread-self" / "status").write_text(f"Name:\tpython\nCapEff:\t{capabilities}\nSeccomp:\t{seccomp}\n")
    return root


@pytest.mark.parametrize(
    ("capabilities", "seccomp", "expected"),
    [
        (ALL_CAPABILITIES, "0", True),
        (f"{1 << 23:016x}", "0", True),
        (f"{~(1 << 23) & 0x1FFFFFFFFFF:016x}", "0", False),
        (ALL_CAPABILITIES, "2", False),
        ("?", "0", False),
    ],
    ids=["root", "that capability alone", "all but that one", "a filter", "not told"],
)
def test_priority_is_asked_for_only_where_nothing_can_happen(
    capabilities: str, seccomp: str, expected: bool, tmp_path: Path
) -> None:
    """A seccomp filter may end a process that makes a call which it does not allow."""
    assert pause.can_raise_priority(proc(tmp_path, capabilities, seccomp)) is expected
    assert not pause.can_raise_priority(tmp_path / "nowhere")


def test_priority_ends_with_the_fork(tmp_path: Path) -> None:
    """Neither the app's thread nor the child keeps it; where the kernel forbids it, all is as ever."""
    before = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
    with pause.realtime_priority(proc(tmp_path)) as nice:
        assert (os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_RR) is (nice is not None)
    child = fork.run_in_child(lambda frames: f"{os.sched_getscheduler(0)} {os.getpriority(0, 0)}".encode(), 20.0)

    assert (os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)) == before
    assert child.data.split() == [str(one).encode() for one in before]


def test_without_permission_nothing_changes(tmp_path: Path) -> None:
    """Most apps have none."""
    with pause.realtime_priority(proc(tmp_path, capabilities="0")) as nice:
        assert nice is None
        assert os.sched_getscheduler(0) == os.SCHED_OTHER


@pytest.mark.parametrize(
    ("failure", "expected"),
    [(KeyboardInterrupt, [os.SCHED_RR, os.SCHED_OTHER]), (PermissionError, [os.SCHED_RR])],
    ids=["an exception from outside", "the kernel refuses"],
)
def test_priority_is_given_back_after_an_exception_during_the_call(
    failure: type[BaseException], expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread must never keep real-time priority; what the kernel has refused is not given back."""
    calls: list[int] = []

    def set_scheduler(pid: int, policy: int, param: object) -> None:
        calls.append(policy & ~os.SCHED_RESET_ON_FORK)
        if len(calls) == 1:
            raise failure

    monkeypatch.setattr(os, "sched_setscheduler", set_scheduler)
    with contextlib.suppress(KeyboardInterrupt), pause.realtime_priority(proc(tmp_path)) as nice:
        assert nice is None

    assert calls == expected


def test_a_pause_is_foretold_from_the_memory_and_the_wait() -> None:
    """8 GiB are some 240 ms of CPU time, or ten times that where work takes ten times as long; or as the last one."""
    assert 0.15 < pause.foretell_pause(8 << 30) < 0.25
    assert pause.foretell_pause(8 << 30, 10.0) == pytest.approx(10 * pause.foretell_pause(8 << 30))
    assert pause.foretell_pause(8 << 30, 10.0, last_seconds=0.5) == 0.5


def test_waiting_for_a_processor_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel tells it; else by the clock. It is never less than none, nor without end."""
    delays = iter([0.0, 3600.0])
    monkeypatch.setattr(pause, "_run_delay", lambda _: next(delays))
    assert pause.measure_waiting() == pause.MOST_WAITING

    monkeypatch.setattr(pause, "_run_delay", lambda _: None)
    assert 1.0 <= pause.measure_waiting() <= pause.MOST_WAITING


def test_what_the_kernel_tells_of_waiting_is_read(tmp_path: Path) -> None:
    """In nanoseconds, the second of three figures; where there is no such file, nothing."""
    (tmp_path / "thread-self").mkdir()
    (tmp_path / "thread-self" / "schedstat").write_text("5 2500000000 7\n")

    assert pause._run_delay(tmp_path) == 2.5
    assert pause._run_delay(tmp_path / "nowhere") is None


def test_a_pause_that_would_be_too_long_is_refused() -> None:
    """It is reckoned before anything is done; a second fork takes as long as the first, and is not refused."""
    with pytest.raises(Refused, match=r"would pause the app for about \d+ ms.*, and 1 ms are allowed"):
        pause.refuse_long_pause(0.001)
    assert pause.refuse_long_pause(3600.0) > 0
    assert pause.refuse_long_pause(0.001, last_seconds=0.2) == 0.2


@pytest.mark.parametrize(("child_begins", "expected"), [(100.5, 0.5), (900.0, 7.0)], ids=["lock", "processor"])
def test_the_pause_ends_when_the_first_of_both_runs(
    child_begins: float, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that waits for the interpreter's lock after the fork does not pause the app, nor a child that waits."""
    parent, times = os.getpid(), iter([100.0, 107.0])
    clock = SimpleNamespace(
        perf_counter=lambda: next(times) if os.getpid() == parent else child_begins,
        monotonic=time.monotonic,
        sleep=time.sleep,
    )
    monkeypatch.setattr(fork, "time", clock)

    assert fork.run_in_child(lambda frames: b"", 20.0).stall_seconds == expected
