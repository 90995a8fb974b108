"""Any trace of an agent says that one has run in this boot."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuagent.collector.saved_state import STAMP_FILE, Traces, find_traces, write_stamp
from gpuagent.node import LISTINGS_FILE, STATE_STEMS

BOOT, BEFORE = "00000000-0000-0000-0000-00000000000b", "00000000-0000-0000-0000-00000000000a"


class Folders:
    """The directories of an agent."""

    def __init__(self, folder: Path) -> None:
        self.state, self.runtime = folder / "state", folder / "run"
        self.state.mkdir()
        self.runtime.mkdir()

    def write(self, name: str, content: str) -> None:
        """Put a file into the state directory."""
        (self.state / name).write_text(content)

    def find(self) -> Traces:
        """Look for traces."""
        return find_traces(self.state, self.runtime, BOOT, STATE_STEMS, LISTINGS_FILE)


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """Empty ones."""
    return Folders(tmp_path)


def listings(folders: Folders, boot: str) -> None:
    """Write the listings of a boot."""
    folders.write(LISTINGS_FILE, json.dumps({"boot_id": boot}))


def no_directories(folders: Folders) -> None:
    """Remove both."""
    folders.state.rmdir()
    folders.runtime.rmdir()


def no_directory(folders: Folders) -> None:
    """Put a file in the place of the state directory."""
    folders.state.rmdir()
    folders.state.write_text("")


def empty_stamp(folders: Folders) -> None:
    """Leave a stamp that says nothing."""
    (folders.runtime / STAMP_FILE).write_text("")


LEFT: dict[str, tuple[Callable[[Folders], None], Traces]] = {
    "nothing": (lambda folders: None, Traces()),
    "no directories": (no_directories, Traces()),
    "another program's file": (lambda folders: folders.write("notes.txt", ""), Traces()),
    "listings": (lambda folders: listings(folders, BOOT), Traces(True, True)),
    "listings of a boot before": (lambda folders: listings(folders, BEFORE), Traces(False, True)),
    "listings without a boot": (lambda folders: folders.write(LISTINGS_FILE, "{}"), Traces(True, True)),
    "damaged listings": (lambda folders: folders.write(LISTINGS_FILE, ""), Traces(True, True)),
    "the database alone": (lambda folders: folders.write("state.db", ""), Traces(True, True)),
    "a database set aside": (lambda folders: folders.write("state.db.corrupt-1", ""), Traces(True, True)),
    "the GPUs alone": (lambda folders: folders.write("gpus.json", "x"), Traces(True, True)),
    "a stamp": (lambda folders: write_stamp(folders.runtime, BOOT), Traces(True, False)),
    "a stamp of a boot before": (lambda folders: write_stamp(folders.runtime, BEFORE), Traces(False, False)),
    "an empty stamp": (empty_stamp, Traces(True, False)),
    "a state directory that is a file": (no_directory, Traces(True, True)),
}


@pytest.mark.parametrize("left", LEFT)
def test_what_was_left(folders: Folders, left: str) -> None:
    """KILL-01: what is missing or damaged beside a trace was lost; only what names another boot says that none ran."""
    leave, expected = LEFT[left]
    leave(folders)
    assert folders.find() == expected


def test_the_stamp_outlives_the_state(folders: Folders) -> None:
    """Who removes the whole state directory does not make the agent new to this boot."""
    listings(folders, BEFORE)
    write_stamp(folders.runtime, BOOT)
    assert folders.find() == Traces(True, True)
    (folders.state / LISTINGS_FILE).unlink()
    folders.state.rmdir()
    assert folders.find() == Traces(True, False)


def test_a_stamp_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is told, and the agent goes on."""
    write_stamp(tmp_path / "missing", BOOT)
    assert "cannot be written" in caplog.text
