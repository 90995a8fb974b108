"""Faults that come and go while the node runs: a file of them, read again whenever it changes."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from gpuagent.simulated.faults import Fault, FaultBoard
from gpuagent.simulated.scenario import ScenarioError, load_faults

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05
_Stamp = tuple[int, int, int] | None


class FaultsFile:
    """A thread that follows the file until it is closed. No file, or an empty one, is no fault.

    With mistakes in it, what held before goes on, and the log says why. Times count from when a fault is first read.
    """

    def __init__(self, path: Path, board: FaultBoard, gpu_count: int) -> None:
        self._path = path
        self._board = board
        self._gpu_count = gpu_count
        self._given: dict[Fault, Fault] = {}
        self._seen: _Stamp = None
        self._closed = threading.Event()
        self.look()
        self._thread = threading.Thread(target=self._follow, name="faults file", daemon=True)
        self._thread.start()

    def look(self) -> None:
        """Take over what the file says, if it has changed."""
        stamp = _stamp(self._path)
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            faults = load_faults(self._path, self._gpu_count) if stamp is not None else ()
        except ScenarioError as error:
            log.warning("the faults of before go on: %s", error)
            return
        # A line that was there before goes on: its time counts from when it was first read.
        begun = {fault: self._given.get(fault) or self._board.from_now(fault) for fault in faults}
        self._board.exchange(self._given.values(), begun.values())
        self._given = begun

    def close(self) -> None:
        """Follow it no longer."""
        self._closed.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._closed.wait(_LOOK_SECONDS):
            self.look()


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
