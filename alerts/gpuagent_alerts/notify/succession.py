"""Whether a process was started in place of those of an incident, and for how long that holds its end back.

A service that crashes and is started again goes on with what it did, and the end of its first process is no end of
the trouble. So the incident goes on while a successor grows, for as long as the leak detector has no verdict on it, and
for a while in which a service manager may start it again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpuagent.core.identity import ProcessId
from gpuagent_alerts.store.tables import array, integer, text, unix_time_or_none, word

UNJUDGED_SECONDS = 900.0
"""Longest wait for a verdict on a successor: the detector has one 6 to 9 min after it is on the GPU."""
RESTART_SECONDS = 90.0
"""Wait for a successor of a service or container: `RestartSec`, imports and the first use of the GPU."""
BY_HAND_SECONDS = 30.0
"""The same of a job, and of a command that a script may repeat."""
RESTART_AGAIN_SECONDS = 330.0
"""The same of each once it has been started again: Kubernetes' back-off is up to 5 min."""
_MANAGED = ("group:unit:", "group:container:", "group:pod:")
_REPEATED = ("group:job:", "command:")
_OF_MEMORY = ":memory"


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


_MOST_PEERS = 256
_START_SLACK_SECONDS = 300.0
"""What was started longer before the incident is not new, though it was not on the GPU before."""


class OwnerFacts(NamedTuple):
    """What runs of the owner of an incident's processes at a tick."""

    runs: bool = False
    """Whether one of the incident's own processes does."""
    others: tuple[Successor, ...] = ()
    """All that are none of the incident's own; the one that was started first comes first."""


@dataclass(frozen=True, slots=True)
class Restarts:
    """What is known of the restarts of an incident's owner."""

    count: int = 0
    runs_as: str = ""
    """Identity of the process that was started last; "" of the first one, and while none runs."""
    since: float | None = None
    """Unix time since when that one, or none, runs; None while the incident's own process does."""
    peers: tuple[str, ...] | None = None
    """Identities of those that ran beside the incident's own: none was started in its place. None: not known."""

    @property
    def pid(self) -> int:
        """The pid of the process that was started last; 0 of the first one, and while none runs."""
        parts = self.runs_as.split(":")
        return int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() else 0


class Watch(NamedTuple):
    """Restarts of an incident's owner as they are now, and whether they hold its end back."""

    restarts: Restarts
    holds: bool


def watch(before: Restarts, identities: Collection[str], seen: OwnerFacts, now: float, began: float) -> Watch:
    """Return what has become of the owner of an incident with these identities, which began then. Both in Unix time."""
    if before.peers is None:
        later = tuple(one for one in seen.others if one.started_at >= began)
    else:
        earliest = began - _START_SLACK_SECONDS
        later = tuple(one for one in seen.others if one.identity not in before.peers and one.started_at >= earliest)
    after = _follow(before, seen, later, now)
    return Watch(after, _holds(after, identities, seen, later, now))


def _follow(before: Restarts, seen: OwnerFacts, later: Sequence[Successor], now: float) -> Restarts:
    if seen.runs:
        peers = tuple(sorted(one.identity for one in seen.others)[:_MOST_PEERS])
        return replace(before, peers=peers, since=before.since if before.runs_as else None)
    names = [one.identity for one in later]
    if before.runs_as in names or (not names and not before.runs_as and before.since is not None):
        return before
    if not names:
        return replace(before, runs_as="", since=now)
    first = later[0]
    # Workers that were started together are one restart, whichever of them is left.
    is_new = not before.runs_as or before.since is None or first.started_at > before.since
    return replace(before, count=before.count + is_new, runs_as=first.identity, since=now)


def _holds(
    after: Restarts, identities: Collection[str], seen: OwnerFacts, later: Sequence[Successor], now: float
) -> bool:
    if any(one.grows for one in seen.others if one.is_owned or one in later):
        return True
    if seen.runs or after.since is None:
        return False
    waited = now - after.since
    if later:
        return any(not one.is_judged for one in later) and 0.0 <= waited < UNJUDGED_SECONDS
    if after.count:
        return 0.0 <= waited < RESTART_AGAIN_SECONDS
    return 0.0 <= waited < _first_wait(identities)


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
    return [one.count, one.runs_as, one.since, None if one.peers is None else list(one.peers)]


def load_restarts(value: object) -> Restarts:
    """Read it back; None, as older versions have it, is none. Raises ValueError for anything else."""
    if value is None:
        return Restarts()
    count, runs_as, since, peers = array(value)
    known = None if peers is None else tuple(word(one) for one in array(peers))
    return Restarts(integer(count), text(runs_as), unix_time_or_none(since), known)
