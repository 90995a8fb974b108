"""Write state files in the background, and find what an agent before this one has left.

That an agent has run in this boot must not hang on one file: where any trace of it is there, what cannot be read was
lost, and what the driver lists at first is not believed.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gpuagent.runtime.state_files import read_bounded, write_state

log = logging.getLogger(__name__)

RETRY_SECONDS = 10.0
"""Seconds between two attempts to write, until one succeeds."""
STAMP_FILE = "boot"
"""File in the runtime directory with the boot in which an agent has read a list, whatever becomes of the state."""


class LatestWriter:
    """Write the newest document in a thread of its own: a disk that hangs holds up nothing else."""

    def __init__(
        self,
        path: Path,
        retry_seconds: float = RETRY_SECONDS,
        *,
        content: str = "the driver's listings",
        keep_old: bool = False,
    ) -> None:
        """Name the `content` in the log. With `keep_old` a file that cannot be replaced stays."""
        self._path = path
        self._retry_seconds = retry_seconds
        self._content = content
        self._keep_old = keep_old
        self._waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._failing = False
        self._thread: threading.Thread | None = None

    def write(self, document: Callable[[], object]) -> None:
        """Have it written. A document that has not been begun is replaced by a newer one."""
        self._waiting.put(json.dumps(document()))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._path.stem, daemon=True)
            self._thread.start()

    def _work(self) -> None:
        text = ""
        while True:
            with suppress(queue.Empty):  # nothing newer: the one that failed is tried again
                text = self._waiting.get(timeout=self._retry_seconds if self._failing else None)
                while True:
                    text = self._waiting.get_nowait()
            self._failing = not self._written(text)

    def _written(self, text: str) -> bool:
        try:
            write_state(self._path, text)
        except OSError as error:
            if not self._failing:
                log.warning("%s cannot be saved: %s", self._content, error)
            if not self._keep_old:
                with suppress(OSError):  # a restart finds none rather than an old one; an old one tells its age
                    self._path.unlink(missing_ok=True)
            return False
        return True


class Traces(NamedTuple):
    """What was found before this agent wrote anything."""

    ran_before: bool = False
    """An agent has run in this boot, or may have."""
    any_state: bool = False
    """There is something of an agent's in the state directory, of whichever boot."""


def find_traces(state_dir: Path, runtime_dir: Path, boot_id: str, stems: Collection[str], listings: str) -> Traces:
    """Return what an agent has left; to be called before anything is written.

    `stems` are how the names of the agent's files begin. `listings` is the one that an agent writes once it has read a
    GPU's list: where it names another boot, or is missing and nothing else is there either, none has run in this one.
    """
    any_state = _has_any(state_dir, stems)
    lost_or_of_this_boot = any_state and not _is_of_another_boot(state_dir / listings, boot_id)
    return Traces(lost_or_of_this_boot or _may_name(runtime_dir / STAMP_FILE, boot_id), any_state)


def write_stamp(runtime_dir: Path, boot_id: str) -> None:
    """Note that an agent has read a GPU's list in this boot."""
    try:
        write_state(runtime_dir / STAMP_FILE, f"{boot_id}\n")
    except OSError as error:
        log.warning("%s cannot be written: %s", runtime_dir / STAMP_FILE, error)


def _has_any(directory: Path, stems: Collection[str]) -> bool:
    """Return whether a file of the agent's is there, or may be: a directory that cannot be read may have one."""
    try:
        return any(entry.name.startswith(tuple(stems)) for entry in directory.iterdir())
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _is_of_another_boot(path: Path, boot_id: str) -> bool:
    try:
        named = json.loads(read_bounded(path))["boot_id"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False
    return isinstance(named, str) and bool(named) and bool(boot_id) and named != boot_id


def _may_name(path: Path, boot_id: str) -> bool:
    try:
        named = read_bounded(path).strip()
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True
    return not named or not boot_id or named == boot_id
