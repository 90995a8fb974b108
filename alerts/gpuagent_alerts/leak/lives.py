"""What the lives of a service have shown: where one levelled off, and whether one leaked until its end.

A service is what only its owner can name: a unit and a container that root has chosen, or a user with a command. What
is remembered is bounded, and a new version of the service begins anew.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from zlib import crc32

from gpuagent.core.snapshot import ProcessInfo
from gpuagent_alerts.leak.blocks import BLOCK_SECONDS, EMPTY, PAGE_BYTES, BlockStore
from gpuagent_alerts.leak.witnesses import NOTHING_KNOWN, Prior

MOST_SERVICES: Final = 1024
"""About 300 KiB; the one that was heard of longest ago is forgotten."""
LEVEL_SECONDS: Final = 86_400.0
"""A life has levelled off when the highest of the last day is hardly above what was held before."""
_LEVEL_OF_LEVEL: Final = 8
"""Of the blocks by which that is told: 64 min each, 34 h of them."""
GROWN_LIVES: Final = 3
"""So many lives that were still growing at their end, more than were not, count as one that leaked."""
MOST_GROWN: Final = 5
"""More are not counted: what has stopped growing is to be forgotten."""
QUIET_LIVES: Final = 2
"""So many lives in a row without growth end what the ones before had shown."""
_QUIET_SECONDS: Final = 6 * 3600.0
"""A life must have lasted so long to be quiet."""
RESTARTED_WITHIN_SECONDS: Final = 600.0
"""A life that begins so soon after the one before has ended is a restart, and no job that runs now and then."""
_OF_USER: Final = "user "
"""What the owner of a service begins with that is no unit and no container."""
_LONG_NUMBER: Final = re.compile(r"\d{4,}")
_POD: Final = re.compile(r"^(?P<name>.+?)-(?P<version>[a-z0-9]{6,10})-[a-z0-9]{5}$")
_ORDINAL: Final = re.compile(r"\d+")
_INSTANCE: Final = re.compile(r"^(?P<template>[^@/]+@)[^@/]+(?P<suffix>\.service)$")
_STATEFUL: Final = re.compile(r"-\d+$")
_WHOLE_NUMBER: Final = re.compile(r"(?:(?<![\w.\-:])|(?<=cuda:)|(?<=gpu:))\d+(?![\w.\-])|(?<=:)\d{4,5}(?![\w.\-])")
"""A GPU, a port or a rank, by which replicas differ, and no part of a model's name such as `llama:8`."""


class ServiceKey(NamedTuple):
    """A service on GPUs of one size."""

    owner: str
    """The unit, container or user."""
    name: str
    """The process's name, without numbers: workers are told apart by these."""
    total_bytes: int


class Service(NamedTuple):
    """A service in one version."""

    key: ServiceKey
    version: int
    replicas: str = ""
    """What its replicas share, on GPUs of any size: also the instances of a template, and pods of a stateful set. All
    run the same command but for numbers such as a port: another model is another service."""


def service_of(info: ProcessInfo, total_bytes: int = 0) -> Service | None:
    """Return whose life a process is; None where nobody but the process itself says so."""
    name, command = _ORDINAL.sub("", info.name), _LONG_NUMBER.sub("", info.command)
    version, group = "", ""
    if "container" in info.proven_names and info.container_id:
        if not info.container_name and not info.pod:
            return None
        owner, version = info.container_name or f"{info.namespace}/{info.pod}", ""
        parts = owner.split("/")
        pod = _POD.match(parts[1]) if len(parts) == 3 else None
        if pod is not None:
            owner, version = f"{parts[0]}/{pod['name']}/{parts[2]}", pod["version"]
        elif len(parts) == 3:
            group = f"container {parts[0]}/{_STATEFUL.sub('', parts[1])}/{parts[2]}"
        owner = f"container {owner}"
    elif info.unit and "unit" in info.proven_names:
        owner = f"unit {info.unit}"
        unit = _INSTANCE.match(info.unit)
        if unit is not None:
            group = f"unit {unit['template']}{unit['suffix']}"
    elif info.on_host and not info.container_id:
        owner, group = f"{_OF_USER}{info.uid} {crc32(command.encode())}", f"{_OF_USER}{info.uid}"
    else:
        return None
    common = crc32(f"{version}\0{_WHOLE_NUMBER.sub('', info.command)}".encode())
    # Of a user's processes nothing but the command tells one program from another.
    replicas = "" if group.startswith(_OF_USER) and not info.command else f"{group or owner} {name} {common}"
    return Service(ServiceKey(owner, name, total_bytes), crc32(f"{version}\0{command}".encode()), replicas)


