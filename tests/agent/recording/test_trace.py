"""The file of a recording."""

from __future__ import annotations

import csv
import errno
import io
from pathlib import Path

import pytest

from gpuagent.recording.recorder import HEADER, TraceFile, create_trace, trace_name
from gpuagent.recording.sources import MemorySample

HELD = MemorySample(4711, 0, "python3", 12.0, 5_000, 70_000, 80_000, 3_000, 4_000)


def test_a_row_is_replays_row(tmp_path: Path) -> None:
    """The columns by their names; what nobody tells, or could not be read, is an empty cell."""
    path = tmp_path / "run.csv"
    with create_trace(path) as file:
        file.write(1_700_000_000.25, [("python3:4711", HELD), ("x:1", HELD._replace(allocated_bytes=None))])
        file.write(1_700_000_001.25, [("python3:4711", None)])

    assert path.read_text().splitlines() == [
        "time_seconds,used_bytes,free_bytes,allocated_bytes,reserved_bytes,process",
        "1700000000.250,5000,70000,3000,4000,python3:4711",
        "1700000000.250,5000,70000,,4000,x:1",
        "1700000001.250,,,,,python3:4711",
    ]


def test_every_row_is_there_at_once(tmp_path: Path) -> None:
    """A machine that goes down takes the last reading at most: rows are not kept back."""
    path = tmp_path / "run.csv"
    with create_trace(path) as file:
        file.write(1.0, [("a:1", HELD)])
        assert len(path.read_text().splitlines()) == 2


def test_a_file_that_exists_is_not_touched(tmp_path: Path) -> None:
    """Last night's recording is worth more than a name; who asks for it may replace it."""
    path = tmp_path / "run.csv"
    path.write_text("precious")

    with pytest.raises(FileExistsError):
        create_trace(path)
    assert path.read_text() == "precious"
    with create_trace(path, replace=True):
        pass
    assert path.read_text() == HEADER + "\n"


class Full(io.StringIO):
    """Has room for so many writes."""

    room = 2

    def write(self, text: str) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= 1
        return super().write(text)


def test_a_full_disk_ends_the_file_and_nothing_else() -> None:
    """The load test goes on, the report tells that the file is short, and no half row is followed by a whole one."""
    disk = Full()
    with TraceFile(disk) as file:
        file.write(1.0, [("a:1", HELD)])
        assert file.problem == ""
        file.write(2.0, [("a:1", HELD)])
        assert file.problem == "No space left on device"
        disk.room = 9
        file.write(3.0, [("a:1", HELD)])
        assert [line.split(",")[0] for line in disk.getvalue().splitlines()] == ["time_seconds", "1.000"]


def test_a_disk_that_is_full_from_the_start_is_an_error() -> None:
    """Before the load test, not after it."""
    with pytest.raises(OSError, match="No space left"):
        create_trace(Path("/dev/full"), replace=True)


@pytest.mark.parametrize("name", ['a,b"c', "line\nbreak", "\x1b[31m", "", "ünïcode 東京"])
def test_a_hostile_name_stays_in_its_cell(tmp_path: Path, name: str) -> None:
    """A process chooses its name: it may break neither the file nor a terminal."""
    path = tmp_path / "run.csv"
    with create_trace(path) as file:
        file.write(1.0, [(trace_name(HELD._replace(name=name), first_gpu=0), HELD)])

    with path.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.reader(lines))
    assert [len(row) for row in rows] == [6, 6]
    assert rows[1][5].endswith(":4711")
    assert rows[1][5].isprintable()


def test_a_second_gpu_is_told_apart() -> None:
    """One process on two GPUs has two histories."""
    assert trace_name(HELD, first_gpu=0) == "python3:4711"
    assert trace_name(HELD._replace(gpu=3), first_gpu=0) == "python3:4711/gpu3"
