"""The file of a recording: CSV as `gpuagent replay` reads it, whole up to the last reading whatever happens."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from gpuagent.recording.sources import Held

HEADER = "time_seconds,used_bytes,free_bytes,allocated_bytes,reserved_bytes,process"


class TraceFile:
    """A row for each process and reading. A disk that is full ends the file, and nothing else. A context manager."""

    def __init__(self, file: TextIO) -> None:
        """Begin it. Raises OSError."""
        self._file = file
        self.problem = ""
        """Why the file ends before the recording does."""
        self._file.write(HEADER + "\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._file.close()
        except OSError as failure:
            self.problem = self.problem or failure.strerror or str(failure)

    def write(self, time_seconds: float, rows: list[tuple[str, Held | None]]) -> None:
        """Write the rows of one reading: a process's name, and its memory or None where it could not be read."""
        if self.problem:
            return
        lines = []
        for name, held in rows:
            cells = held[-5:] if held else (None,) * 5  # used, free, total, allocated, reserved
            used, free, _, allocated, reserved = ("" if cell is None else str(cell) for cell in cells)
            lines.append(f"{time_seconds:.3f},{used},{free},{allocated},{reserved},{name}\n")
        try:
            self._file.write("".join(lines))
            self._file.flush()
        except OSError as error:
            self.problem = error.strerror or str(error)


def create_trace(path: Path, *, replace: bool = False) -> TraceFile:
    """Return a new file, or one in the place of another.

    Raises FileExistsError unless it may be replaced, other OSErrors.
    """
    file = path.open("w" if replace else "x", encoding="utf-8", newline="")
    try:
        return TraceFile(file)
    except OSError:
        with suppress(OSError):
            file.close()  # tries to write again
        raise


def trace_name(held: Held, *, first_gpu: int) -> str:
    """Return `name:pid`, with the GPU where it is not the process's first, fit for a file of CSV."""
    name = "".join(letter if letter.isprintable() and letter not in ',"' else "_" for letter in held.name) or "process"
    return f"{name}:{held.pid}" if held.gpu == first_gpu else f"{name}:{held.pid}/gpu{held.gpu}"