class LifeSoFar(NamedTuple):
    """What a process has shown. Memory in pages, 0 where it has not levelled off."""

    seconds: float
    level_used: int
    level_tensors: int
    leaks: bool
    """It is called leaking."""
    grows: bool
    """It rises like a leak."""
    full: bool
    """The memory is gone, or would be within minutes."""
    strongly: bool
    """It leaks by a strict standard."""
    rises: bool = False
    """It rises evenly now, and has not taken enough for more to be said of it by itself."""
    last_seconds: float = 0.0
    """Time of its last reading, on the detector's clock."""
    rose: bool = False
    """Its floor rose from its start until now, over hours."""


@dataclass(slots=True)
class ServiceMemory:
    """What is remembered of one service."""

    version: int
    level_used: int = 0
    level_tensors: int = 0
    exhausted: int = 0
    """Lives in which a leak took all of the memory."""
    leaked: int = 0
    """Lives that were still leaking at their end."""
    grown: int = 0
    """Lives that were still growing at their end, less those that were not."""
    quiet: int = 0
    """Lives in a row without growth."""
    unclaimed: int = 0
    """Processes that leaked when the agent before was stopped, and that this one has not seen."""
    cut_short: int = 0
    """Lives one after the other, restarted at once, that were rising when they ended. Not kept over a restart."""
    cut_short_seconds: float = -math.inf
    """Time at which the last of those ended."""
    leaking: set[Hashable] = field(default_factory=set)
    """Living processes that leak. Their number alone is kept over a restart."""
    gone: set[Hashable] = field(default_factory=set)
    """Processes that were leaking when they left the GPU a moment ago: not counted as lives yet. Kept as above."""

    def has_leaked(self, process: Hashable = None) -> bool:
        """Return whether another life leaked until its end, or several were growing when they were cut short.

        `process` asks: that it left one of its GPUs itself is no other life.
        """
        left = any(not (isinstance(one, tuple) and one[0] == process) for one in self.gone)
        return bool(self.exhausted or self.leaked or left or self.unclaimed) or self.grown >= GROWN_LIVES

    def prior(self, process: Hashable = None) -> Prior:
        """Return what the other lives tell about the one that asks."""
        again = self.cut_short_seconds if self.cut_short >= GROWN_LIVES and not self.level_used else None
        return Prior(self.level_used, self.level_tensors, self.has_leaked(process), bool(self.exhausted), 0, again)

    def note_life(self, life: LifeSoFar, process: Hashable = None) -> None:
        """Note what a process shows while it lives."""
        self.gone.discard(process)
        if life.leaks:
            self.leaking.add(process)
        else:
            self.leaking.discard(process)
        if life.level_used or life.level_tensors:
            self.level_used = max(self.level_used, life.level_used)
            self.level_tensors = max(self.level_tensors, life.level_tensors)
            if not life.leaks:
                self.exhausted = self.leaked = self.grown = 0

    def leave(self, life: LifeSoFar, process: Hashable) -> bool:
        """Note that a process has left the GPU, for good or not; return whether that tells the others something."""
        if not life.leaks or process in self.gone:
            return False
        self.gone.add(process)
        self.leaking.discard(process)
        return True

    def claim(self) -> None:
        """Note that a process lives that leaked when the agent before was stopped."""
        self.unclaimed = max(self.unclaimed - 1, 0)

    def end_unclaimed(self) -> None:
        """Note that the others of those have ended: their lives leaked until then."""
        self.leaked, self.unclaimed = self.leaked + self.unclaimed, 0

    def end_life(self, life: LifeSoFar, process: Hashable = None) -> None:
        """Note how a life ended."""
        self.note_life(life, process)
        self.leaking.discard(process)
        self._count_cut_short(life)
        if life.leaks:
            self.exhausted += life.full
            self.leaked += 1
        if life.leaks or life.grows or life.rose:
            self.grown, self.quiet = min(self.grown + 1, MOST_GROWN), 0
        elif life.seconds >= _QUIET_SECONDS:
            self.grown, self.quiet = max(self.grown - 1, 0), self.quiet + 1
            if self.quiet >= QUIET_LIVES:
                self.exhausted = self.leaked = 0

    def end_part(self, process: Hashable) -> bool:
        """Note that a process has ended on one GPU; return whether it leaks on another, and so lives on."""
        self.gone.discard(process)
        self.leaking.discard(process)
        return isinstance(process, tuple) and any(isinstance(o, tuple) and o[0] == process[0] for o in self.leaking)

    def _count_cut_short(self, life: LifeSoFar) -> None:
        """Count a life that was rising at its end, if it was started after the one before had ended.

        What ran beside that one, such as another worker, ends with the same restart and is no life more.
        """
        waited = life.last_seconds - life.seconds - self.cut_short_seconds
        if not (life.rises or life.leaks or life.grows):
            if life.seconds >= RESTARTED_WITHIN_SECONDS:
                self.cut_short, self.cut_short_seconds = 0, -math.inf
        elif waited >= 0:
            self.cut_short = self.cut_short + 1 if waited <= RESTARTED_WITHIN_SECONDS else 1
            self.cut_short_seconds = life.last_seconds


