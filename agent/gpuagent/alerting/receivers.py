"""The configured receivers, made when there are some: the HTTP client costs 10 MiB that most nodes need not spend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpuagent.clock import Clock
from gpuagent_alerts.notify.outbox.attempt import Sender
from gpuagent_alerts.notify.routes import Recipient
from gpuagent_alerts.store.database import Store

if TYPE_CHECKING:
    from gpuagent.config.alerting import Receiver
    from gpuagent_alerts.masker import Masker
    from gpuagent_alerts.notify.receivers.base import Dependencies
    from gpuagent_alerts.notify.receivers.heartbeat import Heartbeat
    from gpuagent_alerts.notify.receivers.http import Http


class Receivers:
    """Makes what sends, with one HTTP client for all. For one event loop."""

    def __init__(self, clock: Clock, store: Store) -> None:
        self._clock = clock
        self._store = store
        self._http: Http | None = None
        self._masker: Masker | None = None

    def recipients(self, configured: Sequence[Receiver]) -> list[Recipient]:
        """Return what routing has to know of them."""
        if not configured:
            return []
        from gpuagent_alerts.notify.receivers.registry import recipient_of  # noqa: PLC0415

        return [found for receiver in configured if (found := recipient_of(receiver)) is not None]

    def senders(self, configured: Sequence[Receiver]) -> list[Sender]:
        """Return what sends messages; a heartbeat takes none."""
        if not configured:
            return []
        from gpuagent_alerts.notify.receivers.registry import build_receiver  # noqa: PLC0415

        shared = self._shared(configured)
        return [sender for receiver in configured if (sender := build_receiver(receiver, shared)) is not None]

    def heartbeats(self, configured: Sequence[Receiver], alive: Callable[[], bool]) -> list[Heartbeat]:
        """Return what calls a URL while the agent is alive."""
        if not configured:
            return []
        from gpuagent_alerts.notify.receivers.registry import build_heartbeat  # noqa: PLC0415

        shared = self._shared(configured)
        return [beat for receiver in configured if (beat := build_heartbeat(receiver, shared, alive)) is not None]

    async def close(self) -> None:
        """Close the client's connections."""
        if self._http is not None:
            await self._http.close()

    def _shared(self, configured: Sequence[Receiver]) -> Dependencies:
        from gpuagent_alerts.masker import Masker  # noqa: PLC0415
        from gpuagent_alerts.notify.receivers.base import Dependencies  # noqa: PLC0415
        from gpuagent_alerts.notify.receivers.http import Http  # noqa: PLC0415
        from gpuagent_alerts.notify.receivers.registry import secret_arguments_of, secrets_of  # noqa: PLC0415

        if self._masker is None:
            self._masker = Masker()
        # Receivers that stay as they are over a reload share it too: what one of them says may quote any secret.
        self._masker.use(secrets_of(configured), secret_arguments_of(configured))
        if self._http is None:
            self._http = Http(clock=self._clock, masker=self._masker)
        return Dependencies(self._http, self._clock, self._masker, self._store)
