"""Set a memory limit and take it off again: what root does, in the helper.

Only a cgroup without any limit gets one, and only a limit that is in the ledger, is on the same cgroup still and has
the same value is taken off. So no limit of anybody else's is ever changed, whoever asks. A row of the ledger stays
until the driver has told that its limit is gone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol

from gpuagent.core.memory_limits import (
    GRANULE_BYTES,
    LEAST_BYTES,
    NO_LIMIT_BYTES,
    ROUNDING_BYTES,
    LimitHolder,
    LimitReading,
    LimitRefused,
    LimitUnknown,
    MemoryLimit,
    SetLimit,
)
from gpuagent.core.units import format_bytes
from gpuagent.driver.memory_limits.folders import CgroupFolders
from gpuagent.driver.memory_limits.ledger import LimitLedger

_MOST_BYTES = 2**48
_NO_GUARANTEE = 0
"""Soft limit: what a cgroup is guaranteed is taken from all others, so nothing is."""


class DriverLimits(Protocol):
    """The driver's own calls. Each raises LimitRefused."""

    def session(self) -> AbstractContextManager[None]: ...

    def read(self, gpu_uuid: str, folder: str) -> LimitReading | None: ...

    def write(self, gpu_uuid: str, folder: str, soft_bytes: int, hard_bytes: int) -> None: ...


