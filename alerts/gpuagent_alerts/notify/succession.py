"""Whether a process was started in place of those of an incident, and for how long that holds its end back.

A service that crashes and is started again goes on with what it did, and the end of its first process is no end of
the trouble. So the incident goes on while a successor grows, until it has been measured that it does not, and for a
while in which a service manager may start it again.

Whether a successor grows says what was measured of it and not a verdict: the leak detector calls a young process steady
before it can know, as it leaves out the time in which a model is loaded. So the memory of each is followed by its lower
envelope, which the noise of an allocator does not move.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from gpuagent.core.identity import ProcessId
from gpuagent.core.units import GIB
from gpuagent_alerts.alert import LastRun
from gpuagent_alerts.store.tables import array, finite, flag, integer, text, texts, unix_time_or_none, word

MIN_WINDOW_SECONDS = 180.0
MAX_WINDOW_SECONDS = 3600.0
_VISIBLE_BYTES = GIB / 8
"""Growth that is clearly visible: a successor is watched for as long as the old leak needed for it."""
NOISE_BYTES = GIB / 32
"""Rise of a lower envelope that is none: a few segments of an allocator."""
COMPARABLE = 0.25
"""Share of the old leak's pace from which on a successor's growth is taken for the same leak."""
_LEAST_OF_RISE = 0.2
"""Share of a rise that is in each half of the time in which it goes on."""
_BLOCK_SECONDS = 30.0
_LAST_BLOCKS = 3
"""Newest blocks, the least of which is what is used now."""
_MOST_PROCESSES = 256


class MeasuredGrowth(NamedTuple):
    """Growth of all successors of an incident together, over a window."""

    window_seconds: float
    rise_bytes: float
    """How far their lower envelopes rose; what a process gave back counts too."""
    pace: float
    """The rise in bytes a second, each over the time between its two lowest points."""
    is_complete: bool
    """Whether each of them was measured over the whole window."""
    goes_on: bool = False
    """Whether they rose in both halves of the window: what has been loaded at a start has risen in the first one."""
    rises_still: bool = False
    """Whether they rose in the second half, however little of the whole rise that is."""

    @property
    def bytes_per_second(self) -> float:
        """Pace; 0 for what does not rise beyond noise."""
        return max(self.pace, 0.0) if self.rise_bytes > NOISE_BYTES else 0.0

    @property
    def is_flat(self) -> bool:
        """Whether it is measured that they do not grow."""
        return self.is_complete and not self.bytes_per_second

    def is_comparable(self, pace: float) -> bool:
        """Return whether they grow at a pace like the old one, in bytes a second; never where that is not known."""
        return pace > 0 and self.bytes_per_second >= COMPARABLE * pace


def window_seconds(pace: float) -> float:
    """Return for how long a successor is measured, by the pace of the old leak in bytes a second; 0 if unknown."""
    needed = _VISIBLE_BYTES / pace if pace > 0 else 0.0
    return min(max(needed, MIN_WINDOW_SECONDS), MAX_WINDOW_SECONDS)


class MemoryMeter:
    """Lower envelopes of the memory of an incident's successors, in blocks of half a minute. Kept in memory only."""

    def __init__(self, began: float) -> None:
        self.began = began
        """Unix time of the first measurement, or since when they do not grow like the old leak any more."""
        self.grows_since: float | None = None
        """Unix time since which they go on growing, whatever the pace; None while they do not."""
        self.shows_growth = False
        """Whether they are said to grow: from when they went on growing until they do not rise any more."""
        self._blocks: dict[str, list[tuple[float, int]]] = {}
        """Begin of each block and the least that was used in it, by the process's identity."""

    def add(self, used: Mapping[str, int], now: float) -> None:
        """Note what each successor uses, by identity; those that are not there are forgotten. `now` is Unix time."""
        names = sorted(used)[:_MOST_PROCESSES]
        self._blocks = {name: self._blocks.get(name, []) for name in names}
        for name, blocks in self._blocks.items():
            if blocks and 0.0 <= now - blocks[-1][0] < _BLOCK_SECONDS:
                blocks[-1] = (blocks[-1][0], min(blocks[-1][1], used[name]))
            else:
                blocks.append((now, used[name]))
            while blocks[0][0] < now - MAX_WINDOW_SECONDS - 2 * _BLOCK_SECONDS:
                del blocks[0]

    @property
    def last_bytes(self) -> int:
        """What all of them used together when they were seen last."""
        return sum(blocks[-1][1] for blocks in self._blocks.values())

    def flat_seconds(self, now: float) -> float:
        """Return for how long none of them has grown beyond noise, in whole minutes, as far back as is remembered."""
        since = []
        for blocks in self._blocks.values():
            end = min(used for _, used in blocks[-_LAST_BLOCKS:])
            low, high = end - NOISE_BYTES, 1.1 * end + NOISE_BYTES  # an allocator goes up and down by a few percent
            moved = (at for at in range(len(blocks) - 1, -1, -1) if not low <= blocks[at][1] <= high)
            since.append(blocks[min(next(moved, -1) + 1, len(blocks) - 1)][0])
        return (now - max(since, default=now)) // 60 * 60

    def follow_clock(self, step: float) -> None:
        """Move along with a wall clock that was set by so many seconds."""
        self.began += step
        self.grows_since = None if self.grows_since is None else self.grows_since + step
        self._blocks = {
            name: [(time + step, used) for time, used in blocks] for name, blocks in self._blocks.items()
        }  # fmt: skip

    def measure(self, pace: float, now: float) -> MeasuredGrowth:
        """Return how they grow, over the window that follows from the old leak's pace in bytes a second."""
        window = window_seconds(pace)
        rise, late_rise, pace_of_all, complete = 0.0, 0.0, 0.0, bool(self._blocks)
        for blocks in self._blocks.values():
            first = [(used, time) for time, used in blocks if now - window <= time <= now - window * 2 / 3]
            last = [(used, time) for time, used in blocks if time >= now - window / 3]
            middle = [used for time, used in blocks if now - window * 2 / 3 <= time <= now - window / 3]
            if first and last and blocks[0][0] <= now - window + _BLOCK_SECONDS:
                (low, low_at), (high, high_at) = min(first), min(last)
                rise += high - low
                late_rise += high - min(middle, default=low)
                pace_of_all += (high - low) / (high_at - low_at)
            else:
                complete = False
        goes_on = rise > NOISE_BYTES and _LEAST_OF_RISE * rise <= late_rise <= (1 - _LEAST_OF_RISE) * rise
        return MeasuredGrowth(window, rise, pace_of_all, complete, goes_on, late_rise > NOISE_BYTES)


