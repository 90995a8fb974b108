"""One GPU and how to ask it: what it does not support is asked once, and one bad answer costs one value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from gpuagent.core.clock import Clock
from gpuagent.core.snapshot import GpuIdentity
from gpuagent.nvml.failure import INVALID_ARGUMENT, NvmlFailure
from gpuagent.nvml.library import Handle, Library
from gpuagent.nvml.values import is_blank

T = TypeVar("T")

LONGEST_GAP_SECONDS = 10.0
"""Two readings that are further apart say nothing of the time between them, unless GPUs are read less often."""


def longest_gap(poll_interval_seconds: float, speed: float) -> float:
    """Return how far apart two readings may be, by the agent's clock, that are taken for one observation."""
    return max(LONGEST_GAP_SECONDS * speed, 2.5 * poll_interval_seconds)


Field = int | tuple[int, int]
"""A field id, or (field id, scope id)."""

# Which member of nvmlValue_t holds the value, by nvmlValueType_t (nvml.h).
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


class Device:
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
        self.address_read = True
        """The PCI address in `identity` is the driver's own answer."""
        self.failures: list[NvmlFailure] = []
        self.longest_gap_seconds = LONGEST_GAP_SECONDS * clock.speed
        self._unsupported: dict[tuple[Any, ...], NvmlFailure] = {}
        self._unsupported_fields: dict[Field, NvmlFailure] = {}
        self._states: dict[type, Any] = {}

    def begin(self) -> None:
        """Forget the failures of the last collector."""
        self.failures = []

    def ask(self, function: str, *args: Any) -> Any | None:
        """Call a pynvml wrapper on this GPU; None if it is not supported or failed (then it is in `failures`).

        Raises:
            NvmlFailure: the GPU is lost or the session has ended.
        """
        key = (function, *args)
        if key in self._unsupported:
            return None
        try:
            return self.library.call(function, self.handle, *args)
        except NvmlFailure as failure:
            self._absent_or_failed(key, failure)
            return None

    def ask_text(self, function: str, size: int = 96) -> str:
        """Like `ask` for a call that fills a string; "" if there is none."""
        key = (function,)
        if key in self._unsupported:
            return ""
        try:
            return self.library.text(function, self.handle, size=size)
        except NvmlFailure as failure:
            self._absent_or_failed(key, failure)
            return ""

    def attempt(self, key: str, action: Callable[[], T]) -> T | None:
        """Run `action`, which raises NvmlFailure, under the same rules as `ask`."""
        if (key,) in self._unsupported:
            return None
        try:
            return action()
        except NvmlFailure as failure:
            self._absent_or_failed((key,), failure)
            return None

    def fields(self, *wanted: Field) -> dict[Field, float]:
        """Field values in one call; a field that has no value is left out.

        Raises:
            NvmlFailure: the GPU is lost or the session has ended.
        """
        ids = [field for field in wanted if field not in self._unsupported_fields]
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
                else:
                    self._absent_or_failed((f"field {field}",), failure)
            elif 0 <= entry.valueType < len(_MEMBERS):
                value = getattr(entry.value, _MEMBERS[entry.valueType])
                if not is_blank(value):
                    values[field] = value
        return values

    def ask_fields(self, ids: Sequence[Field]) -> Any | None:
        """nvmlDeviceGetFieldValues, whole: None if the GPU or driver has none."""
        return self.attempt(
            "nvmlDeviceGetFieldValues",
            lambda: self.library.call("nvmlDeviceGetFieldValues", self.handle, list(ids)),
        )

    def supports(self, function: str, *args: Any) -> bool:
        """False once this GPU has answered that it lacks the call."""
        return (function, *args) not in self._unsupported

    def lacks(self, function: str) -> bool:
        """Return whether this GPU has answered that there is nothing to tell: a refusal to tell is not that."""
        failure = self._unsupported.get((function,))
        return failure is not None and failure.lacking

    def state(self, kind: Callable[[], T]) -> T:
        """A collector's own memory between two runs on this GPU, made at the first use."""
        key = cast("type", kind)
        if key not in self._states:
            self._states[key] = kind()
        return cast("T", self._states[key])

    def unsupported(self) -> tuple[tuple[str, str], ...]:
        """What this GPU does not answer, and why, each once: for `gpuagent doctor`."""
        calls = {key[0]: failure.text for key, failure in self._unsupported.items()}
        fields: dict[str, str] = {}
        for field, failure in self._unsupported_fields.items():
            number = field if isinstance(field, int) else field[0]
            fields[f"field {number}"] = failure.text
        return tuple(sorted(calls.items())) + tuple(sorted(fields.items()))

    def _absent_or_failed(self, key: tuple[Any, ...], failure: NvmlFailure) -> None:
        if failure.lost or failure.ends_session:
            raise failure
        if failure.absent:
            self._unsupported[key] = failure
        else:
            self.failures.append(failure)