class MemoryLimitSetter:
    """See `gpuagent.core.memory_limits.MemoryLimits`. Thread-safe: one call at a time."""

    def __init__(
        self,
        driver: DriverLimits,
        ledger: LimitLedger,
        folders: CgroupFolders,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._driver = driver
        self._ledger = ledger
        self._folders = folders
        self._wall = wall
        self._lock = threading.Lock()

    def refusal(self) -> str:
        return self._folders.refusal()

    def set(
        self, gpu_uuid: str, cgroup: str, inode: int, hard_bytes: int, holder: LimitHolder, *,
        rehearse: bool = False, is_wanted: Callable[[], bool] = lambda: True,
    ) -> SetLimit:  # fmt: skip
        """Set a limit. `is_wanted` is asked last: a driver that is slow must not do what nobody waits for any more."""
        if not LEAST_BYTES <= hard_bytes < _MOST_BYTES:
            raise LimitRefused(f"a memory limit of {format_bytes(hard_bytes)} is none that a GPU can have")
        hard_bytes = -(-hard_bytes // GRANULE_BYTES) * GRANULE_BYTES
        with self._lock, self._driver.session():
            self._check(gpu_uuid, cgroup)
            if self._folders.inode(cgroup) != inode:
                raise LimitRefused(f"cgroup {cgroup} has ended, or was made anew since it was looked at")
            limit = MemoryLimit(
                gpu_uuid, cgroup, inode, hard_bytes, self._ledger.boot_id, self._wall(), holder, is_set=False
            )
            if rehearse:
                return SetLimit(limit, 0)
            if not is_wanted():
                raise LimitRefused("the driver was too slow: nobody waits for it any more, and it is not done")
            self._ledger.put(limit)  # before the call: an end of this process in between leaves no limit of nobody's
            return self._write(limit)

    def lift(self, gpu_uuid: str, cgroup: str, owner: str) -> str:
        with self._lock:
            limit = self._ledger.find(gpu_uuid, cgroup)
            if limit is None:
                raise LimitRefused(f"gpuagent has set no memory limit on {cgroup}")
            if limit.holder.owner != owner:
                raise LimitRefused(f"another agent has set the memory limit on {cgroup}, and lifts it")
            with self._driver.session():
                return self._take_off(limit)

    def is_there(self, limit: MemoryLimit) -> bool:
        return self._folders.has(limit.cgroup, limit.inode)

    def limits(self) -> tuple[MemoryLimit, ...]:
        with self._lock:
            rows = self._ledger.limits()
            if not rows:
                return ()
            try:
                with self._driver.session():
                    return tuple(found for each in rows if (found := self._confirmed(each)) is not None)
            except LimitRefused:
                return tuple(replace(each, is_set=False) for each in rows)

    def _confirmed(self, limit: MemoryLimit) -> MemoryLimit | None:
        """Return a limit of the ledger as the driver has it now; None where it has it no more, and forget it then."""
        try:
            if self._folders.inode(limit.cgroup) == limit.inode:
                found = self._driver.read(limit.gpu_uuid, self._folders.path(limit.cgroup))
                if found is not None and _is_ours(limit, found):
                    return self._settled(limit)
                if found is not None and _may_be_ours(limit, found):
                    return limit
        except LimitRefused:
            return replace(limit, is_set=False)  # nobody knows
        self._ledger.remove(*limit.key)
        return None

    def _settled(self, limit: MemoryLimit) -> MemoryLimit:
        """Write down that one is set whose call was not seen to end."""
        if not limit.is_set:
            limit = replace(limit, is_set=True)
            self._ledger.put(limit)
        return limit

    def _check(self, gpu_uuid: str, cgroup: str) -> None:
        """Refuse a cgroup that has a limit, of whomever it is, or that stands above or below one."""
        folder = self._folders.find(cgroup)
        ours = self._ledger.find(gpu_uuid, cgroup)
        if ours is not None and (ours := self._confirmed(ours)) is not None:
            words = "has limited" if ours.is_set else "may have limited"
            raise LimitRefused(f"gpuagent {words} {cgroup} to {format_bytes(ours.hard_bytes)} already")
        for path in self._above_and_below(cgroup):
            found = self._driver.read(gpu_uuid, path)
            if found is not None:
                where = cgroup if path == str(folder) else path
                raise LimitRefused(
                    f"{where} has a memory limit already, its own or that of a cgroup above ({_words(found)}): gpuagent"
                    " changes no limit that others have set (nvidia-smi memory-limits)"
                )

    def _above_and_below(self, cgroup: str) -> Iterator[str]:
        """Yield the cgroup, those above it and those inside.

        Without the kernel's dmem controller a limit holds for who has none nearer by: ours would take the cgroup out of
        one above, and would not hold for one inside that has its own.
        """
        names = cgroup.strip("/").split("/")
        for depth in range(len(names), 0, -1):
            yield self._folders.path("/".join(names[:depth]))
        yield from self._folders.below(self._folders.find(cgroup))

    def _write(self, limit: MemoryLimit) -> SetLimit:
        """Set it, and read it back. Raises LimitRefused where that is not what was meant: then it is taken back."""
        path = self._folders.path(limit.cgroup)
        was_set = False
        try:
            self._driver.write(limit.gpu_uuid, path, _NO_GUARANTEE, limit.hard_bytes)
            was_set = True
            found = self._driver.read(limit.gpu_uuid, path)
            if found is None:
                raise LimitRefused("the driver has taken the memory limit, and tells of none: it is not known to hold")
            if found.soft_bytes != _NO_GUARANTEE or abs(found.hard_bytes - limit.hard_bytes) > ROUNDING_BYTES:
                raise LimitRefused(f"the driver has made another memory limit of it ({_words(found)})")
            if self._folders.inode(limit.cgroup) != limit.inode:
                raise LimitRefused(f"cgroup {limit.cgroup} was made anew meanwhile")
            limit = replace(limit, hard_bytes=found.hard_bytes, is_set=True)  # as the driver has rounded it
            self._ledger.put(limit)
        except LimitRefused as refusal:
            if not self._undo(limit, was_set=was_set):
                raise LimitUnknown(f"{refusal}; it is not known whether {limit.cgroup} has the limit now") from None
            raise
        return SetLimit(limit, found.used_bytes)

    def _undo(self, limit: MemoryLimit, *, was_set: bool) -> bool:
        """Take back what was just set, or may have been; return whether it is known that nothing is left.

        Nobody else had a limit there a moment ago. What is not known stays in the ledger, and is lifted from there.
        """
        path = self._folders.path(limit.cgroup)
        try:
            found = self._driver.read(limit.gpu_uuid, path)
            if was_set or (found is not None and _is_ours(limit, found)):
                self._driver.write(limit.gpu_uuid, path, 0, NO_LIMIT_BYTES)
                found = self._driver.read(limit.gpu_uuid, path)
            if found is not None:
                return False
            self._ledger.remove(*limit.key)
        except LimitRefused:
            return False
        return True

    def _take_off(self, limit: MemoryLimit) -> str:
        """Take it off where it is ours still. Raises LimitRefused where that is not known to have worked."""
        path = self._folders.path(limit.cgroup)
        if self._folders.inode(limit.cgroup) != limit.inode:
            self._ledger.remove(*limit.key)
            return f"cgroup {limit.cgroup} is gone, and its memory limit with it"
        found = self._driver.read(limit.gpu_uuid, path)
        if found is None:
            self._ledger.remove(*limit.key)
            return f"{limit.cgroup} has no memory limit any more"
        if not _is_ours(limit, found):
            if _may_be_ours(limit, found):
                raise LimitRefused(
                    f"{limit.cgroup} is limited to {format_bytes(found.hard_bytes)}, and it is not known whether"
                    " gpuagent has set that: see nvidia-smi memory-limits"
                )
            self._ledger.remove(*limit.key)
            return (
                f"somebody else has changed the memory limit of {limit.cgroup} ({_words(found)}): it is left as it is"
            )
        self._driver.write(limit.gpu_uuid, path, 0, NO_LIMIT_BYTES)
        left = self._driver.read(limit.gpu_uuid, path)
        if left is not None:
            raise LimitRefused(f"the driver still tells of a memory limit on {limit.cgroup} ({_words(left)})")
        self._ledger.remove(*limit.key)
        return f"the memory limit of {format_bytes(limit.hard_bytes)} on {limit.cgroup} is lifted"


def _is_ours(limit: MemoryLimit, found: LimitReading) -> bool:
    """Return whether it is the very value that was set, as the driver has rounded it, or is to have been set."""
    return found.soft_bytes == _NO_GUARANTEE and found.hard_bytes == limit.hard_bytes


def _may_be_ours(limit: MemoryLimit, found: LimitReading) -> bool:
    """Return whether it may be what the driver has made of a value whose call was not seen to end."""
    near = abs(found.hard_bytes - limit.hard_bytes) <= ROUNDING_BYTES
    return not limit.is_set and found.soft_bytes == _NO_GUARANTEE and near


def _words(found: LimitReading) -> str:
    hard = "no hard limit" if found.hard_bytes >= NO_LIMIT_BYTES else f"at most {format_bytes(found.hard_bytes)}"
    return f"{hard}, {format_bytes(found.soft_bytes)} guaranteed" if found.soft_bytes else hard
