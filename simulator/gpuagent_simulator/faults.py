"""Inject faults into a simulated node: what goes wrong, when, and for which calls.

A `Fault` is data; the `FaultInjector` knows which are active and delays calls. Faults come from the scenario or,
in tests, through `SimulatedNode.inject`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache

from gpuagent.core.sections import Section, key
from gpuagent_simulator.abi import Code, NvmlError
from gpuagent_simulator.curves import ScenarioClock
from gpuagent_simulator.values import Bytes, ErrorCode, PositiveSeconds, Seconds, Texts, Whole


class FaultKind(StrEnum):
    """Kinds of faults; the scenario format in docs/simulation.md says what each does."""

    LOST = "lost"
    VANISH = "vanish"
    HANG = "hang"
    SLOW = "slow"
    ERROR = "error"
    MISSING = "missing"
    DRIVER_RELOAD = "driver_reload"
    VERSION_MISMATCH = "version_mismatch"
    INIT_ERROR = "init_error"
    XID = "xid"
    PROCESS_LIST_GROWS = "process_list_grows"
    GARBAGE_SAMPLES = "garbage_samples"
    NON_UTF8_NAME = "non_utf8_name"
    PROCESS_STRIDE = "process_stride"
    UNAVAILABLE_MEMORY = "unavailable_memory"
    IMPOSSIBLE_MEMORY = "impossible_memory"
    GARBAGE_VALUES = "garbage_values"
    FULL = "full"


_COMMON = frozenset({"kind", "gpu", "at", "until"})
_TAKES: dict[FaultKind, tuple[str, ...]] = {
    FaultKind.LOST: ("code",),
    FaultKind.HANG: ("calls",),
    FaultKind.SLOW: ("calls", "seconds"),
    FaultKind.ERROR: ("calls", "code"),
    FaultKind.MISSING: ("calls",),
    FaultKind.DRIVER_RELOAD: ("down", "version"),
    FaultKind.INIT_ERROR: ("code",),
    FaultKind.XID: ("xid", "count", "every"),
    FaultKind.PROCESS_LIST_GROWS: ("by",),
    FaultKind.GARBAGE_VALUES: ("calls",),
    FaultKind.IMPOSSIBLE_MEMORY: ("size",),
    FaultKind.PROCESS_STRIDE: ("entry_bytes",),
}
_NEEDS: dict[FaultKind, tuple[str, ...]] = {
    FaultKind.SLOW: ("seconds",),
    FaultKind.ERROR: ("code",),
    FaultKind.MISSING: ("calls",),
    FaultKind.INIT_ERROR: ("code",),
    FaultKind.XID: ("xid",),
    FaultKind.IMPOSSIBLE_MEMORY: ("size",),
}
_NODE_WIDE = frozenset({FaultKind.MISSING, FaultKind.DRIVER_RELOAD, FaultKind.VERSION_MISMATCH, FaultKind.INIT_ERROR})


class Fault(Section, kw_only=False):
    """A fault that holds from `at` until `until`, in seconds of the scenario.

    On one GPU, or without `gpu` on all of them.

    `calls` names C entry points, `*` and `?` allowed; none means every call. Fields that a kind
    does not take are refused.

    Raises:
        ValueError: a field is missing, or makes no sense for this kind.
    """

    kind: FaultKind
    gpu: Whole | None = key(default=None, ge=0)
    at: Seconds = 0.0
    until: Seconds = math.inf
    calls: Texts = ()
    code: ErrorCode | None = None
    seconds: PositiveSeconds | None = None
    """Seconds that a slow call takes, in real time."""
    down: Seconds = 5.0
    """Seconds for which a reloaded driver is not there."""
    version: str = ""
    """Driver version after the reload."""
    xid: Whole | None = key(default=None, ge=1)
    count: Whole = key(default=1, ge=1, le=10_000)
    every: PositiveSeconds = 1.0
    by: Whole = key(default=40, ge=1, le=100_000)
    """Entries by which the process list grows after each call that found its buffer too small."""
    entry_bytes: Whole = 32
    """Length of the entries of a process list: 16 or 32."""
    size: Bytes | None = None
    """Memory that the process list gives for every process, whatever the device says."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", FaultKind(self.kind))
        allowed = _COMMON.union(_TAKES.get(self.kind, ()))
        for field in fields(self):
            given = field.name != "kind" and getattr(self, field.name) != field.default
            if given and field.name not in allowed:
                takes = ", ".join(sorted(allowed - {"kind"}))
                raise ValueError(f"{self.kind} takes no {field.name}: it takes {takes}")
            if not given and field.name in _NEEDS.get(self.kind, ()):
                raise ValueError(f"{self.kind} needs {field.name}")
        if self.gpu is not None and self.kind in _NODE_WIDE:
            raise ValueError(f"{self.kind} concerns the whole node: it takes no gpu")
        if self.entry_bytes not in (16, 32):
            raise ValueError("entry_bytes is 16 or 32")
        if self.until <= self.at:
            raise ValueError("until must be later than at")

    def active_at(self, seconds: float) -> bool:
        """Return whether the fault is active at this second of the scenario."""
        return self.at <= seconds < self.until

    def applies_to(self, symbol: str) -> bool:
        """Return whether the fault applies to this entry point."""
        return not self.calls or _matches(self.calls, symbol)