class ServiceRow(NamedTuple):
    """What is kept of one service over a restart."""

    key: ServiceKey
    version: int
    level_used: int
    level_tensors: int
    exhausted: int
    leaked: int
    grown: int
    quiet: int
    leaking: int = 0
    """Processes that leak, or left while they did: their lives are over if the next agent does not see them."""


class Lives:
    """The services that have been heard of, the one of longest ago first."""

    def __init__(self, most: int = MOST_SERVICES) -> None:
        self._most = most
        self._services: OrderedDict[ServiceKey, ServiceMemory] = OrderedDict()
        self._sizes: dict[tuple[str, str], set[int]] = {}
        """Bytes of the memories on which a service has run, by its owner and name."""
        self._kept: list[ServiceRow] = []
        """What was given away to be kept last."""
        self._leaking: dict[str, set[tuple[Hashable, Hashable]]] = {}
        """Living processes that leak by a strict standard, with where they do, by what their replicas share. Not kept
        over a restart: they say so again."""

    def __len__(self) -> int:
        return len(self._services)

    def prior(self, service: Service | None, process: Hashable) -> Prior:
        """Return what is known of a service's other lives; nothing of another version."""
        if service is None:
            return NOTHING_KNOWN
        # A process is no witness for itself, however many GPUs it is on.
        replicas = len({other for other, _ in self._leaking.get(service.replicas, ())} - {process})
        known = self._services.get(service.key)
        if known is None or known.version != service.version:
            return NOTHING_KNOWN._replace(leaked=self._has_leaked_elsewhere(service, process), replicas=replicas)
        prior = known.prior(process)._replace(replicas=replicas)
        if not (known.level_used or known.level_tensors or known.quiet):
            prior = prior._replace(leaked=prior.leaked or self._has_leaked_elsewhere(service, process))
        # Who runs a command again and again by hand or from a queue runs jobs, which end when they are done.
        return prior._replace(cut_short_seconds=None) if service.key.owner.startswith(_OF_USER) else prior

    def note_life(self, service: Service, process: Hashable, life: LifeSoFar, place: Hashable = None) -> None:
        """Note what a living process shows; `place` is the GPU, or the MIG instance, on which it shows that."""
        self._note_leaking(service, (process, place), leaks=life.strongly)
        self._of(service).note_life(life, (process, place))

    def leave(self, service: Service, process: Hashable, life: LifeSoFar, place: Hashable = None) -> bool:
        """Note that a process has left the GPU; return whether that tells something to the others of its service."""
        self._note_leaking(service, (process, place), leaks=False)
        known = self._services.get(service.key)
        if known is not None and known.version != service.version:
            return False
        return self._of(service).leave(life, (process, place))

    def end_life(self, service: Service, process: Hashable, life: LifeSoFar, place: Hashable = None) -> None:
        """Note how a life ended. One of an earlier version tells nothing any more."""
        self._note_leaking(service, (process, place), leaks=False)
        known = self._services.get(service.key)
        if known is not None and known.version != service.version:
            return
        memory = self._of(service)
        if not memory.end_part((process, place)):
            memory.end_life(life, (process, place))

    def hide(self, service: Service, process: Hashable, place: Hashable = None) -> None:
        """Note that a process is not seen, as on a GPU that is lost: it is no witness for others meanwhile."""
        self._note_leaking(service, (process, place), leaks=False)

    def _note_leaking(self, service: Service, who: tuple[Hashable, Hashable], *, leaks: bool) -> None:
        if leaks and service.replicas:
            self._leaking.setdefault(service.replicas, set()).add(who)
        elif service.replicas in self._leaking:
            self._leaking[service.replicas].discard(who)
            if not self._leaking[service.replicas]:
                del self._leaking[service.replicas]

    def claim(self, service: Service) -> None:
        """Note that a process of a service lives that leaked when the agent before was stopped."""
        known = self._services.get(service.key)
        if known is not None and known.version == service.version:
            known.claim()

    def end_unclaimed(self) -> None:
        """Note that those that leaked then and have not been seen since have ended."""
        for known in self._services.values():
            known.end_unclaimed()

    def _has_leaked_elsewhere(self, service: Service, process: Hashable) -> bool:
        """Return whether a life of this version leaked on a GPU, or in a MIG instance, of another size.

        Where a cache stops may follow from the size of the memory; a leak does not.
        """
        key = service.key
        others = (self._services.get(key._replace(total_bytes=each)) for each in self._sizes.get(key[:2], ()))
        return any(one.has_leaked(process) for one in others if one is not None and one.version == service.version)

    def rows(self) -> list[ServiceRow]:
        """Return what is to be kept: services of which something is known."""
        return [
            ServiceRow(
                key, one.version, one.level_used, one.level_tensors, one.exhausted, one.leaked, one.grown, one.quiet,
                len(one.leaking) + len(one.gone) + one.unclaimed,
            )
            for key, one in self._services.items()
            if one.level_used or one.level_tensors or one.has_leaked() or one.grown or one.leaking
        ]  # fmt: skip

    def take_changed(self) -> list[ServiceRow] | None:
        """Return all that is to be kept, if it is not what was kept last; else None."""
        rows = self.rows()
        if rows == self._kept:
            return None
        self._kept = rows
        return rows

    def keep_again(self) -> None:
        """Give it all again: what was taken could not be kept."""
        self._kept = []

    def restore(self, rows: Iterable[ServiceRow]) -> None:
        """Go on with what was kept."""
        for row in rows:
            self._services[row.key] = ServiceMemory(*row[1:])
            self._sizes.setdefault(row.key[:2], set()).add(row.key.total_bytes)
        self._make_room()
        self._kept = self.rows()

    def _of(self, service: Service) -> ServiceMemory:
        known = self._services.get(service.key)
        if known is None or known.version != service.version:
            known = self._services[service.key] = ServiceMemory(service.version)
            self._sizes.setdefault(service.key[:2], set()).add(service.key.total_bytes)
        self._services.move_to_end(service.key)
        self._make_room()
        return known

    def _make_room(self) -> None:
        while len(self._services) > self._most:
            key, _ = self._services.popitem(last=False)
            sizes = self._sizes[key[:2]]
            sizes.discard(key.total_bytes)
            if not sizes:
                del self._sizes[key[:2]]


def level_of(store: BlockStore, least_growth_bytes: float) -> int:
    """Return the pages at which a signal has levelled off; 0 where it has not, or is too young."""
    if store.levels <= _LEVEL_OF_LEVEL:
        return 0
    blocks = [value for value in store.ring(_LEVEL_OF_LEVEL) if value != EMPTY]
    day = int(LEVEL_SECONDS / (BLOCK_SECONDS << _LEVEL_OF_LEVEL))
    if len(blocks) <= day:
        return 0
    before = max((*blocks[:-day], *store.highs_of(_LEVEL_OF_LEVEL)))
    recent = max(blocks[-day:])
    return max(before, recent) if recent - before <= least_growth_bytes / PAGE_BYTES / 2 else 0
