"""Keep the listings of one UUID or PCI address: which pids are listed, since when, and whether their memory is back.

A pid that leaves the list says nothing of its memory. Its listing is over when the GPU's own figure of the memory in
use has shown that the memory came back, or after ten minutes of lists without it: in use is then less than what the
others are known to hold, and half of what the pid held. What others are known to hold is counted low: at the most
what they were listed with when the pid was last listed, and less by whatever they were listed with less since. So
memory that two processes share, that is listed for nobody, or whose amount the driver does not report never passes for
memory that came back. The listings are kept in a file over restarts of the agent, within one boot.

Pids whose listings were dropped before they were over are remembered in bounded memory, for no longer than a listing
can last: one that comes back within that time may be listed for whoever had it before, and proves nothing. The kernel
gives pids in turn, so the next ones share no slot with those that were dropped a while ago; where they do, one is
taken for the other, which withholds an act and permits none.
"""

from __future__ import annotations

import json
import logging
import math
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from gpuagent.procfs.machine import PidMark
from gpuagent.runtime.state_files import read_state

_SLOTS = 1 << 16
"""256 KiB per table; none before the first pid is dropped."""


class UnlistedPid(NamedTuple):
    """A pid that is not listed now."""

    pid: int
    uid: int
    gone_seconds: float
    """Seconds for which complete lists have lacked it."""


class DroppedPids:
    """Until when each pid may still be listed for who had it. Seconds are those of complete lists."""

    def __init__(self, seconds: float = 0.0) -> None:
        """Count any pid as dropped for `seconds` more: over a restart it is not known which were."""
        self._any_until = seconds
        self._latest = seconds
        self._until: array[int] | None = None

    def add(self, pid: int, until_seconds: float) -> None:
        """Note a pid that is dropped, and when its listing is over in any case."""
        if self._until is None:
            self._until = array("I", bytes(4 * _SLOTS))
        slot = pid % _SLOTS
        self._until[slot] = max(self._until[slot], math.ceil(until_seconds))
        self._latest = max(self._latest, until_seconds)

    def may_have(self, pid: int, now_seconds: float) -> bool:
        """Return whether the pid may be one that was dropped, and whose listing may not be over."""
        if now_seconds >= self._latest:
            self._until = None
            return False
        return now_seconds < self._any_until or (self._until is not None and now_seconds < self._until[pid % _SLOTS])

    def seconds_left(self, now_seconds: float) -> float:
        """Return for how long pids that were dropped matter; 0 where none do."""
        return max(self._latest - now_seconds, 0.0)


def choose_to_drop(absent: Iterable[UnlistedPid], number: int) -> list[UnlistedPid]:
    """Return whose listings are dropped: of the user with the most of them first, and those gone for longest.

    So nobody's pids make room for the many of another user.
    """
    of_users: dict[int, list[UnlistedPid]] = defaultdict(list)
    for each in absent:
        of_users[each.uid].append(each)
    ranked = []
    for own in of_users.values():
        own.sort(key=lambda each: each.gone_seconds)
        ranked += list(enumerate(own))
    ranked.sort(key=lambda each: (each[0], each[1].gone_seconds), reverse=True)
    return [each for _, each in ranked[:number]]


BEFORE_ALL = -1.0
"""A time before every process."""
_SCHEMA = 3
_LONGEST_FORGOTTEN_SECONDS = 600.0
"""A listing is over after as long without its pid."""


class StoredListing(NamedTuple):
    """A pid on one GPU's list. Times are CLOCK_BOOTTIME in seconds."""

    since_seconds: float
    sure_seconds: float
    used_bytes: int | None
    """Bytes on the last complete list that it was on; None where the driver did not tell."""
    highest_bytes: int
    """The most that it was listed with while its process was unproven."""
    rest_bytes: int | None
    """Bytes that others are known to hold at the least, while it is not listed; None while it is."""
    proven_ticks: int | None