UNJUDGED_SECONDS = 900.0
"""Longest wait for a verdict on a successor, which the detector has 6 to 9 min after it is on the GPU, and for the end
of growth that is much slower than the leak was."""
_MEASURING_SLACK_SECONDS = 120.0
"""Wait beyond the window in which a successor is measured, before that is given up."""
RESTART_SECONDS = 90.0
"""Wait for a successor of a service or container: `RestartSec`, imports and the first use of the GPU."""
BY_HAND_SECONDS = 30.0
"""As `RESTART_SECONDS`, for a job and a command that a script may repeat."""
RESTART_AGAIN_SECONDS = 330.0
"""As the two above, for what it has been started again: Kubernetes' back-off is up to 5 min."""
_FREED_SLACK_SECONDS = 120.0
"""How long after a remedy a successor may come that is started in place of what it ended."""
_MANAGED = ("group:unit:", "group:container:", "group:pod:", "group:pod-uid:")
_REPEATED = ("group:job:", "command:")
_OF_MEMORY = ":memory"


PLACE_LABELS = ("gpu", "uuid")
"""Labels of the GPU that a process is on."""


class Successor(NamedTuple):
    """A process of the same owner that is none of the incident's own."""

    identity: str
    started_at: float
    """Unix time."""
    grows: bool
    is_judged: bool
    """Whether the leak detector has a verdict on it."""
    is_owned: bool = True
    """Whether an owner is known; else user and command line are all that it shares with the incident's processes."""
    used_bytes: int = 0
    """GPU memory on all GPUs."""
    labels: Mapping[str, str] = MappingProxyType({})
    """What an alert's labels would say of it, its GPU included; that is "" of one on several GPUs."""


_MOST_PEERS = 256
_OVERLAP_SECONDS = 600.0
"""Longest time for which a process runs beside the one that it replaces, as in a rolling update."""
_START_SLACK_SECONDS = 300.0
"""What was started longer before the incident is not new, though it was not on the GPU before."""


