"""Send commands to an app: release its cache, keep to a limit, say who holds the memory.

Who may ask is decided at the control socket, and by configured remedies; what the app obeys is its own decision.

`AutomaticBlame` asks an app that is found leaking, for the reasons of its alert: `leaks.blame: automatic`. Off by
default, for the app stands still while it forks. One app at a time; one that refuses is asked again later.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuagent.clients.documents import (
    Document,
    Findings,
    clients_document,
    devices_document,
    merge_findings,
    read_findings,
)
from gpuagent.clients.server import ClientServer
from gpuagent.core.clock import Clock
from gpuagent.core.growth import Growth, MemoryKey, Verdict
from gpuagent.core.identity import ProcessId
from gpuagent.core.snapshot import Snapshot
from gpuagent_exporters.api.process_routes import CommandFailure

Args = Mapping[str, Any]


def only(args: Args, *names: str) -> Args:
    """Return the arguments, if there are no others than these. Raises ValueError."""
    unknown = sorted(set(args) - set(names))
    if unknown:
        raise ValueError(f"{unknown[0][:50]!r} is unknown; there is: {', '.join(names) or 'nothing to give'}")
    return args


def flag(args: Args, name: str, *, default: bool = False) -> bool:
    """Return True or false. Raises ValueError."""
    value = args.get(name, default)
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false")
    return value


def number(args: Args, name: str, least: float, most: float, default: float | None = None) -> float:
    """Return a number within bounds. Raises ValueError."""
    value = args.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"{name} must be a number from {least:g} to {most:g}")
    return float(value)


_RELEASE_SECONDS = 30.0
_SHORT_SECONDS = 10.0
_RESET_SECONDS = 60.0
_SEEN_SECONDS = 8.0
"""Seconds until the driver's figures show what has come back: two ticks and the app's next figures."""
_BEYOND_WINDOW_SECONDS = 120.0
"""Seconds beyond the window, for a census in an app with many objects on a busy machine."""
LONGEST_WINDOW_SECONDS = 600.0
WINDOW_SECONDS = 60.0
_OF_A_CENSUS = ("window_seconds", "show_keys", "max_pause_seconds")


class ClientCommands:
    """Commands that can be sent to apps. Raises ValueError for wrong arguments, CommandFailure with why one failed."""

    def __init__(self, server: ClientServer, clock: Clock) -> None:
        self._server = server
        self._clock = clock

    def clients(self) -> Document:
        """Return the apps that are connected."""
        server = self._server
        return clients_document(server.registry, server.snapshot, self._clock.now(), server.socket_path)

    async def command(self, pid: int, name: str, args: Args) -> Document:
        """Carry out a command by its name. Raises KeyError for one that there is not."""
        commands: Mapping[str, Callable[[int, Args], Awaitable[Document]]] = {
            "release": self._release,
            "limit": self._limit,
            "rate": self._rate,
            "reset": self._reset,
            "census": self._census,
            "lines": self._lines,
            "blame": self._blame,
        }
        if name not in commands:
            raise KeyError(f"there is no command {name[:50]!r}; there is: {', '.join(commands)}")
        return await commands[name](pid, args)

    async def release(self, pid: int, *, collect: bool = False) -> Document:
        """Have the app empty its allocator's cache, and tell how much came back.

        `collect` runs Python's garbage collector first, which makes the app stand still.
        """
        before = self._devices(pid)
        answer = await self._server.registry.ask(pid, "release", {"collect": collect}, _RELEASE_SECONDS)
        after = await self._devices_after(pid)
        return {
            "pid": pid,
            "collected": collect,
            "took_ms": _figure(answer.get("took_ms")),
            "reserved_before_bytes": _figure(answer.get("reserved_before_bytes")),
            "reserved_after_bytes": _figure(answer.get("reserved_after_bytes")),
            "before": before,
            "after": after,
            "returned_bytes": _less(before, after),
        }

    async def blame(
        self, pid: int, *, window_seconds: float = WINDOW_SECONDS, census: bool = True, lines: bool = True,
        show_keys: bool = False, max_pause_seconds: float | None = None,
    ) -> Findings:  # fmt: skip
        """Find out who holds the memory, and which line has allocated it. Takes the window's time.

        The app refuses a census whose forks it expects to pause it for longer than `max_pause_seconds`, or than its own
        limit where that is None.
        An older client does one after the other, and takes twice the time.

        Raises:
            CommandFailure: neither could be done; the reason is that of the first.
        """
        failures: list[CommandFailure] = []
        found: dict[str, Findings] = {}
        app = self._server.registry.client(pid)
        beside = lines and app is not None and app.hello is not None and "lines" in app.hello.capabilities
        own: dict[str, dict[str, Any]] = {"census": {"show_keys": show_keys, "lines": beside}, "lines": {}}
        if max_pause_seconds is not None:
            own["census"]["max_pause_seconds"] = max_pause_seconds
        joined = False
        for name in (name for name, wanted in (("census", census), ("lines", lines)) if wanted):
            if joined:  # the census has said which lines, or why not
                continue
            try:
                answer = await self._ask_long(pid, name, {"window_seconds": window_seconds, **own[name]})
                found[name] = read_findings(answer)
                joined = answer.get("joined") is True
            except CommandFailure as failure:
                if failure.reason in {"absent", "gone"}:
                    if failures or found:  # it was there a moment ago
                        raise CommandFailure("gone", "the app has ended while it was asked") from None
                    raise
                failures.append(CommandFailure(failure.reason, f"{name}: {failure}"))
        if not found:
            raise failures[0] if failures else ValueError("either a census or lines must be wanted")
        return merge_findings(found.get("census"), found.get("lines"), tuple(str(failure) for failure in failures))

    async def reset(self, pid: int) -> Document:
        """Have the app unload what it registered for this, then empty the cache."""
        return await self._ask(pid, "reset", {}, _RESET_SECONDS)

    async def notice(self, pid: int, reason: str, seconds: float) -> Document:
        """Tell the app that it will be acted on, why, and how much time is left."""
        return await self._ask(
            pid, "notice", {"action": "remedy", "reason": reason, "seconds": seconds}, _SHORT_SECONDS
        )

    async def _release(self, pid: int, args: Args) -> Document:
        return await self.release(pid, collect=flag(only(args, "collect"), "collect"))

    async def _limit(self, pid: int, args: Args) -> Document:
        ratio = number(only(args, "ratio"), "ratio", 0.01, 1.0)
        return await self._ask(pid, "limit", {"ratio": ratio}, _SHORT_SECONDS)

    async def _rate(self, pid: int, args: Args) -> Document:
        interval = number(only(args, "interval"), "interval", 0.2, 60.0)
        answer = await self._ask(pid, "rate", {"interval": interval}, _SHORT_SECONDS)
        connection = self._server.registry.client(pid)
        if connection is not None:  # figures that come less often are believed for longer
            connection.rated_seconds = interval
        return answer

    async def _reset(self, pid: int, args: Args) -> Document:
        only(args)
        return await self.reset(pid)

    async def _census(self, pid: int, args: Args) -> Document:
        return await self._blame(pid, {**only(args, *_OF_A_CENSUS), "lines": False})

    async def _lines(self, pid: int, args: Args) -> Document:
        return await self._blame(pid, {**only(args, "window_seconds"), "census": False})

    async def _blame(self, pid: int, args: Args) -> Document:
        only(args, *_OF_A_CENSUS, "census", "lines")
        window_seconds = number(args, "window_seconds", 1.0, LONGEST_WINDOW_SECONDS, WINDOW_SECONDS)
        findings = await self.blame(
            pid,
            window_seconds=window_seconds,
            census=flag(args, "census", default=True),
            lines=flag(args, "lines", default=True),
            show_keys=flag(args, "show_keys"),
            max_pause_seconds=number(args, "max_pause_seconds", 0.001, 60.0) if "max_pause_seconds" in args else None,
        )
        return {"pid": pid, "window_seconds": window_seconds, **findings.document()}

    async def _ask(self, pid: int, name: str, args: Args, deadline_seconds: float) -> Document:
        """Return what the app answers, as far as it is figures."""
        answer = await self._server.registry.ask(pid, name, args, deadline_seconds)
        figures = {key: _figure(value) for key, value in answer.items()}
        return {key: value for key, value in figures.items() if value is not None} | {"pid": pid}

    async def _ask_long(self, pid: int, name: str, args: Args) -> Args:
        deadline_seconds = float(args["window_seconds"]) + _BEYOND_WINDOW_SECONDS
        return await self._server.registry.ask(pid, name, args, deadline_seconds)

    def _devices(self, pid: int, snapshot: Snapshot | None = None) -> list[Document]:
        snapshot = snapshot or self._server.snapshot
        if snapshot is None:
            return []
        return devices_document(snapshot.clients.get(pid), [each for each in snapshot.processes if each.pid == pid])

    async def _devices_after(self, pid: int) -> list[Document]:
        """Return the device documents once both the driver and the app have figures newer than this moment."""
        now = self._clock.now()
        deadline = now + _SEEN_SECONDS * self._clock.speed
        while self._clock.now() < deadline:
            snapshot = await self._server.next_snapshot((deadline - self._clock.now()) / self._clock.speed)
            client = snapshot.clients.get(pid) if snapshot else None
            if client is None:
                return []
            # The driver is asked within a tick, and the snapshot's clock is that of its end.
            is_new = all(gpu.time_seconds > now for gpu in snapshot.gpus if gpu.memory) if snapshot else False
            if is_new and (client.measured_seconds or 0.0) > now:
                return self._devices(pid, snapshot)
        return []


def _figure(value: object) -> float | None:
    """Return a number of the app's, or a flag; None if it is neither."""
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _less(before: list[Document], after: list[Document]) -> int | None:
    """Return what the driver counts less, over all GPUs; None where it does not tell."""
    then: dict[str, int | None] = {device["gpu_uuid"]: device["memory_used_bytes"] for device in before}
    now: dict[str, int | None] = {device["gpu_uuid"]: device["memory_used_bytes"] for device in after}
    returned = 0
    for uuid in then.keys() & now.keys():
        old, new = then[uuid], now[uuid]
        if old is None or new is None:
            return None
        returned += old - new
    return returned if then.keys() & now.keys() else None


