"""Everything that recurs besides the tick, on APScheduler: the only module that imports it.

APScheduler goes by the wall clock and stands still when that is set back, so the tick does not run on it, and the jobs
are scheduled anew when the wall clock steps against CLOCK_BOOTTIME.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import UTC
from typing import Any

from gpuagent.core.slim_imports import absent

# Jobs run on the event loop, at intervals in UTC, and no plug-in of another distribution is looked for: pools of
# threads and processes, time zones and the metadata of distributions are 1.2 MiB for nothing.
with (
    absent("apscheduler.executors.pool", "tzlocal"),
    absent("importlib.metadata", version=lambda _: "3.11", entry_points=lambda group: ()),  # noqa: ARG005  its name
):
    from apscheduler.events import EVENT_JOB_ERROR
    from apscheduler.schedulers.asyncio import AsyncIOScheduler
    from apscheduler.triggers.interval import IntervalTrigger

log = logging.getLogger(__name__)

_STEP_SECONDS = 1.0


class Schedule:
    """Jobs at intervals of real seconds, on the running event loop. A job that fails is logged and comes again."""

    def __init__(self) -> None:
        self._scheduler = AsyncIOScheduler(timezone=UTC)
        self._scheduler.add_listener(_log_failure, EVENT_JOB_ERROR)
        self._jobs: dict[str, float] = {}
        self._offset: float | None = None

    def every(self, seconds: float, name: str, job: Callable[[], Awaitable[None]]) -> None:
        """Run a coroutine function at an interval; a job of the same name is replaced.

        A run that would overlap with its predecessor is left out; of several that are late, one is made.
        """

        async def run() -> None:
            await job()  # APScheduler awaits functions alone: what any other object returns it would drop

        self._jobs[name] = seconds
        self._scheduler.add_job(
            run, _interval(seconds), id=name, replace_existing=True, coalesce=True, max_instances=1,
            misfire_grace_time=None,
        )  # fmt: skip

    def cancel(self, name: str) -> None:
        """Drop a job, if there is one of this name."""
        if self._jobs.pop(name, None) is not None:
            self._scheduler.remove_job(name)

    def start(self) -> None:
        """Begin; needs a running event loop."""
        if not self._scheduler.running:
            self._scheduler.start()

    def stop(self) -> None:
        """End; running jobs are not waited for."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)

    def check_clock(self, wall_seconds: float, boot_seconds: float) -> bool:
        """Schedule all jobs anew if the wall clock was set since the last call; returns whether it was."""
        offset = wall_seconds - boot_seconds
        stepped = self._offset is not None and abs(offset - self._offset) > _STEP_SECONDS
        if stepped and self._offset is not None:
            log.warning("the wall clock was set by %+.0f s", offset - self._offset)
            for name, seconds in self._jobs.items():
                self._scheduler.reschedule_job(name, trigger=_interval(seconds))
        self._offset = offset
        return stepped


def _interval(seconds: float) -> IntervalTrigger:
    return IntervalTrigger(seconds=seconds, timezone=UTC)


def _log_failure(event: Any) -> None:
    log.error("the job %s failed: %r", event.job_id, event.exception)