class OwnerFacts(NamedTuple):
    """What runs of the owner of an incident's processes at a tick."""

    runs: bool = False
    """Whether one of the incident's own processes does."""
    others: tuple[Successor, ...] = ()
    """All that are none of the incident's own; the one that was started first comes first."""
    pace: float = 0.0
    """Bytes a second by which the incident's own grow together; 0 where that is not known."""
    is_readable: bool = True
    """False while the processes of a GPU of the incident cannot be listed: who is not seen may run."""
    freed_at: float | None = None
    """Unix time at which a remedy gave the memory of one of the incident's processes back; None if none did."""
    grow_on: tuple[str, ...] = ()
    """UUIDs of the GPUs on which the incident's own processes grow, and others of their owner."""
    growing: int = 0
    """Number of those processes."""


@dataclass(frozen=True, slots=True)
class Restarts:
    """What is known of the restarts of an incident's owner."""

    count: int = 0
    runs_as: str = ""
    """Identity of the process that was started last; "" of the first one, and while none runs."""
    since: float | None = None
    """Unix time since when that one, or none, runs; None while the incident's own process does."""
    peers: tuple[str, ...] | None = None
    """Identities of those that ran beside the incident's own, for longer than a rolling update takes: none was started
    in its place. None: not known."""
    processes: tuple[str, ...] = ()
    """Identities of all that were started last, such as the ranks of a job."""
    pace: float = 0.0
    """Bytes a second by which the incident's own grew together, when that was known last; 0 if it never was."""
    flat_seconds: float = 0.0
    """How long it was measured that those that run now do not grow; 0 while the end is held back, and if it was not."""
    grows_by: float = 0.0
    """Bytes a second by which they grow although the end is not held back any more."""
    last: Mapping[str, str] = field(default_factory=dict)
    """What the labels of an alert would say of the process that was started last, also after it has left; the labels of
    its GPU are those of all that were started with it, and "" where these are on several."""
    last_grew: bool = False
    """Whether that one was seen to grow for as long as it takes to tell of it."""
    unread_since: float | None = None
    """Unix time since which nobody could see whether the process that is gone now ran; None where it was seen."""
    last_bytes: int = 0
    """What the processes that were started last used, as they were seen last before they left; 0 if unknown."""
    grew_before: LastRun | None = None
    """The one that was seen to grow last, of those that others have been started in place of since."""

    @property
    def last_run(self) -> LastRun:
        """The process that was seen to grow last of those that were started again; without any, the last one."""
        if self.grew_before is not None and not self.last_grew:
            return self.grew_before
        left_at = self.since if self.last and not self.runs_as else None
        return LastRun(self.last, self.last_grew, left_at, 0 if left_at is None else self.last_bytes)

    @property
    def pids(self) -> tuple[int, ...]:
        """The pids of the processes that were started last; empty of the first ones, and while none runs."""
        names = (self.runs_as, *self.processes) if self.runs_as else ()
        found = (name.split(":") for name in names)
        return tuple(dict.fromkeys(int(one[1]) for one in found if len(one) == 3 and one[1].isdecimal()))


class Watch(NamedTuple):
    """Restarts of an incident's owner as they are now, and whether they hold its end back."""

    restarts: Restarts
    holds: bool
    growth: MeasuredGrowth | None = None
    """Measured of the processes that run in place of the incident's own; None while none does."""
    grow_on: tuple[str, ...] = ()
    """UUIDs of the GPUs on which the incident's own processes grow."""
    growing: int = 0
    """Number of those processes."""
    news_at: float | None = None
    """Unix time from which on it is told that what was started again grows; None while it does not."""
    shows_growth: bool = False
    """Whether a line says that it grows; it takes no word back while memory rises."""
    is_acted_on: bool = False
    """Whether a remedy acts on one of the incident's processes, or has just done so."""
    is_freed: bool = False
    """Whether a remedy gave the memory of one of them back."""

    @property
    def awaits_restart(self) -> bool:
        """Whether what was, or may be, started again holds the end back, and not a remedy that ends it."""
        acts_alone = self.is_acted_on and not self.restarts.runs_as
        return self.holds and self.restarts.since is not None and not acts_alone


