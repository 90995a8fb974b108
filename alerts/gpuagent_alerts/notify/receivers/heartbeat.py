"""Calls a URL again and again. Whoever is at the other end raises the alarm when the calls stop: then the node is dead.

It is not for messages: a late call is worth nothing, so none is queued, and alerts are not routed to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gpuagent.core.clock import Clock
from gpuagent_alerts.notify.outbox.attempt import DeliveryOutcome, Reason
from gpuagent_alerts.notify.receivers.base import Dependencies, HttpRequest, ReceiverConfig, ReceiverKind, url_of
from gpuagent_alerts.notify.receivers.settings import URL_KEYS, KeyType, key, url_file
from gpuagent_alerts.secret import HiddenText, Misconfigured, Secret

if TYPE_CHECKING:
    from gpuagent_alerts.notify.receivers.http import HttpClient

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HeartbeatConfig:
    """A URL that is called again and again: where the calls stop, the node is dead."""

    url: str | HiddenText | None = key(KeyType.SECRET_WEB_URL, "The URL to call.", default=None)
    url_file: Path | None = url_file()
    interval: float = key(KeyType.DURATION, "Time between two calls.", default=60.0, least=10, most=86400)


def _always() -> bool:
    return True


@dataclass(slots=True)
class Heartbeat:
    """Calls while `alive` says that the agent does its work; what goes wrong is kept and logged once."""

    name: str
    http: HttpClient
    url: Secret
    interval_seconds: float
    clock: Clock
    alive: Callable[[], bool] = _always
    sent: int = 0
    failed: int = 0
    last: DeliveryOutcome | None = field(default=None, init=False)
    failing_since: float | None = field(default=None, init=False)
    """Clock of the first of the calls that have failed in a row; None after one that did not."""

    async def beat(self) -> DeliveryOutcome | None:
        """Call once; None while the agent is not alive."""
        if not self.alive():
            return None
        outcome = await self._call()
        if outcome.ok:
            self.sent += 1
            self.failing_since = None
        else:
            self.failed += 1
            self.failing_since = self.clock.now() if self.failing_since is None else self.failing_since
        if self.last is None or self.last.ok is not outcome.ok:
            level = logging.INFO if outcome.ok else logging.WARNING
            log.log(level, "the heartbeat %s: %s", self.name, outcome)
        self.last = outcome
        return outcome

    async def run(self) -> None:
        """Call at the interval, until cancelled."""
        while True:
            started = self.clock.now()
            await self.beat()
            left = self.interval_seconds - (self.clock.now() - started)
            await asyncio.sleep(max(left, 0.0) / self.clock.speed)

    async def _call(self) -> DeliveryOutcome:
        try:
            return await self.http.send(HttpRequest(self.url.line(), method="GET"))
        except Misconfigured as error:
            return DeliveryOutcome(Reason.MISCONFIGURED, str(error))
        except Exception as error:  # noqa: BLE001 (the next call may work)
            return DeliveryOutcome(Reason.FAULT, f"a fault in the agent: {type(error).__name__}")


class HeartbeatKind(ReceiverKind[HeartbeatConfig]):
    """Heartbeats, which take no messages."""

    name = "heartbeat"
    settings = HeartbeatConfig
    exactly_one = URL_KEYS

    def address(self, config: HeartbeatConfig) -> Secret:
        """Return the URL that is called."""
        return url_of(config)

    def transport(self, config: HeartbeatConfig, receiver: str, shared: Dependencies) -> None:
        """Return None."""

    def recipient(self, receiver: ReceiverConfig) -> None:
        """Return None: no alert is routed to it."""

    def heartbeat(
        self, config: HeartbeatConfig, receiver: str, shared: Dependencies, alive: Callable[[], bool]
    ) -> Heartbeat:
        """Return what calls the URL while `alive` says that the agent does its work."""
        return Heartbeat(receiver, shared.http, url_of(config), config.interval, shared.clock, alive)