class StoredTable(NamedTuple):
    """The listings of one UUID or PCI address."""

    read_seconds: float | None
    forgotten_seconds: float
    """Seconds of complete lists for which pids matter that were dropped before their listings were over."""
    used_bytes: int | None
    listings: Mapping[int, StoredListing]


class Stored(NamedTuple):
    """What an agent before this one has left."""

    tables: Mapping[str, StoredTable] = MappingProxyType({})
    mark: PidMark = PidMark(None, None)
    """The pid space when it was written, or a little before."""


def to_document(boot_id: str, tables: Mapping[str, StoredTable], mark: PidMark) -> dict[str, object]:
    """Return what `load` reads."""
    return {
        "schema": _SCHEMA,
        "boot_id": boot_id,
        "forks": mark.forks,
        "pid_max": mark.numbers,
        "tables": {
            key: {
                "read": table.read_seconds,
                "forgot": table.forgotten_seconds,
                "used": table.used_bytes,
                "numbers": table.listings,
            }
            for key, table in tables.items()
        },
    }


def load(path: Path, boot_id: str, now_seconds: float) -> Stored:
    """Return the tables of this boot; none where the file is missing or cannot be believed.

    One time in the future (after `now_seconds`) is enough not to believe the whole file.
    """
    try:
        stored = json.loads(read_state(path))
        if stored["schema"] != _SCHEMA or stored["boot_id"] != boot_id:
            return Stored()
        tables = {str(key): _table(table, now_seconds) for key, table in stored["tables"].items()}
        return Stored(tables, PidMark(_whole(stored["forks"]), _whole(stored["pid_max"])))
    except FileNotFoundError:
        return Stored()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        log.warning("%s cannot be used: %s", path, error)
        return Stored()


def _table(stored: Mapping[str, object], now_seconds: float) -> StoredTable:
    read, numbers = stored["read"], stored["numbers"]
    if not isinstance(numbers, dict):
        raise TypeError("numbers are not an object")
    listings = {}
    for pid, (since, sure, used, highest, rest, proven) in numbers.items():
        since_seconds = _time(since, now_seconds)
        sure_seconds = BEFORE_ALL if sure == BEFORE_ALL else _time(sure, since_seconds)
        listings[int(pid)] = StoredListing(
            since_seconds, sure_seconds, _whole(used), _whole(highest) or 0, _whole(rest), _whole(proven)
        )
    read_seconds = None if read is None else _time(read, now_seconds)
    return StoredTable(read_seconds, _left(stored["forgot"]), _whole(stored["used"]), listings)


def _left(value: object) -> float:
    """Return the seconds left: earlier agents wrote whether any were dropped, for ten minutes at the most."""
    if value is True:
        return _LONGEST_FORGOTTEN_SECONDS
    return _time(value, _LONGEST_FORGOTTEN_SECONDS)


def _time(value: object, latest: float) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value) or not 0 <= value <= latest:
        raise ValueError(f"{value!r} is no time up to {latest}")
    return float(value)


def _whole(value: object) -> int | None:
    if value is not None and not isinstance(value, int):
        raise TypeError(f"{value!r} is not a whole number")
    return value


log = logging.getLogger(__name__)

BREAK_SECONDS = 60.0
"""Time of complete lists without a pid, its memory having come back, before its listing is over."""
LONG_BREAK_SECONDS = 600.0
"""Time of complete lists without a pid before its listing is over whatever the memory says: where others take what
one gives back, the figures never tell, and a driver that lists a pid again after so long has listed it anew."""
RETURNED_LISTS = 3
"""Memory has come back once so many lists have shown it: one figure may be off."""
MOST_LISTINGS = 4096
"""Pids that are remembered per table; beyond, some of those that are not listed now are dropped (`choose_to_drop`)."""
_KEPT_LISTINGS = MOST_LISTINGS * 7 // 8
"""Listings that stay once some are dropped: to choose costs more than to drop."""
_NOBODY = -1
_LONGEST_STEP_SECONDS = 5.0
"""The most that one list without a pid counts for: nobody looked between two lists, however far apart they are."""
_GAP_STEPS = 2.5
"""A gap is longer than this many usual steps."""
_USUAL_STEPS = 3
"""The smallest of this many last steps is the usual one."""
_LONGEST_USUAL = 12
"""Times the shortest gap: steps longer than this are never usual."""