SUCCESSOR_SECONDS = 300.0
"""Age up to which a process may be loading what it needs: that it grows is no news before."""
_NEWS_SECONDS = 30.0
"""For so long what was started again has to be seen to grow before that is told."""


def watch(
    before: Restarts, identities: Collection[str], seen: OwnerFacts, now: float, began: float, meter: MemoryMeter,
    *, unread_since: float | None = None,
) -> Watch:  # fmt: skip
    """Return what has become of the owner of an incident with these identities, which began then. Both in Unix time.

    `meter` follows the memory of the processes that were started in place of the incident's own. `unread_since` is the
    Unix time since which processes could not be listed until now.
    """
    if not seen.is_readable:
        return Watch(before, holds=True)
    if before.peers is None:
        later = tuple(one for one in seen.others if one.started_at >= began)
    else:
        earliest = began - _START_SLACK_SECONDS
        later = tuple(one for one in seen.others if one.identity not in before.peers and one.started_at >= earliest)
    after = _follow(before, seen, later, now, began, unread_since)
    if before.runs_as and not after.runs_as and not seen.runs:
        after = replace(after, last_bytes=meter.last_bytes)
    if before.last_grew and after.count > before.count:
        left_at, held = (now, meter.last_bytes) if before.runs_as else (before.since, before.last_bytes)
        after = replace(after, grew_before=LastRun(before.last, grew=True, left_at=left_at, held_bytes=held))
    if seen.runs or not later:
        return Watch(after, _holds(after, identities, seen, later, now, None, 0.0))
    meter.add({one.identity: one.used_bytes for one in later}, now)
    growth = meter.measure(after.pace, now)
    if growth.is_comparable(after.pace):
        meter.began = now
    if not growth.goes_on:
        meter.grows_since = None
    elif meter.grows_since is None:
        meter.grows_since = now
    meter.shows_growth = growth.goes_on or (meter.shows_growth and growth.rises_still)
    holds = _holds(after, identities, seen, later, now, growth, meter.began)
    flat = max(growth.window_seconds, meter.flat_seconds(now)) if growth.is_flat and not holds else 0.0
    grows_by = 0.0 if holds else growth.bytes_per_second
    news_at = None
    if holds and meter.grows_since is not None and after.since is not None:
        news_at = max(meter.grows_since + _NEWS_SECONDS, after.since + SUCCESSOR_SECONDS)
    grew = after.last_grew or (news_at is not None and now >= news_at)
    after = replace(after, flat_seconds=flat, grows_by=grows_by, last_grew=grew)
    return Watch(after, holds, growth, news_at=news_at, shows_growth=meter.shows_growth or grew)


def _follow(
    before: Restarts, seen: OwnerFacts, later: Sequence[Successor], now: float, began: float,
    unread_since: float | None,
) -> Restarts:  # fmt: skip
    if seen.runs:
        # What was started while the incident went on may replace its process, which ends a while later then.
        beside = [one for one in seen.others if one.started_at <= began or now - one.started_at >= _OVERLAP_SECONDS]
        peers = tuple(sorted(one.identity for one in beside)[:_MOST_PEERS])
        pace = float(f"{seen.pace:.2g}") if seen.pace > 0 else before.pace
        since = before.since if before.runs_as else None
        return replace(before, peers=peers, since=since, pace=pace, flat_seconds=0.0, grows_by=0.0)
    names = [one.identity for one in later]
    if not names:
        is_known = not before.runs_as and before.since is not None
        return before if is_known else replace(
            before, runs_as="", since=now, flat_seconds=0.0, grows_by=0.0, unread_since=unread_since,
        )  # fmt: skip
    known = tuple(dict.fromkeys((*before.processes, *names)))[-_MOST_PEERS:]
    place = _common_place(later)
    if before.runs_as in names:
        return replace(before, processes=known, last={**before.last, **place})
    first = later[0]
    # Workers that were started together are one restart, whichever of them is left.
    came_later = not before.runs_as or before.since is None or first.started_at > before.since
    if came_later and first.identity not in before.processes:
        names = names[:_MOST_PEERS]
        return replace(
            before, count=before.count + 1, runs_as=first.identity, since=now, processes=tuple(names),
            last={**first.labels, **place}, last_grew=False, unread_since=None,
        )  # fmt: skip
    since = before.since if before.runs_as and before.since is not None else now
    return replace(before, runs_as=first.identity, since=since, processes=known)


