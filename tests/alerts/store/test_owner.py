"""What was made up, or is another machine's, is never taken for the state of this node."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.problem import ANY_OWNER, StateOwner, StoreProblemKind, owner_of

HERE, ELSEWHERE = StateOwner("firmware 1"), StateOwner("firmware 2")
SIMULATED = StateOwner("firmware 1", simulated=True)


def leave(path: Path, owner: StateOwner) -> None:
    """A state with one value, of an agent that has ended."""
    store = Store(path, owner=owner)
    assert store.problem is None
    store.set_meta("mine", str(owner))
    store.close()


def content(path: Path) -> tuple[str, StateOwner | None]:
    """The value in a file, and whose the file is."""
    db = sqlite3.connect(path)
    try:
        return str(db.execute("SELECT value FROM meta WHERE key = 'mine'").fetchone()), owner_of(db)
    finally:
        db.close()


@pytest.mark.parametrize(("before", "words"), [(SIMULATED, "a simulated node's"), (ELSEWHERE, "another machine's")])
def test_a_real_node_begins_anew(tmp_path: Path, before: StateOwner, words: str) -> None:
    """Its alerts, silences and limits are not this node's: the file is kept beside the new one, and that is told."""
    path = tmp_path / "state.db"
    leave(path, before)
    store = Store(path, owner=HERE)
    assert store.problem is not None
    assert (store.problem.trouble, store.problem.in_memory) == (StoreProblemKind.OTHER_NODE, False)
    assert words in store.problem_text
    assert "a new one was begun" in store.problem_text
    assert store.meta("mine") is None
    assert store.has_lost_rows
    store.close()
    aside = store.problem.moved_to
    assert aside is not None
    assert aside.name.startswith("state.db.other-node-")
    assert content(aside) == (str((str(before),)), before)
    again = Store(path, owner=HERE)
    assert again.problem is None


def test_a_simulated_node_leaves_a_real_ones_state_alone(tmp_path: Path) -> None:
    """A silence made in a simulation never comes to the real agent: the simulation goes on in memory."""
    path = tmp_path / "state.db"
    leave(path, HERE)
    before = path.read_bytes()
    store = Store(path, owner=SIMULATED)
    assert store.problem is not None
    assert (store.problem.trouble, store.problem.in_memory) == (StoreProblemKind.OTHER_NODE, True)
    assert "a real node's" in store.problem_text
    store.set_meta("mine", "made up")
    assert not store.heal()
    store.close()
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir() if "aside" in one.name or "other" in one.name] == []
    assert Store(path, owner=HERE).problem is None


@pytest.mark.parametrize(
    ("scenario", "kept"), [("leak", True), ("healthy", False), ("", True)], ids=["the same", "another", "not known"]
)
def test_another_scenario_is_another_story(tmp_path: Path, scenario: str, kept: bool) -> None:
    """Over a restart a simulation keeps its state; what another scenario has left is removed without a word."""
    path = tmp_path / "state.db"
    leave(path, SIMULATED._replace(scenario="leak"))
    now = SIMULATED._replace(scenario=scenario)
    store = Store(path, owner=now)
    assert (store.problem, store.meta("mine") is not None, store.has_lost_rows) == (None, kept, False)
    store.close()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["state.db"]
    assert Store(path, owner=now).problem is None


@pytest.mark.parametrize("said", ["", "[]", "{", '{"machine": 3}', '"x"', "[" * 10_000])
def test_a_file_that_does_not_say_whose_it_is(tmp_path: Path, said: str) -> None:
    """One of a version that did not know, or with a damaged row, is taken over, and says so from then on."""
    path = tmp_path / "state.db"
    leave(path, ANY_OWNER)
    db = sqlite3.connect(path)
    with db:
        db.execute("DELETE FROM meta WHERE key = 'node'")
        db.execute("INSERT INTO meta VALUES ('node', ?)", (said,) if said else ("null",))
    db.close()
    store = Store(path, owner=HERE)
    assert store.problem is None
    store.close()
    assert content(path)[1] == HERE


MACHINES = st.sampled_from(["", "firmware 1", "firmware 2", "system 1"])
OWNERS = st.builds(StateOwner, MACHINES, simulated=st.booleans())


@given(OWNERS, OWNERS)
def test_whether_two_nodes_may_be_one(one: StateOwner, other: StateOwner) -> None:
    """Made up and real are never one; real ones are two only where ids of one kind differ; it holds both ways."""
    assert bool(one.differs(other)) == bool(other.differs(one))
    known = one.machine and other.machine and one.machine.split()[0] == other.machine.split()[0]
    two = not one.simulated and known and one.machine != other.machine
    assert bool(one.differs(other)) == bool(two or one.simulated != other.simulated)
