"""The watcher, on real processes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from gpuagent.procfs.table import HIGHEST_PID, PidfdWatcher
from tests.agent.procfs.children import child, end_without_reaping, running


@pytest.fixture
def watcher() -> Iterator[PidfdWatcher]:
    """A watcher that gives back its descriptors."""
    watcher = PidfdWatcher()
    yield watcher
    watcher.close()


def test_an_end_is_heard_of_and_others_are_not(watcher: PidfdWatcher) -> None:
    """Of two processes, the one that ended is told, as a zombie and after."""
    with running("cat") as lives, running("cat") as ends:
        assert watcher.add(lives.pid)
        assert watcher.add(ends.pid)
        assert watcher.exited() == set()

        end_without_reaping(ends)
        assert watcher.exited() == {ends.pid}
        assert watcher.has_exited(ends.pid)
        assert not watcher.has_exited(lives.pid)

        ends.wait()
        assert watcher.exited() == {ends.pid}
        watcher.remove(ends.pid)
        assert watcher.exited() == set()


def test_what_cannot_be_watched_is_said(watcher: PidfdWatcher) -> None:
    """A process that has gone, a pid of a simulated node, and one that is none are refused."""
    with running("cat") as process:
        process.kill()
        process.wait()

        assert not watcher.add(process.pid)
    assert not watcher.add(HIGHEST_PID + 1)
    assert not watcher.add(2**32 - 1)
    assert not watcher.add(0)
    assert not watcher.has_exited(process.pid)


def test_the_agent_keeps_descriptors_for_itself() -> None:
    """EXP-01: no more are watched than allowed, and room is made by removing."""
    watcher = PidfdWatcher(maximum=1)
    with running("cat") as first, running("cat") as second:
        assert watcher.add(first.pid)
        assert watcher.add(first.pid)
        assert not watcher.add(second.pid)
        watcher.remove(first.pid)
        assert watcher.add(second.pid)
        watcher.close()


def test_descriptors_are_given_back() -> None:
    """EXP-01: watching and forgetting leaves no more descriptors than there were."""
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  names alone: the folder changes while it is read
    watcher = PidfdWatcher()
    for _ in range(20):
        with child("true") as process:
            watcher.add(process.pid)
            watcher.remove(process.pid)
            watcher.remove(process.pid)
    with running("cat") as process:
        watcher.add(process.pid)
        watcher.close()

    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208  others may close theirs meanwhile


def test_a_descriptor_held_elsewhere_too_is_no_longer_heard(watcher: PidfdWatcher) -> None:
    """A child between fork and exec holds copies; a removed process must not be told of then."""
    with running("cat") as process:
        watcher.add(process.pid)
        copy = os.dup(watcher._descriptors[process.pid])
        watcher.remove(process.pid)
        with running("cat") as other:
            watcher.add(other.pid)
            end_without_reaping(process)

            assert watcher.exited() == set()
    os.close(copy)