def _common_place(processes: Sequence[Successor]) -> dict[str, str]:
    """Return the labels of the GPU that all of these are on; "" where they are on several."""
    first, *others = [{name: one.labels.get(name, "") for name in PLACE_LABELS} for one in processes]
    return first if all(one == first for one in others) else dict.fromkeys(PLACE_LABELS, "")


def _holds(
    after: Restarts, identities: Collection[str], seen: OwnerFacts, later: Sequence[Successor], now: float,
    growth: MeasuredGrowth | None, measured_since: float,
) -> bool:  # fmt: skip
    if any(one.grows for one in seen.others if one.is_owned or one in later):
        return True
    if seen.runs or after.since is None:
        return False
    if seen.freed_at is not None and seen.freed_at >= after.since - _FREED_SLACK_SECONDS:
        return False  # it was ended on purpose, and its memory is seen to be back: that is told at once
    if growth is not None:
        waited = now - max(after.since, measured_since)
        return _may_grow(after, growth, waited, is_judged=all(one.is_judged for one in later))
    longest = RESTART_AGAIN_SECONDS if after.count else _first_wait(identities)
    return 0.0 <= now - after.since < longest


def _may_grow(after: Restarts, growth: MeasuredGrowth, waited: float, *, is_judged: bool) -> bool:
    """Return whether what was started again grows, or may: `waited` are seconds since it runs and is measured."""
    if growth.is_comparable(after.pace):
        return True
    if growth.is_flat and is_judged:
        return False
    return 0.0 <= waited < max(UNJUDGED_SECONDS, growth.window_seconds + _MEASURING_SLACK_SECONDS)


def _first_wait(identities: Collection[str]) -> float:
    """Return for how long the first restart is waited for, by who may do it."""
    shared = [one for one in identities if one.endswith(_OF_MEMORY)]
    if any(one.startswith(_MANAGED) for one in shared):
        return RESTART_SECONDS
    return BY_HAND_SECONDS if any(one.startswith(_REPEATED) for one in shared) else 0.0


def find_process(identities: Collection[str], pid: int) -> ProcessId | None:
    """Return the process with this pid among the identities of an incident; None if there is none."""
    for identity in identities:
        kind, _, rest = identity.partition(":")
        parts = rest.split(":")
        if kind == "process" and len(parts) == 3 and parts[1] == str(pid) and parts[2].isdecimal():
            return ProcessId(parts[0], pid, int(parts[2]))
    return None


def dump_restarts(one: Restarts) -> list[object]:
    """Return it ready for JSON."""
    peers = None if one.peers is None else list(one.peers)
    return [
        one.count, one.runs_as, one.since, peers, list(one.processes), one.pace, one.flat_seconds, one.grows_by,
        dict(one.last), one.last_grew, one.unread_since, one.last_bytes, _dump_run(one.grew_before),
    ]  # fmt: skip


def load_restarts(value: object) -> Restarts:
    """Read it back; None, as older versions have it, is none. Raises ValueError for anything else."""
    if value is None:
        return Restarts()
    count, runs_as, since, peers, *rest = array(value)
    known = None if peers is None else tuple(word(one) for one in array(peers))
    found = Restarts(integer(count), text(runs_as), unix_time_or_none(since), known)
    if not rest:  # written by an older version
        return found
    processes, *figures = rest
    pace, flat, grows_by = (finite(one) for one in figures[:3])
    found = replace(
        found, processes=tuple(word(one) for one in array(processes)), pace=pace, flat_seconds=flat, grows_by=grows_by
    )
    if not figures[3:]:  # written by an older version
        return found
    last, grew, unread_since, *held = figures[3:]
    return replace(
        found, last=texts(last), last_grew=flag(grew), unread_since=unix_time_or_none(unread_since),
        last_bytes=integer(held[0]) if held else 0, grew_before=_load_run(held[1]) if held[1:] else None,
    )  # fmt: skip


def _dump_run(one: LastRun | None) -> list[object] | None:
    return None if one is None else [dict(one.labels), one.left_at, one.held_bytes]


def _load_run(value: object) -> LastRun | None:
    if value is None:
        return None
    labels, left_at, held = array(value)
    return LastRun(texts(labels), grew=True, left_at=unix_time_or_none(left_at), held_bytes=integer(held))