class PidListing:
    """A pid on one GPU's list."""

    __slots__ = (
        "absent_seconds", "gone_seconds", "highest_bytes", "proven_ticks", "rest_bytes", "returned_lists",
        "since_seconds", "sure_seconds", "uid", "used_bytes",
    )  # fmt: skip

    def __init__(self, stored: StoredListing, uid: int = _NOBODY) -> None:
        """`uid` is the user of the process that had the pid, where that is known."""
        self.uid = uid
        self.since_seconds, self.sure_seconds, self.used_bytes, self.highest_bytes, self.rest_bytes = stored[:5]
        self.proven_ticks = stored.proven_ticks
        self.returned_lists = 0
        self.absent_seconds = self.gone_seconds = 0.0

    def stored(self) -> StoredListing:
        """Return what the file keeps of it."""
        return StoredListing(
            self.since_seconds, self.sure_seconds, self.used_bytes, self.highest_bytes, self.rest_bytes,
            self.proven_ticks,
        )  # fmt: skip

    def be_listed(self) -> None:
        """Note that it is on a list again: whatever spoke for its end is void."""
        self.rest_bytes = None
        self.returned_lists = 0
        self.absent_seconds = self.gone_seconds = 0.0

    def be_absent(self, gpu_used_bytes: int | None, step_seconds: float) -> bool:
        """Note a complete list without it; return whether it is over."""
        held, rest = self.used_bytes, self.rest_bytes or 0
        if held and gpu_used_bytes is not None and gpu_used_bytes < rest + held / 2:
            self.returned_lists += 1
        self.gone_seconds += step_seconds
        if self.returned_lists >= RETURNED_LISTS:
            self.absent_seconds += step_seconds
        return self.absent_seconds >= BREAK_SECONDS or self.gone_seconds >= LONG_BREAK_SECONDS