@lru_cache(maxsize=4096)
def _matches(patterns: tuple[str, ...], symbol: str) -> bool:
    return any(fnmatchcase(symbol, pattern) for pattern in patterns)


class FaultInjector:
    """Inject the faults of a node. Thread-safe: read without a lock, changed by replacing whole tuples."""

    def __init__(self, faults: tuple[Fault, ...], scenario_clock: ScenarioClock) -> None:
        self._scenario_clock = scenario_clock
        self._changed = threading.Condition()
        self._released = False
        self._faults = faults
        self._scopes: dict[int | None, tuple[Fault, ...]] = {}
        self._past_reloads = 0
        self._past_load = -math.inf
        self.version = 0
        """Grows with each change: what was computed under another version is out of date."""

    # ---- asked by entry points -------------------------------------------------------------------

    def of(self, gpu: int | None) -> tuple[Fault, ...]:
        """Return every fault that can concern this GPU, node-wide ones included.

        None: node-wide ones alone.
        """
        scope = self._scopes.get(gpu)
        if scope is None:
            scope = tuple(fault for fault in self._faults if fault.gpu is None or fault.gpu == gpu)
            self._scopes[gpu] = scope
        return scope

    def find(self, kind: FaultKind, gpu: int | None = None) -> Fault | None:
        """Return the active fault of this kind, if any."""
        for fault in self.of(gpu):
            if fault.kind is kind and fault.active_at(self._scenario_clock.now()):
                return fault
        return None

    def _on_call(self, symbol: str, gpu: int | None, *, own: bool) -> Iterator[Fault]:
        for fault in self.of(gpu):
            if own and fault.gpu is None:
                continue
            if fault.active_at(self._scenario_clock.now()) and fault.applies_to(symbol):
                yield fault

    def wait(self, symbol: str, gpu: int | None, *, own: bool = False) -> bool:
        """Hang or delay the call as the faults say; return whether any time was spent.

        `own`: only faults of this very GPU.
        """
        waited = False
        for fault in self._on_call(symbol, gpu, own=own):
            if fault.kind is FaultKind.SLOW and fault.seconds is not None:
                with self._changed:
                    self._changed.wait_for(lambda: self._released, timeout=fault.seconds)
                waited = True
            elif fault.kind is FaultKind.HANG:
                self._hang(fault)
                waited = True
        return waited

    def refuse(self, symbol: str, gpu: int | None, *, own: bool = False) -> None:
        """Raise the error that is injected for this call, if any."""
        for fault in self._on_call(symbol, gpu, own=own):
            if fault.kind is FaultKind.ERROR and fault.code is not None:
                raise NvmlError(fault.code)
            if fault.kind is FaultKind.MISSING:
                raise NvmlError(Code.FUNCTION_NOT_FOUND)

    def _hang(self, fault: Fault) -> None:
        """Wait until the fault is over or was cleared.

        A clock cannot wake us, so one with an end is looked at again.
        """
        pause = None if math.isinf(fault.until) else 0.02
        with self._changed:
            while fault in self._faults and fault.active_at(self._scenario_clock.now()) and not self._released:
                self._changed.wait(pause)

    def wait_for_change(self, seconds: float) -> None:
        """Return after so many real seconds, or as soon as a fault is injected or cleared."""
        with self._changed:
            version = self.version
            self._changed.wait_for(
                lambda: self._released or self.version != version,
                timeout=None if math.isinf(seconds) else seconds,
            )

    def more_to_come(self) -> bool:
        """Return whether a fault of the scenario has yet to begin or, as repeated Xids do, to go on."""
        now = self._scenario_clock.now()
        return any(now < fault.at + fault.count * fault.every for fault in self._faults)

    # ---- the driver ------------------------------------------------------------------------------

    def _reloads(self) -> list[Fault]:
        now = self._scenario_clock.now()
        return [fault for fault in self.of(None) if fault.kind is FaultKind.DRIVER_RELOAD and fault.at <= now]

    def generation(self) -> int:
        """Return how often the driver has been unloaded so far."""
        return self._past_reloads + len(self._reloads())

    def driver_is_down(self) -> bool:
        """Return True between unloading and loading."""
        now = self._scenario_clock.now()
        return any(now < fault.at + fault.down for fault in self._reloads())

    def loaded_at(self) -> float:
        """Return the second of the scenario since which the driver has been loaded.

        Minus infinity if it was there before the scenario.
        """
        return max(self._past_load, *(fault.at + fault.down for fault in self._reloads()), -math.inf)

    def driver_version(self, original: str) -> str:
        """Return the version after the reloads so far."""
        return next((fault.version for fault in reversed(self._reloads()) if fault.version), original)

    # ---- changed by tests ------------------------------------------------------------------------

    def inject(self, fault: Fault) -> Fault:
        """Add a fault; one that would have begun earlier begins now. Returns it as it stands."""
        begun = replace(fault, at=max(fault.at, self._scenario_clock.now()))
        self._replace((*self._faults, begun))
        return begun

    def clear(self) -> None:
        """Clear every fault. What a driver reload has done stays done."""
        self.replace(self._faults, ())

    def from_now(self, fault: Fault) -> Fault:
        """Return the fault with its times counted from this moment."""
        now = self._scenario_clock.now()
        return replace(fault, at=fault.at + now, until=fault.until + now)

    def replace(self, old: Iterable[Fault], new: Iterable[Fault]) -> None:
        """Replace these faults by others, and leave the rest. What a driver reload has done stays done."""
        coming, going = tuple(new), set(old)
        kept = tuple(fault for fault in self._faults if fault not in going)
        gone = [fault for fault in self._reloads() if fault not in kept and fault not in coming]
        if gone:
            loaded_at = max(fault.at + fault.down for fault in gone)
            self._past_load = max(self._past_load, min(loaded_at, self._scenario_clock.now()))
            self._past_reloads += len(gone)
        self._replace((*kept, *coming))

    def release(self) -> None:
        """Let every hanging or slow call return, also future ones.

        At the end of a test.
        """
        with self._changed:
            self._released = True
            self._changed.notify_all()

    def _replace(self, faults: tuple[Fault, ...]) -> None:
        with self._changed:
            self._faults = faults
            self._scopes = {}
            self.version += 1
            self._changed.notify_all()
