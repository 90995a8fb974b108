"""Ask one GPU: what it does not support is asked once, what it refuses each minute, and one bad answer costs one value.

Numbers that mean "no value" are never exported, whatever call they come from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from gpuagent.core.clock import Clock
from gpuagent.core.hardware import HostMemory
from gpuagent.core.snapshot import GpuIdentity
from gpuagent.driver.backend import LONGEST_GAP_SECONDS
from gpuagent.driver.nvml.library import INVALID_ARGUMENT, NO_PERMISSION, Handle, Library, NvmlFailure

NOT_AVAILABLE_U64 = 2**64 - 1
NO_INSTANCE_U32 = 2**32 - 1

# NVML's own "not available", and the blanks that DCGM and its forks put in place of a number: INT32, INT64 and FP64
# blanks, each with up to 15 variants (dcgm_structs.h; slurm-job-exporter#30, gpu-monitoring-tools#97).
_BLANK_RANGES = (
    (2**31 - 16, 2**31 - 1),
    (2**63 - 16, 2**63 + 2048),
    (2**64 - 2048, 2**64),
)
_IMPOSSIBLE_BYTES = 2**48
"""More memory than any GPU has."""
_BLANK_FLOAT = 140737488355328.0
_LOWEST_BLANK = min(low for low, _ in _BLANK_RANGES)


def is_blank(value: float) -> bool:
    """Return whether a number stands for "no value".

    >>> is_blank(2**64 - 1), is_blank(140737488355328.0), is_blank(80 * 2**30)
    (True, True, False)
    """
    if 0 <= value < _LOWEST_BLANK:  # nearly every number: 150 of them a GPU at the slow rate
        return False
    if not math.isfinite(value):
        return True
    if _BLANK_FLOAT <= value < _BLANK_FLOAT + 16:
        return True
    return any(low <= value <= high for low, high in _BLANK_RANGES)


def count(value: float | None) -> int | None:
    """Return a counter or size, or None if it is blank or negative."""
    if value is None or value < 0 or is_blank(value):
        return None
    return int(value)


def possible_memory(total: int | None, *parts: int | None) -> bool:
    """Return whether a GPU can have that size, the first part is known, and none is larger than the whole.

    An alert, or worse, must not follow from nonsense.
    """
    if total is None or total >= _IMPOSSIBLE_BYTES or parts[0] is None:
        return False
    return all(part is None or part <= total for part in parts)


def ratio(percent: float | None) -> float | None:
    """Return percent as a ratio; None for what no engine can reach (37,100 % has been seen: nvtop#110)."""
    if percent is None or not 0 <= percent <= 100:
        return None
    return percent / 100


def celsius(value: float | None) -> float | None:
    """Return a temperature that a working chip can have, or None."""
    if value is None or not -100 < value < 250:
        return None
    return float(value)


def watts(milliwatts: float | None) -> float | None:
    """Return milliwatts as watts; None where no GPU could draw that."""
    if milliwatts is None or not 0 <= milliwatts < 100_000_000:
        return None
    return milliwatts / 1000


REFUSED_SECONDS = 60.0
"""Time after which a call is tried again that this GPU has refused for lack of permission."""
T = TypeVar("T")
K = TypeVar("K")

Field = int | tuple[int, int]
"""A field id, or (field id, scope id)."""

# Which member of nvmlValue_t holds the value, by nvmlValueType_t (nvml.h).
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


class NvmlDevice:
    """A GPU handle with memory of what this GPU cannot do.

    Used by one thread only. `failures` gathers what went wrong since `begin()`; a lost GPU or an ended session is
    raised instead, since nothing that this handle says can be trusted from there on.
    """

    def __init__(self, library: Library, handle: Handle, identity: GpuIdentity, clock: Clock) -> None:
        self.library = library
        self.handle = handle
        self.identity = identity
        self.clock = clock
        self.driver_version = ""
        self.host_memory: Callable[[], HostMemory | None] = lambda: None
        """Memory of the machine, for a GPU that shares it."""
        self.own_cgroup = ""
        """Folder of the agent's own cgroup; "" where it is not known."""
        self.address_read = True
        """The PCI address in `identity` is the driver's own answer."""
        self.failures: list[NvmlFailure] = []
        self.longest_gap_seconds = LONGEST_GAP_SECONDS * clock.speed
        self._unsupported: dict[tuple[Any, ...], NvmlFailure] = {}
        self._ask_again_at: dict[tuple[Any, ...], float] = {}
        """When to ask once more what there was no leave to ask: an administrator may have given it meanwhile."""
        self._unsupported_fields: dict[Field, NvmlFailure] = {}
        self._states: dict[type, Any] = {}

    def clear_failures(self) -> None:
        """Forget the failures of the last collector."""
        self.failures = []

    def ask(self, function: str, *args: Any) -> Any | None:
        """Call a pynvml wrapper on this GPU; None if it is not supported or failed (then it is in `failures`).

        Raises:
            NvmlFailure: the GPU is lost or the session has ended.
        """
        key = (function, *args)
        if self._is_absent(key):
            return None
        try:
            return self.library.call(function, self.handle, *args)
        except NvmlFailure as failure:
            self._absent_or_failed(key, failure)
            return None

    def ask_text(self, function: str, size: int = 96) -> str:
        """Ask as `ask` does by a call that fills a string; "" if there is none."""
        key = (function,)
        if self._is_absent(key):
            return ""
        try:
            return self.library.text(function, self.handle, size=size)
        except NvmlFailure as failure:
            self._absent_or_failed(key, failure)
            return ""

    def attempt(self, key: str, action: Callable[[], T]) -> T | None:
        """Run `action`, which raises NvmlFailure, under the same rules as `ask`."""
        if self._is_absent((key,)):
            return None
        try:
            return action()
        except NvmlFailure as failure:
            self._absent_or_failed((key,), failure)
            return None

    def fields(self, *wanted: Field) -> dict[Field, float]:
        """Return field values in one call; a field that has no value is left out.

        Raises:
            NvmlFailure: the GPU is lost or the session has ended.
        """
        ids = [field for field in wanted if not self._is_absent_field(field)]
        if not ids:
            return {}
        entries = self.ask_fields(ids)
        if entries is None:
            return {}
        values: dict[Field, float] = {}
        for field, entry in zip(ids, entries, strict=True):
            if entry.nvmlReturn:
                failure = NvmlFailure(f"field {field}", int(entry.nvmlReturn))
                # The ids are constants of nvml.h: one that is invalid is newer than the driver.
                if failure.absent or failure.code == INVALID_ARGUMENT:
                    self._unsupported_fields[field] = failure
                    if failure.code == NO_PERMISSION:
                        self._ask_again_at[(field,)] = self.clock.now() + REFUSED_SECONDS
                else:
                    self._absent_or_failed((f"field {field}",), failure)
            elif 0 <= entry.valueType < len(_MEMBERS):
                value = getattr(entry.value, _MEMBERS[entry.valueType])
                if not is_blank(value):
                    values[field] = value
        return values

    def ask_fields(self, ids: Sequence[Field]) -> Any | None:
        """Call nvmlDeviceGetFieldValues and return all of its answer: None if the GPU or driver has none."""
        return self.attempt(
            "nvmlDeviceGetFieldValues",
            lambda: self.library.call("nvmlDeviceGetFieldValues", self.handle, list(ids)),
        )

    def supports(self, function: str, *args: Any) -> bool:
        """Return False once this GPU has answered that it lacks the call."""
        return (function, *args) not in self._unsupported

    def lacks(self, function: str) -> bool:
        """Return whether this GPU has answered that there is nothing to tell: a refusal to tell is not that."""
        failure = self._unsupported.get((function,))
        return failure is not None and failure.lacking

    def note_absent(self, function: str, failure: NvmlFailure) -> None:
        """Remember that the driver lacks a call, for a caller that has asked by itself."""
        self._unsupported[(function,)] = failure

    def state(self, kind: Callable[[], T]) -> T:
        """Return a collector's own memory between two runs on this GPU, made at the first use."""
        key = cast("type", kind)
        if key not in self._states:
            self._states[key] = kind()
        return cast("T", self._states[key])

    def unsupported(self) -> tuple[tuple[str, str], ...]:
        """Return what this GPU does not answer, and why, each once: for `gpuagent doctor`."""
        calls = {key[0]: failure.text for key, failure in self._unsupported.items()}
        fields: dict[str, str] = {}
        for field, failure in self._unsupported_fields.items():
            number = field if isinstance(field, int) else field[0]
            fields[f"field {number}"] = failure.text
        return tuple(sorted(calls.items())) + tuple(sorted(fields.items()))

    def forget_unsupported(self) -> None:
        """Ask anew for all that this GPU did not support: it can do other things now than it could."""
        self._unsupported.clear()
        self._unsupported_fields.clear()
        self._ask_again_at.clear()

    def _is_absent_field(self, field: Field) -> bool:
        return self._still_absent(self._unsupported_fields, field, (field,))

    def _is_absent(self, key: tuple[Any, ...]) -> bool:
        return self._still_absent(self._unsupported, key, key)

    def _still_absent(self, absent: dict[K, NvmlFailure], what: K, key: tuple[Any, ...]) -> bool:
        """Return whether not to ask for it; what was refused is forgotten when it is time to ask once more."""
        if what not in absent:
            return False
        if self.clock.now() < self._ask_again_at.get(key, math.inf):
            return True
        del absent[what], self._ask_again_at[key]
        return False

    def _absent_or_failed(self, key: tuple[Any, ...], failure: NvmlFailure) -> None:
        if failure.lost or failure.ends_session:
            raise failure
        if failure.absent:
            self._unsupported[key] = failure
            if failure.code == NO_PERMISSION:
                self._ask_again_at[key] = self.clock.now() + REFUSED_SECONDS
        else:
            self.failures.append(failure)