class ListingTable:
    """The listings of one UUID or one PCI address."""

    def __init__(self, stored: StoredTable | None = None) -> None:
        self.listings = {} if stored is None else {pid: PidListing(each) for pid, each in stored.listings.items()}
        self.read_seconds = None if stored is None else stored.read_seconds
        self._dropped = DroppedPids(0.0 if stored is None else stored.forgotten_seconds)
        self._list_seconds = 0.0
        """Time of complete lists, as an absent pid counts it."""
        self.inherited = stored is not None
        """The last complete list was read by an agent before this one."""
        self._used_bytes = None if stored is None else stored.used_bytes
        """The GPU's own figure, at the last complete list."""
        self._steps: deque[float] = deque(maxlen=_USUAL_STEPS)

    def stored(self) -> StoredTable:
        """Return what the file keeps of it."""
        numbers = {pid: one.stored() for pid, one in self.listings.items()}
        left = self._dropped.seconds_left(self._list_seconds)
        return StoredTable(self.read_seconds, left, self._used_bytes, numbers)

    def copy(self) -> ListingTable:
        """Return another that knows the same."""
        made = ListingTable(self.stored())
        made.inherited, made._steps = self.inherited, self._steps.copy()
        return made

    def read(self, read_seconds: float) -> None:
        """Note a complete list."""
        if self.read_seconds is not None:
            if read_seconds <= self.read_seconds:
                return
            if not self.inherited:
                self._steps.append(read_seconds - self.read_seconds)
            self._list_seconds += self._step(read_seconds)
        self.read_seconds, self.inherited = read_seconds, False

    def sure_at(
        self,
        read_seconds: float,
        gap_seconds: float,
        *,
        believe_first: Callable[[], bool],
        may_have_wrapped: Callable[[], bool],
    ) -> float:
        """Return when a process must have started by, so that it holds a pid first listed at `read_seconds`.

        After a gap a pid proves nothing only if the kernel may have given it twice in that time.
        """
        last = self.read_seconds
        if last is None and not believe_first():
            return BEFORE_ALL
        if last is None:
            return read_seconds
        usual = min(*self._steps, _LONGEST_USUAL * gap_seconds) if len(self._steps) == _USUAL_STEPS else 0.0
        is_gap = self.inherited or read_seconds - last > max(_GAP_STEPS * usual, gap_seconds)
        if is_gap and may_have_wrapped():
            return min(last, read_seconds)
        return read_seconds

    def begin(self, pid: int, since_seconds: float, sure_seconds: float, uid: int | None) -> None:
        """Note that a pid is listed that was not; one that was dropped may be listed for who had it before.

        A process that started after `since_seconds` is not the holder; one that started by `sure_seconds` is.
        """
        sure = BEFORE_ALL if self._dropped.may_have(pid, self._list_seconds) else sure_seconds
        stored = StoredListing(since_seconds, sure, None, 0, None, None)
        self.listings[pid] = PidListing(stored, _NOBODY if uid is None else uid)

    def remember_bytes(self, held: Mapping[int, int | None], gpu_used_bytes: int | None) -> None:
        """Keep what each pid, and the whole GPU, had on the last complete list."""
        self._used_bytes = gpu_used_bytes
        for pid, used in held.items():
            if (listing := self.listings.get(pid)) is not None:
                listing.used_bytes = used

    def end_listings(self, held: Mapping[int, int | None], gpu_used_bytes: int | None, read_seconds: float) -> bool:
        """Take in a complete list for the pids that it lacks; return whether a listing is over by it.

        `remember_bytes` has been told of the one before this.
        """
        gone = [pid for pid in self.listings if pid not in held]
        if not gone:
            return False
        self._count_rest(held)
        step = self._step(read_seconds)
        over = [pid for pid in gone if self.listings[pid].be_absent(gpu_used_bytes, step)]
        for pid in over:
            del self.listings[pid]
        return bool(over)

    def _count_rest(self, held: Mapping[int, int | None]) -> None:
        """Count what others than an absent pid are known to hold; an amount that is not told counts as nothing."""
        before = [(pid, each.used_bytes or 0) for pid, each in self.listings.items() if each.rest_bytes is None]
        listed = sum(used for _, used in before)
        freed = sum(max(used - (held.get(pid) or 0), 0) for pid, used in before)
        for pid, listing in self.listings.items():
            if pid in held:
                continue
            if listing.rest_bytes is not None:
                listing.rest_bytes = max(listing.rest_bytes - freed, 0)
                continue
            own = listing.used_bytes or 0
            # What is shared counts twice in the sum, and once in what the GPU says.
            others = 0 if self._used_bytes is None else min(listed, self._used_bytes) - own
            listing.rest_bytes = max(others - (freed - own), 0)

    def _step(self, read_seconds: float) -> float:
        """Return for how long a complete list counts for the pids that it lacks."""
        if self.read_seconds is None or self.inherited:
            return 0.0
        return min(max(read_seconds - self.read_seconds, 0.0), _LONGEST_STEP_SECONDS)

    def drop_absent(self, pids: frozenset[int]) -> None:
        """Keep the table small. A pid that is dropped proves nothing until its listing would be over."""
        if len(self.listings) <= MOST_LISTINGS:
            return
        absent = [UnlistedPid(pid, one.uid, one.gone_seconds) for pid, one in self.listings.items() if pid not in pids]
        if absent and not self._dropped.seconds_left(self._list_seconds):
            log.warning(
                "more than %d numbers of processes are to be remembered for one GPU: those that are dropped prove"
                " nothing for %.0f min if they are listed again", MOST_LISTINGS, LONG_BREAK_SECONDS / 60,
            )  # fmt: skip
        for each in choose_to_drop(absent, len(self.listings) - _KEPT_LISTINGS):
            self._dropped.add(each.pid, self._list_seconds + LONG_BREAK_SECONDS - each.gone_seconds)
            del self.listings[each.pid]
