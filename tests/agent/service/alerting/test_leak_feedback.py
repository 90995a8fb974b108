"""Labelled histories on disk: whole or not there, bounded, the oldest go."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuagent.service.leak_feedback import SCHEMA, FeedbackFailure, FeedbackStore, read_entry

WRITER = """
import os, sys
from pathlib import Path
from gpuagent.service.leak_feedback import FeedbackStore

store = FeedbackStore(Path(sys.argv[1]), most_entries=5, most_bytes=40_000)
number = 0
while True:
    number += 1
    entry = {"schema": 1, "number": number, "trace": {"runs": [list(os.urandom(8)) for _ in range(400)]}}
    store.add(entry, 1000.0 + number, 7)
    print(number, flush=True)
"""


def entry(number: int = 0, **more: Any) -> dict[str, Any]:
    """Return one that is well formed."""
    return {"schema": SCHEMA, "number": number, "trace": {}, **more}


def numbers(store: FeedbackStore) -> list[int]:
    """Return which are there, in their order."""
    return [each["number"] for each in store.entries()]


def test_what_is_added_is_there(tmp_path: Path) -> None:
    """In the order in which it came, private, with an id under which it is found and removed."""
    store = FeedbackStore(tmp_path / "feedback")
    ids = [store.add(entry(number), 1000.0 - number, 7)[0] for number in range(3)]
    assert numbers(store) == [0, 1, 2]
    assert store.entry(ids[1]) == {**entry(1), "id": ids[1]}
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "feedback").iterdir()} == {0o600}
    store.remove(ids[1])
    assert numbers(FeedbackStore(tmp_path / "feedback")) == [0, 2]
    for unknown in (ids[1], "../state.db", ""):
        with pytest.raises(KeyError):
            store.entry(unknown)
        with pytest.raises(KeyError):
            store.remove(unknown)


def test_the_oldest_go(tmp_path: Path) -> None:
    """By number and by bytes, and the answer says which; the newest is never the one that goes."""
    store = FeedbackStore(tmp_path, most_entries=3)
    ids = [store.add(entry(number), number, 7)[0] for number in range(3)]
    assert store.add(entry(3), 3.0, 7)[1] == ids[:1]
    assert numbers(store) == [1, 2, 3]
    noise = [os.urandom(2000).hex() for _ in range(4)]
    small = FeedbackStore(tmp_path / "small", most_bytes=6000)
    evicted = [small.add(entry(number, noise=text), number, 7)[1] for number, text in enumerate(noise)]
    assert [len(each) for each in evicted] == [0, 0, 1, 1]
    assert numbers(small) == [2, 3]
    with pytest.raises(FeedbackFailure, match="more than is kept of one"):
        small.add(entry(9, noise="".join(os.urandom(4000).hex() for _ in range(3))), 9.0, 7)
    assert numbers(small) == [2, 3]


def test_a_clock_that_is_set_back(tmp_path: Path) -> None:
    """What comes later is later, whatever the time of day is."""
    store = FeedbackStore(tmp_path, most_entries=2)
    for number, seconds in enumerate((5000.0, 10.0, 4000.0)):
        store.add(entry(number), seconds, 7)
    assert numbers(store) == [1, 2]


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    """Damaged files are passed over and go in their turn; what is no entry stays, and no link is followed."""
    store = FeedbackStore(tmp_path, most_entries=3)
    damaged = tmp_path / "0000000000001-7-0.json.gz"
    damaged.write_bytes(b"no gzip")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "0000000000002-7-0.json.gz").symlink_to(tmp_path / "notes.txt")
    (tmp_path / "0000000000003-7-0.json.gz.new").write_bytes(b"half")
    assert numbers(store) == []
    assert read_entry(damaged) is None
    store.add(entry(1), 10.0, 7)
    assert not (tmp_path / "0000000000003-7-0.json.gz.new").exists()
    store.add(entry(2), 11.0, 7)
    store.add(entry(3), 12.0, 7)
    assert numbers(store) == [1, 2, 3]
    assert not damaged.exists()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_without_a_directory(tmp_path: Path) -> None:
    """It says that nothing can be kept, and why."""
    with pytest.raises(FeedbackFailure, match="no state directory"):
        FeedbackStore(None).add(entry(), 1.0, 7)
    (tmp_path / "file").write_text("")
    with pytest.raises(FeedbackFailure):
        FeedbackStore(tmp_path / "file").add(entry(), 1.0, 7)
    assert FeedbackStore(None).entries() == []


@pytest.mark.parametrize("content", [b"", b"[]", b'{"schema": 2, "trace": {}}', b'{"schema": 1}', b"[" * 100_000])
def test_what_is_no_entry(tmp_path: Path, content: bytes) -> None:
    """Another version, something else in JSON, and JSON that would cost too much are no entries."""
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(content))
    assert read_entry(path) is None


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_killed_agent_leaves_whole_entries(tmp_path: Path) -> None:
    """SIGKILL at any moment: all that was answered is there up to the bounds, every file is whole, and it goes on."""
    folder = tmp_path / "feedback"
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    for delay in range(8):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True, env=environment
        ) as writer:
            assert writer.stdout is not None
            told = [int(writer.stdout.readline()) for _ in range(3 + delay)]
            writer.send_signal(signal.SIGKILL)
            told += [int(line) for line in writer.stdout.read().split("\n") if line]
        store = FeedbackStore(folder, most_entries=5, most_bytes=40_000)
        files = [path for path in folder.iterdir() if path.suffix == ".gz"]
        assert len(files) <= 5
        assert sum(path.stat().st_size for path in files) <= 40_000
        assert len(store.entries()) == len(files)
        assert all(json.dumps(each) for each in store.entries())
        assert numbers(store)[-1] >= told[-1]
    store.add(entry(99), 9_999_999.0, 7)
    assert not [path for path in folder.iterdir() if path.suffix == ".new"]
    assert numbers(store)[-1] == 99
