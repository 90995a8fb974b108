"""Carry out what the agent asks for: one command at a time, in a thread of its own, each answered with what it did.

Figures go on flowing while a census waits for its second snapshot. A refusal is an answer too, and says why.
"""

from __future__ import annotations

import gc
import importlib
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from gpuagent_client import protocol
from gpuagent_client.allocator import Allocator, Device, Torch, TorchFunctionMissing
from gpuagent_client.errors import Refused, log
from gpuagent_client.protocol import Command, Message
from gpuagent_client.settings import ClientState, Notice


class NoLimits(Exception):
    """Raised where this torch, or its allocator, cannot be limited."""


class Limits:
    """Set limits on GPUs in use only: to set one on another would start CUDA there."""

    def __init__(self, state: ClientState, torch: Torch, allocator: Allocator) -> None:
        self._state = state
        self._torch = torch
        self._allocator = allocator
        self._kept: dict[int, float] = {}

    def set(self, device: int, ratio: float) -> None:
        """Limit the allocator on one GPU; 1.0 lifts it. What it holds already stays.

        Raises:
            NoLimits: that cannot be done here.
        """
        try:
            self._torch.call("torch.cuda", "set_per_process_memory_fraction", ratio, device)
        except (TorchFunctionMissing, RuntimeError) as error:
            raise NoLimits(str(error)) from error
        finally:
            self._allocator.forget_limits()

    def apply_wanted(self, devices: Sequence[Device]) -> None:
        """Set what the app asked for with `limit_memory`, once on each GPU that it uses.

        Raises:
            NoLimits: that cannot be done here.
        """
        ratio = self._state.limit_ratio
        for device in devices:
            if ratio is not None and self._kept.get(device.ordinal) != ratio:
                self._kept[device.ordinal] = ratio
                self.set(device.ordinal, ratio)


RELEASE_PAUSE_SECONDS = 60.0
"""Emptying the cache waits for all work on the GPU, and the app pays for its memory anew: not a thing to do often."""
WAIT_SHARE = 0.8
"""Share of a command's deadline spent waiting for the end of requests; the rest is for doing it, and the answer."""
GIB = 1024**3


