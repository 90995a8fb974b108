"""Hold one model at a time, and prove that the memory of the one before came back."""

from __future__ import annotations

import contextlib
import gc
import logging
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Callable, Generic, NamedTuple, TypeVar

from gpuagent_client import lifecycle
from gpuagent_client.allocator import TorchFunctionMissing
from gpuagent_client.api import GIB
from gpuagent_client.errors import log
from gpuagent_client.lifecycle import ClientProcess, reset_after_fork
from gpuagent_client.serving.limiter import ConcurrencyLimiter
from gpuagent_client.serving.meter import Figures, Meter

Model = TypeVar("Model")
TOLERANCE_BYTES = 32 * 1024 * 1024
"""More than this left of a model is told: workspaces of cuBLAS stay allocated for good, and are smaller."""

MAX_WATCHED = 10_000
DEFAULT_PATIENCE_SECONDS = 60.0


class Returned(NamedTuple):
    """Result of unloading a model. In bytes; None where CUDA is not up, or nobody counts."""

    name: str
    """Name of the model; "" where there was none."""
    loaded_bytes: int | None
    """Bytes that loading it had added."""
    freed_bytes: int | None
    """Bytes of it that came back to the allocator."""
    released_bytes: int | None
    """Bytes that the allocator gave back to the GPU."""
    held_by: tuple[str, ...]
    """Names of what still refers to the model, if it is not gone."""

    @property
    def complete(self) -> bool:
        """Whether the model is gone, and its memory with it."""
        if self.held_by:
            return False
        if self.loaded_bytes is None or self.freed_bytes is None:
            return True
        return self.freed_bytes >= self.loaded_bytes - TOLERANCE_BYTES


class Loaded(NamedTuple):
    """Result of loading a model."""

    name: str
    added_bytes: int | None
    seconds: float
    before: Returned
    """Result of unloading the model before it."""


class ModelSlot(Generic[Model]):
    """Hold one model; load, swap and unload it while no request uses the GPU. For threads and event loops.

    In an event loop call `load` and `unload` in a thread (`asyncio.to_thread`, Starlette's `run_in_threadpool`).

    Args:
        gate: whose requests are waited for, usually that of the middleware; None: those in `use()` only.
        patience_seconds: how long they are waited for.
        process: whose memory it is; this one's.
    """

    def __init__(
        self,
        gate: ConcurrencyLimiter | None = None,
        *,
        patience_seconds: float = DEFAULT_PATIENCE_SECONDS,
        process: ClientProcess = lifecycle,
    ) -> None:
        self._gate = (
            gate if gate is not None else ConcurrencyLimiter(inside=None, heed_agent=False, state=process.state)
        )
        self._patience_seconds = patience_seconds
        self._torch = process.torch
        self._meter = Meter(process.torch)
        self._reset_lock()
        reset_after_fork(self, ModelSlot._reset_lock)
        self._name = ""
        self._model: Model | None = None
        self._added_bytes: int | None = None

    def _reset_lock(self) -> None:
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """Name of the loaded model; "" for none."""
        return self._name

    @contextmanager
    def use(self) -> Iterator[Model]:
        """Yield the model, which stays for the length of the block.

        Raises:
            LookupError: there is none.
            QueueFull: the limiter admits no further request.
        """
        with self._gate:
            model = self._model
            if model is None:
                raise LookupError("no model is loaded")
            yield model

    def load(self, name: str, make: Callable[[], Model]) -> Loaded:
        """Put `make()` in, after the model before it is out; nothing happens if it is in already.

        Raises:
            StillBusy: requests used the GPU for all of the time; the model before it is still in.
            Exception: what `make` raises; then the slot is empty.
        """
        if not name:
            raise ValueError("a model needs a name")
        nothing = Returned("", None, None, None, ())
        if self._name == name:
            return Loaded(name, self._added_bytes, 0.0, nothing)
        with self._gate.exclusive(self._patience_seconds), self._lock:
            if self._name == name:  # another request has just done it
                return Loaded(name, self._added_bytes, 0.0, nothing)
            returned = self._unload()
            started = time.monotonic()
            before = self._meter.read()
            self._model = make()
            self._name = name
            after = self._meter.read()
            self._added_bytes = None
            if after is not None:
                self._added_bytes = after.allocated_bytes - (before.allocated_bytes if before else 0)
            seconds = time.monotonic() - started
        added = "" if self._added_bytes is None else f": {self._added_bytes / GIB:.2f} GiB"
        log.info("loaded %s%s in %.1f s", name, added, seconds)
        return Loaded(name, self._added_bytes, seconds, returned)

    def unload(self) -> Returned:
        """Take the model out, and prove it.

        Raises:
            StillBusy: requests used the GPU for all of the time; the model is still in.
        """
        with self._gate.exclusive(self._patience_seconds), self._lock:
            return self._unload()

    def _unload(self) -> Returned:
        if self._model is None:
            return Returned("", None, None, None, ())
        name, loaded_bytes = self._name, self._added_bytes
        watched = _tracker(self._model)
        before = self._meter.read()
        self._model, self._name, self._added_bytes = None, "", None
        gc.collect()  # modules and their parameters refer to each other
        held_by = _holders_of(watched)
        collected = self._meter.read()
        self._empty_cache()
        after = self._meter.read()
        returned = Returned(
            name,
            loaded_bytes,
            _difference(before, collected, "allocated_bytes"),
            _difference(before, after, "reserved_bytes"),
            held_by,
        )
        log.log(logging.INFO if returned.complete else logging.WARNING, "unloaded %s: %s", name, _summary(returned))
        return returned

    def _empty_cache(self) -> None:
        if not self._torch.initialized() or self._torch.capturing():
            return
        try:
            self._torch.call("torch.cuda", "empty_cache")
        except (TorchFunctionMissing, RuntimeError) as error:
            log.debug("the cache stays: %s", error)


def _tracker(model: Any) -> list[weakref.ref[Any]]:  # noqa: ANN401 - any model
    """Watch a model and its tensors as far as it tells, without holding any of them."""
    watched = []
    with contextlib.suppress(TypeError):
        watched.append(weakref.ref(model))
    with contextlib.suppress(Exception):  # code of the app's, and not every model has it
        for number, parameter in enumerate(model.parameters()):
            if number >= MAX_WATCHED:
                break
            watched.append(weakref.ref(parameter))
    return watched


def _holders_of(watched: Sequence[weakref.ref[Any]]) -> tuple[str, ...]:
    if not any(ref() is not None for ref in watched):
        return ()
    # Not loaded before it is needed, as little as the rest of the blame.
    from gpuagent_client.blame import holders_of  # noqa: PLC0415

    return tuple(holders_of(watched))


def _difference(before: Figures | None, after: Figures | None, figure: str) -> int | None:
    if before is None or after is None:
        return None
    return int(getattr(before, figure) - getattr(after, figure))


def _summary(returned: Returned) -> str:
    words = []
    if returned.freed_bytes is not None:
        of_all = "" if returned.loaded_bytes is None else f" of {returned.loaded_bytes / GIB:.2f} GiB"
        words.append(f"{returned.freed_bytes / GIB:.2f} GiB{of_all} came back")
    if returned.held_by:
        words.append(f"it is still held by {', '.join(returned.held_by)}")
    return "; ".join(words) or "it is gone"
