"""What entries of the never-list meant when a process was first seen, and looks that do not come back."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from gpuagent.core.identity import ProcessId
from gpuagent.procfs.hanging import MOST_HANGING
from gpuagent_alerts.remedies.facts.first_seen import HANGS_AFTER_SECONDS, FirstSeenMatches, MatchedEntry
from tests.fakes.proc import FakeProc, stat_text
from tests.integration.waiting import until

ENTRIES = ("prod*",)
HANGING = range(100, 200)


class Node:
    """Processes of which some do not answer whoever looks at them."""

    def __init__(self) -> None:
        self.files = FakeProc()
        self.seconds = 0.0
        self.answer = threading.Event()
        self.looked: list[int] = []
        self.memory = FirstSeenMatches(self.files, lambda: self.seconds)

    def start(self, pid: int) -> ProcessId:
        self.files.put(pid, stat=stat_text(pid, start_ticks=7))
        return ProcessId("boot", pid, 7)

    def find(self, pid: int) -> MatchedEntry | None:
        self.looked.append(pid)
        if pid in HANGING:
            self.answer.wait()
        return MatchedEntry("prod*", f"prod* means pid {pid}") if pid % 2 else None

    def follow(self, *ids: ProcessId) -> None:
        self.memory.follow(ids, ENTRIES, self.find)


@pytest.fixture
def node() -> Iterator[Node]:
    """A node whose hanging processes answer at the end."""
    made = Node()
    yield made
    made.answer.set()


def test_who_hangs_holds_up_nobody_else(node: Node) -> None:
    """One that does not answer is spared with the reason; others are compared a few seconds later, new ones as well."""
    hangs, other, later = (node.start(pid) for pid in (101, 3, 4))
    node.follow(hangs)
    until(lambda: node.looked, "it is looked at")
    node.follow(hangs, other)
    assert "is being compared" in node.memory.reason(other, ENTRIES)
    assert "is being compared" in node.memory.reason(hangs, ENTRIES)

    node.seconds += HANGS_AFTER_SECONDS
    node.follow(hangs, other, later)
    until(lambda: node.memory.reason(later, ENTRIES) == "", "the others were looked at")
    assert node.memory.reason(other, ENTRIES) == "prod* means pid 3, as it was first seen"
    assert "cannot be compared with remedies.never: what its arguments" in node.memory.reason(hangs, ENTRIES)

    node.answer.set()
    until(lambda: "as it was first seen" in node.memory.reason(hangs, ENTRIES), "it was looked at")


def test_hanging_looks_are_bounded(node: Node) -> None:
    """Each that hangs has one thread, and there are no more than so many."""
    ids = [node.start(pid) for pid in HANGING]
    for turn in range(MOST_HANGING + 4):
        node.follow(*ids)
        until(lambda turn=turn: len(node.looked) == min(turn + 1, MOST_HANGING), "another one is looked at")  # type: ignore[misc]
        node.seconds += HANGS_AFTER_SECONDS
    assert len(node.looked) == len(set(node.looked)) == MOST_HANGING


def test_other_entries_are_looked_up_while_an_old_look_hangs(node: Node) -> None:
    """A look by entries that are no longer in force does not hold up those that are, nor is its answer taken."""
    hangs, other = node.start(101), node.start(3)
    node.follow(hangs)
    until(lambda: node.looked, "it is looked at")
    node.seconds += HANGS_AFTER_SECONDS
    node.memory.follow([hangs, other], ("other",), lambda pid: MatchedEntry("other", f"other means pid {pid}"))
    until(lambda: node.memory.reason(other, ("other",)), "it was looked at")
    until(lambda: "as it was" in node.memory.reason(other, ("other",)), "it was looked at")
    node.answer.set()
    assert node.memory.meant(other.pid, other.start_ticks, ENTRIES) == ""
