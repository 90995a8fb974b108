"""An arena for each attack, five times over under torture, and a row for the table of who was hit (`table.py`)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attack.arena import Arena
from tests.attack.table import ROW, Row
from tests.torture import times

_TURN = "turn"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Repeat each attack."""
    if "arena" in metafunc.fixturenames:
        metafunc.parametrize(_TURN, range(times(1, 5)), ids=lambda turn: f"turn{turn}", indirect=True)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave all but one variant of each attack to CI and to torture."""
    item.add_marker(pytest.mark.few(1))


@pytest.fixture
def turn(request: pytest.FixtureRequest) -> int:
    """Which repetition this is."""
    number: int = request.param
    return number


@pytest.fixture
def arena(turn: int) -> Iterator[Arena]:
    """A stage with an agent that is not started yet. Needs root: processes of other users, cgroups, chosen pids."""
    if os.geteuid() != 0:
        pytest.skip("needs root: to be other users, to make cgroups and to choose pids")
    with tempfile.TemporaryDirectory(prefix=f"gpuagent-{turn}-", dir="/tmp") as folder:
        made = Arena(Path(folder))
        yield made
        made.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Put a row into the report, whatever becomes of the test: it may run in a process of its own (xdist)."""
    try:
        yield
    finally:
        arena = getattr(item, "funcargs", {}).get("arena")
        if isinstance(arena, Arena):
            item.user_properties.append((ROW, tuple(Row(_name(item), 1, *arena.tally(), len(arena.guilty)))))


def _name(item: pytest.Item) -> str:
    function = getattr(item, "originalname", item.name).removeprefix("test_").replace("_", " ")
    parameters = getattr(item, "callspec", None)
    ids = [] if parameters is None else [each for each in parameters.id.split("-") if not each.startswith(_TURN)]
    return f"{function} ({', '.join(ids)})" if ids else function