log = logging.getLogger(__name__)

_RETRY_SECONDS = 600.0
_MOST_CHARACTERS = 300


@dataclass(slots=True)
class _BlameCase:
    """A leaking app: what it answered, "" if it has not yet or would not, and when to ask again."""

    words: str = ""
    again_seconds: float = 0.0


class AutomaticBlame:
    """For one event loop."""

    def __init__(self, commands: ClientCommands, clock: Clock, *, enabled: bool) -> None:
        self.enabled = enabled
        self._commands = commands
        self._clock = clock
        self._cases: dict[ProcessId, _BlameCase] = {}
        self._asking: asyncio.Task[None] | None = None

    def observe(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot, with the words of apps among the reasons of their leaks, once they have said them."""
        if not self.enabled or not snapshot.clients:
            return snapshot
        leaking = dict(_leaking(snapshot))
        owners = {snapshot.clients[key.pid].id for key in leaking}
        self._cases = {owner: case for owner, case in self._cases.items() if owner in owners}
        for owner in owners:
            case = self._cases.setdefault(owner, _BlameCase())
            is_due = not case.words and self._clock.now() >= case.again_seconds
            if is_due and self._asking is None:
                case.again_seconds = self._clock.now() + _RETRY_SECONDS
                self._asking = asyncio.create_task(self._ask(owner, case), name=f"blame {owner.pid}")
        updated = {
            key: replace(growth, reasons=(*growth.reasons, words), culprit=words)
            for key, growth in leaking.items()
            if (words := self._cases[snapshot.clients[key.pid].id].words)
        }
        return replace(snapshot, growth={**snapshot.growth, **updated}) if updated else snapshot

    async def close(self) -> None:
        """Wait for no answer any more."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self, owner: ProcessId, case: _BlameCase) -> None:
        try:
            findings = await self._commands.blame(owner.pid)
        except CommandFailure as failure:
            log.info("process %d leaks and could not be asked who holds the memory: %s", owner.pid, failure)
        else:
            case.words = findings.verdict[:_MOST_CHARACTERS]
            log.info("process %d leaks: %s", owner.pid, case.words or "nobody was found to hold the memory")
        finally:
            self._asking = None


def _leaking(snapshot: Snapshot) -> Iterator[tuple[MemoryKey, Growth]]:
    """Yield the leaks of connected apps that can be asked."""
    for key, growth in snapshot.growth.items():
        client = snapshot.clients.get(key.pid) if growth.verdict is Verdict.LEAKING else None
        if client is not None and {"census", "lines"} & set(client.capabilities):
            yield key, growth
