"""Counting Xids. How they come from the driver is tested with the monitor."""

from __future__ import annotations

import threading

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent.driver.nvml.events import XidWatcher
from gpuagent.driver.nvml.library import Library


@pytest.fixture
def clock() -> ManualClock:
    """What events are stamped by."""
    return ManualClock()


@pytest.fixture
def watcher(clock: ManualClock) -> XidWatcher:
    """One that watches nothing yet."""
    return XidWatcher(Library(), clock)


def test_each_event_counts(watcher: XidWatcher, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    """ALERT-01: by GPU and code, with the time of the last, and a line in the log for each."""
    for xid in (13, 13, 79):
        watcher.record(0, "GPU-a", xid)
        clock.advance(60)
    watcher.record(1, "GPU-b", 13)

    assert [(c.gpu_index, c.gpu_uuid, c.xid, c.count) for c in watcher.counts()] == [
        (0, "GPU-a", 13, 2),
        (0, "GPU-a", 79, 1),
        (1, "GPU-b", 13, 1),
    ]
    assert [c.last_time_seconds - ManualClock().wall() for c in watcher.counts()] == [60, 120, 180]
    assert len(caplog.records) == 4


def test_a_storm_does_not_fill_the_log(
    watcher: XidWatcher, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """ALERT-01: every event counts; ten lines a minute for a code say so, the next tells how many are missing."""
    for _ in range(1000):
        watcher.record(0, "GPU-a", 31)
    watcher.record(1, "GPU-b", 31)
    assert watcher.counts()[0].count == 1000
    assert len(caplog.records) == 11

    clock.advance(60)
    watcher.record(0, "GPU-a", 31)
    assert caplog.records[-1].getMessage() == "GPU 0 (GPU-a): Xid 31 (and 990 more since the last line)"


def test_codes_are_bounded(watcher: XidWatcher) -> None:
    """EXP-03: a driver that makes up codes cannot make up series without end; known codes go on counting."""
    for xid in range(1000):
        watcher.record(0, "GPU-a", xid)
    bound = len(watcher.counts())
    watcher.record(0, "GPU-a", 0)
    watcher.record(1, "GPU-b", 13)

    assert bound <= 64
    assert watcher.counts()[0].count == 2
    assert len(watcher.counts()) == bound + 1


def test_nothing_to_watch_costs_no_thread(watcher: XidWatcher) -> None:
    """EXP-07: on a node without GPUs."""
    threads = threading.active_count()
    watcher.watch([])

    assert threading.active_count() == threads
    assert watcher.close()