class InterruptibleSleep:
    """Sleep while a command runs, until the time is over or the app is about to end."""

    def __init__(self, wait: Callable[[float], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self._wait = wait
        self._clock = clock

    def now(self) -> float:
        """Return seconds, of no particular beginning."""
        return self._clock()

    def sleep(self, seconds: float) -> None:
        """Wait.

        Raises:
            Refused: the app is about to end.
        """
        if self._wait(seconds):
            raise Refused("stopping: the app is about to end")


class AllocatorCommands:
    """The commands that act on the allocator of this process."""

    def __init__(
        self, state: ClientState, torch: Torch, allocator: Allocator, limits: Limits, pause: InterruptibleSleep
    ) -> None:
        self._state = state
        self._torch = torch
        self._allocator = allocator
        self._limits = limits
        self._pause = pause

    def release(self, args: Mapping[str, Any], deadline_seconds: float) -> dict[str, Any]:
        """Give the allocator's cached memory back to the GPU; `collect` runs the garbage collector before.

        Raises:
            Refused: too soon after the last one, in the middle of a request or a capture, or CUDA is not up.
        """
        now = self._pause.now()
        if now < self._state.released_at + RELEASE_PAUSE_SECONDS:
            wait_seconds = self._state.released_at + RELEASE_PAUSE_SECONDS - now
            raise Refused(f"too soon: one release a minute, again in {wait_seconds:.0f} s")
        if not self._torch.initialized():
            raise Refused("nothing to release: the app does not use CUDA yet")
        self._between_requests(now + WAIT_SHARE * deadline_seconds)
        self._state.released_at = self._pause.now()
        return self._empty(collect=args.get("collect") is True)

    def reset(self, args: Mapping[str, Any], deadline_seconds: float) -> dict[str, Any]:  # noqa: ARG002
        """Have the app unload what it registered with `on_reset`, then collect and empty the cache.

        Raises:
            Refused: the app has registered nothing, or is in the middle of a request or a capture.
        """
        callbacks = list(self._state.on_reset)
        if not callbacks:
            raise Refused("unsupported: the app has registered nothing with on_reset")
        self._between_requests(self._pause.now() + WAIT_SHARE * deadline_seconds)
        failed: list[str] = []
        for callback in callbacks:
            self._pause.sleep(0)
            name = getattr(callback, "__qualname__", type(callback).__name__)
            log.warning("the agent asks to unload: calling %s", name)
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - code of the app's
                log.exception("%s failed while unloading", name)
                failed.append(f"{name}: {type(error).__name__}")
        return {"called": len(callbacks), "failed": failed, **self._empty(collect=True)}

    def limit(self, args: Mapping[str, Any], deadline_seconds: float) -> dict[str, Any]:  # noqa: ARG002
        """Limit the allocator on all GPUs in use to `ratio` of each one's memory; 1.0 lifts it.

        Raises:
            Refused: the app holds more already, or has declared that it needs more, or CUDA is not up.
        """
        ratio = args.get("ratio")
        if not isinstance(ratio, (int, float)) or isinstance(ratio, bool) or not 0 < ratio <= 1:
            raise Refused("ratio must be more than 0 and at most 1")
        devices = self._allocator.read().devices
        if not devices:
            raise Refused("nothing to limit: the app has no CUDA memory")
        for device in devices:
            self._refuse_below_need(device, float(ratio))
        try:
            for device in devices:
                self._limits.set(device.ordinal, float(ratio))
        except NoLimits as error:
            raise Refused(f"unsupported: {error}") from error
        return {"ratio": float(ratio), "devices": len(devices)}

    def notice(self, args: Mapping[str, Any], deadline_seconds: float) -> dict[str, Any]:  # noqa: ARG002
        """Tell the app what is about to happen to it; a worker that may do so begins to make room for a fresh one."""
        seconds = args.get("seconds")
        notice = Notice(
            action=str(args.get("action", ""))[:100],
            reason=str(args.get("reason", ""))[:1000],
            seconds=float(seconds) if isinstance(seconds, (int, float)) else 0.0,
        )
        log.warning("gpuagent: %s in %.0f s: %s", notice.action or "action", notice.seconds, notice.reason)
        callback, drain = self._state.settings.on_notice, self._state.drain
        answer: dict[str, Any] = {"callback": callback is not None}
        if callback is not None:
            try:
                callback(notice)
            except Exception as error:  # noqa: BLE001 - code of the app's
                log.exception("on_notice failed")
                answer["failed"] = type(error).__name__
        if drain is not None:  # after the callback, which may save what the end of the process would lose
            answer["draining"] = drain(notice.reason)
        return answer

    def _between_requests(self, until: float) -> None:
        """Wait until no request is served and no graph captured: an emptied cache would slow the one, break the other.

        Raises:
            Refused: that did not happen in time, or the app is about to end.
        """
        self._pause.sleep(0)
        while self._state.busy() or self._torch.capturing():
            if self._pause.now() >= until:
                raise Refused("busy: requests were served, or a CUDA graph captured, all the time")
            self._pause.sleep(0.02)

    def _empty(self, *, collect: bool) -> dict[str, Any]:
        before = self._allocator.read().devices
        started = self._pause.now()
        if collect:
            gc.collect()
        self._pause.sleep(0)
        try:
            self._torch.call("torch.cuda", "empty_cache")
        except (TorchFunctionMissing, RuntimeError) as error:
            raise Refused(f"unsupported: {error}") from error
        took_seconds = self._pause.now() - started
        after = self._allocator.read().devices
        return {
            "collected": collect,
            "reserved_before_bytes": _reserved(before),
            "reserved_after_bytes": _reserved(after),
            "took_ms": round(took_seconds * 1000, 3),
        }

    def _refuse_below_need(self, device: Device, ratio: float) -> None:
        total = device.properties.total_bytes
        if not total:
            raise Refused("this torch does not tell how much memory the GPU has")
        reserved, declared = device.figures.get("reserved_bytes", 0), self._state.declared.minimum_bytes or 0
        needed = max(reserved, declared)
        if ratio * total < needed and ratio < 1:
            why = "declared that it needs" if declared > reserved else "reserved already"
            raise Refused(
                f"{ratio * total / GIB:.2f} GiB is below the {needed / GIB:.2f} GiB that the app has {why};"
                f" the lowest ratio is {min(1.0, needed / total + 0.0005):.3f}"
            )


def _reserved(devices: Sequence[Device]) -> int:
    return sum(device.figures.get("reserved_bytes", 0) for device in devices)


LONG = frozenset({"census", "lines", "reset"})
"""Commands that take long: they are acknowledged before they are carried out."""
MAX_ERROR_CHARACTERS = 400

Handler = Callable[[Mapping[str, Any], float], dict[str, Any]]
Reply = Callable[[Message], None]


class BlameContext:
    """Facts about the app that `gpuagent_client.blame` may use."""

    def __init__(self, thread_id: int, state: ClientState, torch: Torch, wait: Callable[[float], bool]) -> None:
        self.thread_id = thread_id
        """The client's own thread: its frames hold nothing of the app's."""
        self._state = state
        self._torch = torch
        self._wait = wait

    def requests_served(self) -> int | None:
        """Return the number of requests so far; None where nobody counts them."""
        return self._state.requests_served()

    def is_capturing(self) -> bool:
        """Return whether a CUDA graph is being captured."""
        return self._torch.capturing()

    def wait(self, seconds: float) -> bool:
        """Wait; True as soon as the app is about to end."""
        return self._wait(seconds)


class CommandRunner:
    """Run one command at a time, in a thread of its own."""

    def __init__(
        self, state: ClientState, allocator_commands: AllocatorCommands, blame_context: Callable[[], BlameContext]
    ) -> None:
        self._state = state
        self._blame_context = blame_context
        self._worker: threading.Thread | None = None
        self._answered = False
        """The worker is done: who has its answer may ask for the next thing, also before the thread has ended."""
        self._handlers: dict[str, Handler] = {
            "census": lambda args, deadline: self._blame("census", args, deadline),
            "limit": allocator_commands.limit,
            "lines": lambda args, deadline: self._blame("lines", args, deadline),
            "notice": allocator_commands.notice,
            "release": allocator_commands.release,
            "reset": allocator_commands.reset,
        }

    @property
    def running(self) -> bool:
        """Whether a command is being carried out, or its answer is about to be sent."""
        return self._worker is not None and self._worker.is_alive()

    def submit(self, command: Command, *, trusted: bool, reply: Reply) -> None:
        """Start a command, or refuse it; the answer goes to `reply`, maybe from another thread."""
        handler = self._handlers.get(command.name)
        if handler is None:
            reply(protocol.refused(command.id, "unsupported"))
        elif not trusted:
            reply(protocol.refused(command.id, "forbidden: the client does not know this server as its agent"))
        elif command.name not in self._state.settings.obeyed:
            reply(protocol.refused(command.id, "forbidden: the app does not allow it"))
        elif self.running and not self._answered:
            reply(protocol.refused(command.id, "busy: another command is being carried out"))
        else:
            if command.name in LONG:
                reply(protocol.begun(command.id))
            self._answered = False
            self._worker = threading.Thread(
                target=self._carry_out, args=(handler, command, reply), name="gpuagent-command", daemon=True
            )
            try:
                self._worker.start()
            except RuntimeError as error:  # no more threads, or the interpreter is ending
                self._worker = None
                reply(protocol.refused(command.id, f"no thread: {error}"))

    def join(self, seconds: float) -> None:
        """Wait for the command that is being carried out, if any."""
        worker = self._worker
        if worker is not None and worker is not threading.current_thread():
            worker.join(seconds)

    def _carry_out(self, handler: Handler, command: Command, reply: Reply) -> None:
        try:
            answer = protocol.done(command.id, handler(command.args, command.deadline_seconds))
        except Refused as refusal:
            answer = protocol.refused(command.id, str(refusal)[:MAX_ERROR_CHARACTERS])
        except Exception as error:  # noqa: BLE001 - a failure is an answer
            log.warning("gpuagent_client could not carry out %s", command.name, exc_info=True)
            answer = protocol.refused(command.id, f"failed: {type(error).__name__}: {error}"[:MAX_ERROR_CHARACTERS])
        self._answered = True
        reply(answer)

    def _blame(self, command: str, args: Mapping[str, Any], deadline_seconds: float) -> dict[str, Any]:
        # Not loaded before it is asked for: an app that never leaks never pays for it.
        blame = importlib.import_module("gpuagent_client.blame")
        wanted = dict(args)
        if "lines" not in self._state.settings.obeyed:
            wanted.pop("lines", None)  # a census may record lines beside it: not in an app that forbids that
        result: dict[str, Any] = blame.run(command, wanted, deadline_seconds, self._blame_context())
        if result.get("ok") is False:
            raise Refused(str(result.get("err", "refused")))
        return result
