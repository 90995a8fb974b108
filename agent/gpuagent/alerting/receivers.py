"""The configured receivers, made when there are some: the HTTP client costs 10 MiB that most nodes need not spend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpuagent.core.clock import Clock
from gpuagent_alerts.outbox.sender import Sender
from gpuagent_alerts.routing.route import Recipient
from gpuagent_alerts.store.database import Store

if TYPE_CHECKING:
    from gpuagent.config.alerting import Receiver
    from gpuagent_alerts.receivers.build import Builder
    from gpuagent_alerts.receivers.heartbeat import Heartbeat
    from gpuagent_alerts.receivers.http import Http
    from gpuagent_alerts.receivers.masker import Masker


class Receivers:
    """Makes what sends, with one HTTP client for all. For one event loop."""

    def __init__(self, clock: Clock, store: Store) -> None:
        self._clock = clock
        self._store = store
        self._http: Http | None = None
        self._masker: Masker | None = None

    def recipients(self, configured: Sequence[Receiver]) -> list[Recipient]:
        """What routing has to know of them."""
        if not configured:
            return []
        from gpuagent_alerts.receivers.build import recipient  # noqa: PLC0415

        return [found for receiver in configured if (found := recipient(receiver)) is not None]

    def senders(self, configured: Sequence[Receiver]) -> list[Sender]:
        """What sends messages; a heartbeat takes none."""
        if not configured:
            return []
        builder = self._builder(configured)
        return [sender for receiver in configured if (sender := builder.receiver(receiver)) is not None]

    def heartbeats(self, configured: Sequence[Receiver], alive: Callable[[], bool]) -> list[Heartbeat]:
        """What calls a URL while the agent is alive."""
        if not configured:
            return []
        builder = self._builder(configured)
        return [beat for receiver in configured if (beat := builder.heartbeat(receiver, alive)) is not None]

    async def close(self) -> None:
        """Close the client's connections."""
        if self._http is not None:
            await self._http.close()

    def _builder(self, configured: Sequence[Receiver]) -> Builder:
        from gpuagent_alerts.receivers.build import Builder, secret_arguments, secrets_of  # noqa: PLC0415
        from gpuagent_alerts.receivers.http import Http  # noqa: PLC0415
        from gpuagent_alerts.receivers.masker import Masker  # noqa: PLC0415
        from gpuagent_alerts.receivers.slack_threads import StoredThreads  # noqa: PLC0415

        if self._masker is None:
            self._masker = Masker()
        # Receivers that stay as they are over a reload share it too: what one of them says may quote any secret.
        self._masker.use(secrets_of(configured), secret_arguments(configured))
        if self._http is None:
            self._http = Http(clock=self._clock, masker=self._masker)
        threads = StoredThreads(self._store)
        return Builder(self._http, self._clock, masker=self._masker, threads=threads)
