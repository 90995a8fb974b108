"""What the HTTP side may know: the last snapshot in the forms that it serves, and whether the agent is well."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from gpuagent import __version__
from gpuagent.config.models import Config
from gpuagent.core.clock import Clock
from gpuagent.core.metrics.alerting import AlertingFigures
from gpuagent.core.metrics.family import SampleCache
from gpuagent.core.metrics.series import ExtraFamilies, series
from gpuagent.core.snapshot import Snapshot
from gpuagent_exporters.charts import Charts
from gpuagent_exporters.exposition import MetricsPage, Series
from gpuagent_exporters.history import History
from gpuagent_exporters.status.document import processes_document, status_document
from gpuagent_exporters.status.last_known import LastKnownProcesses
from gpuagent_exporters.status.problems import describe, stale_after_seconds

_LOOP_STALLED_SECONDS = 10.0


class View:
    """The source of every answer. `update` is called by each tick, everything else by requests."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        simulated: str = "",
        alerting: Callable[[], AlertingFigures | None] = lambda: None,
        extra_families: Callable[[], Sequence[ExtraFamilies]] = lambda: (),
        left_alone: Callable[[], int] = lambda: 0,
    ) -> None:
        """`left_alone` returns of how many users, units and containers rules leave the processes alone."""
        self.config = config
        self.history = History()
        self.charts = Charts(self.history)
        self._clock = clock
        self._simulated = simulated
        self._started = clock.now()
        self._snapshot: Snapshot | None = None
        self._known = LastKnownProcesses()
        self._page = MetricsPage(lambda: self.series(self._memo))
        self._memo = SampleCache()
        self._alerting = alerting
        self._extra_families = extra_families
        self._left_alone = left_alone

    def update(self, snapshot: Snapshot) -> None:
        """Show this one from now on."""
        self._snapshot = snapshot
        self._known.update(snapshot)
        self.history.add(snapshot)
        self.charts.add(snapshot)

    def metrics(self, openmetrics: bool) -> bytes:
        """Return the body of `/metrics`."""
        return self._page.render(openmetrics=openmetrics)

    def status(self) -> dict[str, object]:
        """Return the document behind `gpuagent status`."""
        now = self._clock.now()
        alerting = self._alerting()
        return status_document(
            self._snapshot,
            now_seconds=now,
            source="agent",
            version=__version__,
            pid=os.getpid(),
            uptime_seconds=now - self._started,
            poll_interval_seconds=self.config.poll_interval,
            history=self.history.points(),
            history_interval_seconds=self.history.interval_seconds,
            simulated=self._simulated,
            preallocates=self.config.preallocates,
            state_problem="" if alerting is None else alerting.store_problem,
            left_alone=self._left_alone(),
            undelivered=() if alerting is None else alerting.undelivered,
            firing=() if alerting is None else alerting.firing,
            silenced_processes=frozenset() if alerting is None else alerting.silenced_processes,
            known=None if self._snapshot is None else self._known.of(self._snapshot),
        )

    def processes(self) -> dict[str, object]:
        """Return the document behind `gpuagent ps`."""
        alerting = self._alerting()
        return processes_document(
            self._snapshot,
            now_seconds=self._clock.now(),
            poll_interval_seconds=self.config.poll_interval,
            simulated=self._simulated,
            preallocates=self.config.preallocates,
            firing=() if alerting is None else alerting.firing,
        )

    def healthy(self) -> tuple[bool, str]:
        """Tell whether the loop ticks. The same loop answers, so only a tick that never ends can be seen here."""
        age = self._tick_age()
        limit = _LOOP_STALLED_SECONDS + 3 * self.config.poll_interval
        if age is not None and age / self._clock.speed > limit:
            return False, f"the last tick was {age:.0f} s ago"
        return True, "ok"

    def ready(self) -> tuple[bool, str]:
        """There is a fresh measurement: what is served is the node as it is.

        That a receiver is not told makes nothing served untrue; it is named in a line of its own.
        """
        snapshot = self._snapshot
        if snapshot is None:
            return False, "nothing has been measured yet"
        if snapshot.measured_seconds is None:
            return False, f"no GPU has been read yet: {snapshot.node.why_unread or 'the driver has not answered'}"
        age = self._clock.now() - snapshot.measured_seconds
        if age > stale_after_seconds(self.config.poll_interval):
            return False, f"no GPU has been read for {age:.0f} s: {snapshot.node.why_unread or 'see the status'}"
        alerting, now = self._alerting(), self._clock.now()
        return True, "\n".join(["ok", *(describe(one, now) for one in (alerting.undelivered if alerting else ()))])

    def _tick_age(self) -> float | None:
        return None if self._snapshot is None else self._clock.now() - self._snapshot.clock_seconds

    def series(self, memo: SampleCache) -> Series:
        """Return what `/metrics` shows, for a reader who keeps `memo`."""
        left_out = self.config.metrics.left_out
        everything = series(
            self._snapshot,
            self._clock.now(),
            simulated=self._simulated,
            top=self.config.processes.top,
            alerting=self._alerting(),
            preallocates=self.config.preallocates,
            memo=memo,
            extra_families=self._extra_families(),
        )
        return (each for each in everything if each[0].name not in left_out)
