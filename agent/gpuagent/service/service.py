"""The agent as a service: builds nothing, owns the loop. Start, tick, reload, stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from gpuagent.clients.commands import AutomaticBlame, ClientCommands
from gpuagent.clients.model_servers import Sources
from gpuagent.clients.server import ClientServer, limits_of
from gpuagent.collector.tick import Monitor
from gpuagent.config.load import ConfigError
from gpuagent.config.models import Config
from gpuagent.core.background import Progress, in_daemon_thread
from gpuagent.core.clock import Clock
from gpuagent.core.hardware import StallRisk
from gpuagent.core.metrics.family import SampleCache
from gpuagent.core.snapshot import Pause, Snapshot
from gpuagent.runtime.memory import Reserve, c_library, endure, freeze_gc, lock_pages, trim_and_freeze, trim_heap
from gpuagent.runtime.sd_notify import SystemdNotifier
from gpuagent.service.alert_commands import AlertCommands
from gpuagent.service.alerting import Alerting
from gpuagent.service.http_servers import HttpServers
from gpuagent.service.leak_commands import LeakCommands
from gpuagent.service.otlp import OtlpPush
from gpuagent.service.remedies import RemedyCommands
from gpuagent.service.reports import CHECK_SECONDS, UsageReports
from gpuagent.service.schedule import Schedule
from gpuagent.service.usage import UsageCommands, usage_settings
from gpuagent.service.view import View
from gpuagent_alerts.leak.sensor import LeakDetection
from gpuagent_alerts.remedies.service import RemedyService
from gpuagent_alerts.remedies.settings import RemedySettings
from gpuagent_alerts.rules.model import RuleFileError, RuleGroup
from gpuagent_alerts.usage.accounting import UsageAccounting
from gpuagent_exporters.http.web_config import WebConfigError

log = logging.getLogger(__name__)

_HOUSEKEEPING_SECONDS = 60.0
_GROWN_TICKS = 120
"""By then series, histories of processes and the page are as large as they will be, some 20,000 objects: to go through
them took the collector 5 to 10 ms every two minutes, in the middle of a scrape."""
_KEEP_SECONDS = 1.0
_RELOAD_SECONDS = 30.0
"""Rules are compiled and files on a slow disk read within this. One on a mount that does not answer is never read."""
_MOST_LOST_RELOADS = 8
"""Threads that are left behind in files which do not answer: each costs memory until the file answers."""
_STOP_SECONDS = 4.0
"""Everything is left within this, also while a poll is stuck: systemd waits for 5 s."""


@dataclass(slots=True)
class ServiceComponents:
    """What a service is made of."""

    config: Config
    clock: Clock
    monitor: Monitor
    view: View
    http_servers: HttpServers
    notifier: SystemdNotifier
    alerting: Alerting
    alert_commands: AlertCommands
    clients: ClientServer
    client_commands: ClientCommands
    automatic_blame: AutomaticBlame
    sources: Sources
    otlp: OtlpPush
    leaks: LeakDetection
    leak_commands: LeakCommands
    usage: UsageAccounting
    usage_commands: UsageCommands
    reports: UsageReports
    remedies: RemedyService
    remedy_settings: Callable[[Config], RemedySettings]
    """Makes the settings of a configuration; raises ValueError for matchers that are no regular expressions."""
    reserve: Reserve
    load: Callable[[Progress], tuple[Config, tuple[RuleGroup, ...]]]
    """Reads the configuration and the rules again, and notes what it reads; raises ConfigError, RuleFileError."""
    notes: list[str]
    """Notes on the configuration that was read last."""
    may_renew: Callable[[], bool]
    """Whether a new process may take over now, if the driver was upgraded underneath."""


class Service:
    """Runs until it is told to stop.

    `run` returns whether a new process must take over: the driver was upgraded underneath, and only a new process can
    load the new library.
    """

    def __init__(self, parts: ServiceComponents, *, reload_seconds: float = _RELOAD_SECONDS) -> None:
        """Refuse a reload that takes longer than `reload_seconds`."""
        self._parts = parts
        self._reload_seconds = reload_seconds
        self._reads: set[Progress] = set()
        """Reloads that read files, those that were given up among them."""
        self._config = parts.config
        self._is_pressed = False
        """Memory that GPU and CPU share runs out fast, or programs wait for it, by the last reading."""
        self._are_pages_locked: bool | None = None
        """None before the first reading of memory that GPU and CPU share."""
        self._schedule = Schedule()
        self._stopping = asyncio.Event()
        self._replace = False
        self._tick_task: asyncio.Task[None] | None = None
        self._one_reload = asyncio.Lock()
        self._reload_wanted = False
        self._reloading: asyncio.Task[None] | None = None

    async def run(self) -> bool:
        """Start, tick, stop.

        Raises:
            gpuagent_exporters.http.listeners.ListenError: an address cannot be had; nothing has been started then.
        """
        loop = asyncio.get_running_loop()
        endure(loop, self._parts.reserve)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop, signal.Signals(number).name)
        loop.add_signal_handler(signal.SIGHUP, self._reload_soon)
        parts = self._parts
        try:
            remedies = RemedyCommands(parts.remedies)
            await parts.http_servers.open(
                parts.view,
                self,
                parts.alert_commands,
                parts.client_commands,
                remedies,
                parts.leak_commands,
                parts.usage_commands,
            )
            await parts.clients.open()
            parts.sources.open()
            await asyncio.to_thread(parts.leaks.open)
            await asyncio.to_thread(parts.usage.open)
            await parts.alerting.open(self._alive)
            await parts.remedies.open()
            parts.otlp.start()
            self._start_jobs()
            self._tick_task = asyncio.create_task(self._tick_for_ever(), name="tick")
            self._tick_task.add_done_callback(lambda _: self._stopping.set())
            await self._stopping.wait()
        finally:
            await self._stop()
        return self._replace

    def stop(self, reason: str = "request") -> None:
        """End the service; `run` returns soon after."""
        log.info("stopping (%s)", reason)
        self._stopping.set()

    def pause(self, seconds: float, by: str) -> None:
        """Give the GPUs back to the driver for a while, so that it can be reloaded or a GPU reset.

        `by` is the user who asked; whoever is told of the pause is told that, and until when it lasts.
        """
        until = datetime.fromtimestamp(self._parts.clock.wall() + seconds, UTC)
        asked = Pause(by, self._parts.clock.now() + seconds)
        self._parts.monitor.pause(f"by {by or 'an unknown user'} until {until:%Y-%m-%d %H:%M} UTC", asked)

        async def resume() -> None:
            self.resume()

        self._schedule.every(max(seconds / self._parts.clock.speed, 1.0), "resume", resume)

    def resume(self) -> None:
        """Measure again."""
        self._schedule.cancel("resume")
        self._parts.monitor.resume()

    @property
    def notes(self) -> list[str]:
        """Notes on the configuration that was read last."""
        return list(self._parts.notes)

    @property
    def released(self) -> bool:
        """Nothing of the driver is held."""
        return self._parts.monitor.session.released

    async def reload(self) -> str:
        """Read the configuration again.

        A bad one is refused with all its faults, which are returned, and the old one stays. So is one that is not read
        in time: what does not answer is left behind, and holds no later reload up.
        """
        async with self._one_reload:  # two at once would be put in force by halves
            return await self._reload()

    async def _reload(self) -> str:
        parts, progress = self._parts, Progress()
        parts.notifier.reloading(time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000)
        try:
            new, rules, use_doors = await self._read_again(progress)
            settings = parts.remedy_settings(new)
            try:
                async with asyncio.timeout(self._reload_seconds):
                    await parts.alerting.reload(new, rules, self._alive)
                    use_doors()
                    parts.remedies.use(settings)
                    await parts.sources.reload(new.sources)
            except TimeoutError:
                why = (
                    "a reload did not come to its end: alerts or receivers wait for a disk or a file that does not"
                    " answer, and a part of the new configuration is in force; reload again once it answers"
                )
                parts.remedies.turn_off(why)
                raise ValueError(f"{why}; remedies are off until then") from None
        except (ConfigError, WebConfigError, RuleFileError, ValueError) as error:
            log.error("the new configuration is refused, the old one stays:\n%s", error)  # noqa: TRY400  no traceback
            return str(error)
        else:
            self._adopt(new)
            log.info("the configuration was read again")
            return ""
        finally:
            parts.notifier.ready()

    async def _read_again(self, progress: Progress) -> tuple[Config, tuple[RuleGroup, ...], Callable[[], None]]:
        """Read all files. Raises ConfigError, WebConfigError and RuleFileError, and ValueError after the deadline."""
        if len(self._reads) >= _MOST_LOST_RELOADS:
            steps = ", ".join(sorted({each.step for each in self._reads}))
            raise ValueError(f"{len(self._reads)} earlier reloads have not come to an end ({steps}): restart gpuagent")
        parts = self._parts

        def read() -> tuple[Config, tuple[RuleGroup, ...], Callable[[], None]]:
            try:
                new, rules = parts.load(progress)
                progress.at(f"reading {new.web_config_file} and its certificates")
                return new, rules, parts.http_servers.prepare(new)
            finally:
                self._reads.discard(progress)

        self._reads.add(progress)
        try:
            async with asyncio.timeout(self._reload_seconds):
                return await in_daemon_thread(read, "reload")
        except TimeoutError:
            raise ValueError(
                f"not read within {self._reload_seconds:g} s: it was {progress.step or 'beginning'}, which does not "
                "answer; `gpuagent remedies stop` stops remedies without reading a file"
            ) from None

    def _adopt(self, new: Config) -> None:
        for key in ("state_dir", "runtime_dir", "client_dir", "listen", "http", "otlp"):
            if getattr(new, key) != getattr(self._config, key):
                log.warning("%s has changed: this takes effect at the next start", key)
        self._config = new
        self._parts.view.config = new
        self._parts.clients.registry.use(limits_of(new), new.clients.interval)
        self._parts.automatic_blame.enabled = new.leaks.blame == "automatic"
        self._parts.leaks.use(new.leaks.sensitivity, new.leaks.overrides)
        self._parts.usage.reconfigure(usage_settings(new))
        self._parts.reports.config = new
        self._start_jobs()
        trim_and_freeze(c_library())

    def _reload_soon(self) -> None:
        """However many signals come while a reload is under way, one more follows it: the file may have changed."""
        self._reload_wanted = True
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.create_task(self._reload_while_wanted(), name="reload")

    async def _reload_while_wanted(self) -> None:
        while self._reload_wanted:
            self._reload_wanted = False
            try:
                await self.reload()
            except Exception:
                log.exception("a reload failed")

    def _start_jobs(self) -> None:
        speed = self._parts.clock.speed

        async def slow() -> None:
            self._parts.monitor.request_slow()

        async def free_memory() -> None:
            trim_heap(c_library())

        self._schedule.every(_HOUSEKEEPING_SECONDS, "free memory", free_memory)
        self._schedule.every(self._config.slow_interval / speed, "slow collection", slow)
        self._schedule.every(_HOUSEKEEPING_SECONDS, "housekeeping of alerts", self._parts.alerting.housekeeping)
        leaks = self._parts.leaks
        self._schedule.every(leaks.keep_interval_seconds, "histories of the leak detector", leaks.keep)
        usage = self._parts.usage
        self._schedule.every(usage.save_interval_seconds, "daily table of usage", usage.save)
        self._schedule.every(CHECK_SECONDS, "reports of usage", self._parts.reports.send_due)
        otlp, memo = self._parts.otlp, SampleCache()
        if otlp.is_on:

            async def push() -> None:
                otlp.push(self._parts.view.series(memo))

            self._schedule.every(otlp.interval_seconds / speed, "push by OTLP", push)
        watchdog = self._parts.notifier.watchdog_seconds
        if watchdog is not None:  # a tick may come less often than systemd wants to hear from us
            self._schedule.every(watchdog / 3, "watchdog", self._tell_watchdog)
        self._schedule.start()

    def _alive(self) -> bool:
        return self._parts.view.healthy()[0]

    async def _tell_watchdog(self) -> None:
        if self._alive():
            self._parts.notifier.alive()

    async def _tick_for_ever(self) -> None:
        """On the loop's own clock, which no one can set.

        A tick that took too long is followed by the next one due, not by all that were missed.
        """
        loop = asyncio.get_running_loop()
        due = loop.time()
        while not self._stopping.is_set():
            try:
                await self._tick()
            except Exception:
                log.exception("a tick failed")
            interval = self._interval_seconds()
            due += interval
            if due < loop.time():
                if not self._is_pressed:  # of those between two usual ones none is owed
                    self._parts.monitor.tick_skipped()
                due = loop.time() + interval - (loop.time() - due) % interval
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):  # asyncio.wait_for would make a task for it
                    await self._stopping.wait()

    def _interval_seconds(self) -> float:
        """Return the time to the next tick, by the machine's clock: a short one while memory is short."""
        config = self._config
        usual, pressed = config.poll_interval, config.pressure_interval
        return (min(usual, pressed) if self._is_pressed and pressed else usual) / self._parts.clock.speed

    async def _tick(self) -> None:
        parts = self._parts
        snapshot = await parts.monitor.tick()
        outlook = snapshot.node.memory_outlook
        self._is_pressed = outlook is not None and outlook.risk is not StallRisk.NONE
        snapshot = replace(snapshot, clients=parts.clients.readings(snapshot))
        snapshot = parts.leaks.observe(snapshot)
        snapshot = parts.automatic_blame.observe(snapshot)
        parts.usage.observe(snapshot)
        parts.clients.show(snapshot)
        parts.view.update(snapshot)
        await parts.remedies.update_snapshot(snapshot)
        parts.alerting.feed(snapshot)
        self._schedule.check_clock(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME))
        if snapshot.ticks == 1:
            trim_and_freeze(c_library())
            parts.notifier.ready()
        if self._are_pages_locked is None and outlook is not None and self._config.remedies.ladders:
            why_not = lock_pages(c_library())
            self._are_pages_locked = not why_not
            log.info("pages are locked%s", f": no, {why_not}" if why_not else "")
        if snapshot.ticks == _GROWN_TICKS:
            freeze_gc()
        parts.notifier.alive()
        parts.notifier.status(_summary(snapshot))
        parts.reserve.restore()
        if parts.monitor.session.needs_new_process and parts.may_renew():
            self._replace = True
            self.stop("the driver was upgraded underneath")

    async def _stop(self) -> None:
        parts = self._parts
        parts.notifier.stopping()
        self._schedule.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                if self._tick_task is not None:
                    self._tick_task.cancel()
                    await asyncio.gather(self._tick_task, return_exceptions=True)
                await parts.remedies.close()
                await parts.http_servers.close()
                await self._keep_leaks_and_usage()
                await parts.automatic_blame.close()
                await asyncio.gather(
                    parts.alerting.close(), parts.clients.close(), parts.sources.close(), parts.monitor.close()
                )

    async def _keep_leaks_and_usage(self) -> None:
        """Before the store is closed. A slow disk must not cost the rest of an orderly end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KEEP_SECONDS):
                await self._parts.usage.close()
                await self._parts.leaks.close()


def _summary(snapshot: Snapshot) -> str:
    """One line for `systemctl status`."""
    states: dict[str, int] = {}
    for gpu in snapshot.gpus:
        states[gpu.state] = states.get(gpu.state, 0) + 1
    if not snapshot.gpus:
        return snapshot.node.why_unread or "no GPU on this node"
    counts = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    return f"{len(snapshot.gpus)} GPUs: {counts}; {len(snapshot.processes)} processes"
