"""Since when the driver has listed each number on each GPU: what tells a holder of memory from a stranger.

The driver lists numbers, and a number outlives its process: memory of a process that has ended may stay listed for
hours, while the kernel gives the number to somebody else. Only a process that was already there when the driver first
listed its number can be the one that the memory is counted for. A process that started later is a stranger to it, for
as long as the listing goes on without a break, and a break is only believed after a minute of complete lists without
the number: an empty list, one that failed, a driver that was reloaded or a node that was suspended is none. The
listings are kept over restarts of the agent, within one boot.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from gpuagent.reading import GpuIdentity, ProcessInfo

log = logging.getLogger(__name__)

BREAK_SECONDS = 60.0
"""Of complete lists without a number before its listing is over."""
_LONGEST_STEP_SECONDS = 5.0
"""The most that one list without a number counts for: nobody looked between two lists, however far apart they are."""
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
TICK_SECONDS = 1 / _TICKS_PER_SECOND
"""Start times are whole ticks, rounded down (proc_pid_stat(5), field 22)."""
_SCHEMA = 1

Key = str
"""UUID and PCI address of a GPU together."""


class _Listing:
    """A number on one GPU's list."""

    __slots__ = ("absent_seconds", "since_seconds")

    def __init__(self, since_seconds: float) -> None:
        self.since_seconds = since_seconds
        self.absent_seconds = 0.0


class _Gpu:
    """The listings of one GPU, and what was made of the last list."""

    def __init__(self) -> None:
        self.listings: dict[int, _Listing] = {}
        self.read_seconds: float | None = None
        self.absent = False
        """A listed number was not on the last list."""
        self.pids: frozenset[int] | None = None
        self.infos: Mapping[int, ProcessInfo | None] | None = None
        self.strangers: frozenset[int] = frozenset()


class Listings:
    """For one thread. All times are CLOCK_BOOTTIME in seconds."""

    def __init__(self, path: Path | None, boot_id: str, *, margin_seconds: float = TICK_SECONDS) -> None:
        """Load what the last agent of this boot wrote to `path`; None keeps the listings in memory only.

        A process counts as present at a listing if it started at least `margin_seconds` before it.
        """
        self._boot_id = boot_id
        self._margin_seconds = margin_seconds
        self._gpus: dict[Key, _Gpu] = {}
        self._writer = None if path is None else _LatestWriter(path)
        if path is not None:
            self._load(path)

    def strangers(
        self,
        gpu: GpuIdentity,
        pids: frozenset[int],
        infos: Mapping[int, ProcessInfo | None],
        read_seconds: float,
        *,
        complete: bool = True,
    ) -> frozenset[int]:
        """Take in the list of one GPU, read at `read_seconds`; return the numbers of living strangers.

        These are processes of which all that is known is that they bear a number that was listed before they were
        there. A list that is not complete says nothing of the numbers that it lacks. The same object as before for as
        long as nothing has changed.
        """
        known = self._gpus.setdefault(_key(gpu), _Gpu())
        if pids is known.pids and infos is known.infos and not known.absent:
            if complete:
                known.read_seconds = read_seconds
            return known.strangers
        if not complete:
            self._add(known, pids, read_seconds)
        elif known.read_seconds != read_seconds:
            self._take_in(known, pids, read_seconds)
        found = frozenset(pid for pid in pids if self._is_stranger(known.listings[pid], infos.get(pid)))
        if found != known.strangers:
            known.strangers = found
        known.pids, known.infos = pids, infos
        return known.strangers

    def _take_in(self, known: _Gpu, pids: frozenset[int], read_seconds: float) -> None:
        last, known.read_seconds = known.read_seconds, read_seconds
        step = 0.0 if last is None else min(max(read_seconds - last, 0.0), _LONGEST_STEP_SECONDS)
        ended = False
        known.absent = False
        for pid, listing in list(known.listings.items()):
            if pid in pids:
                listing.absent_seconds = 0.0
                continue
            listing.absent_seconds += step
            if listing.absent_seconds >= BREAK_SECONDS:
                del known.listings[pid]
                ended = True
            else:
                known.absent = True
        self._add(known, pids, read_seconds, changed=ended)

    def _add(self, known: _Gpu, pids: frozenset[int], read_seconds: float, *, changed: bool = False) -> None:
        for pid in pids - known.listings.keys():
            known.listings[pid] = _Listing(read_seconds)
            changed = True
        if changed and self._writer is not None:
            self._writer.write(self._document)

    def _is_stranger(self, listing: _Listing, info: ProcessInfo | None) -> bool:
        if info is None or info.id.start_ticks <= 0:  # dead, or hidden: neither is ever acted on
            return False
        return info.id.start_ticks / _TICKS_PER_SECOND + self._margin_seconds > listing.since_seconds

    def _document(self) -> dict[str, object]:
        return {
            "schema": _SCHEMA,
            "boot_id": self._boot_id,
            "gpus": {
                key: {str(pid): listing.since_seconds for pid, listing in gpu.listings.items()}
                for key, gpu in self._gpus.items()
            },
        }

    def _load(self, path: Path) -> None:
        try:
            stored = json.loads(path.read_text())
            if stored["schema"] != _SCHEMA or stored["boot_id"] != self._boot_id:
                return
            for key, listings in stored["gpus"].items():
                gpu = self._gpus.setdefault(str(key), _Gpu())
                gpu.absent = True
                for pid, since in listings.items():
                    gpu.listings[int(pid)] = _Listing(float(since))
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            self._gpus.clear()
            log.warning("%s cannot be read and is started anew: %s", path, error)


class _LatestWriter:
    """Writes the newest document in a thread of its own: a disk that hangs holds up nothing else."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._failing = False
        self._thread: threading.Thread | None = None

    def write(self, document: Callable[[], object]) -> None:
        """Have it written. A document that has not been begun is replaced by a newer one."""
        self._waiting.put(json.dumps(document()))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="listings", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            text = self._waiting.get()
            while not self._waiting.empty():
                text = self._waiting.get()
            new = self._path.with_suffix(".new")
            try:
                new.write_text(text)
                new.replace(self._path)
            except OSError as error:
                if not self._failing:
                    log.warning("the driver's listings cannot be saved: %s", error)
                self._failing = True
            else:
                self._failing = False


def _key(gpu: GpuIdentity) -> Key:
    return f"{gpu.uuid} {gpu.pci_bus_id}"
