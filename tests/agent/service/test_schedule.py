"""What recurs besides the tick, on the real scheduler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

from gpuagent.service.schedule import Schedule

SOON = 0.01
TIMEOUT = 20


class Job:
    """Notes its runs; `times(n)` waits for the n-th."""

    def __init__(self, fail: Exception | None = None) -> None:
        self.runs = 0
        self._fail = fail
        self._ran = asyncio.Condition()

    async def __call__(self) -> None:
        async with self._ran:
            self.runs += 1
            self._ran.notify_all()
        if self._fail is not None:
            raise self._fail

    async def times(self, number: int) -> None:
        """Until it has run so often."""
        async with asyncio.timeout(TIMEOUT), self._ran:
            await self._ran.wait_for(lambda: self.runs >= number)


def scheduled(test: Callable[[Schedule], Awaitable[None]]) -> None:
    """Run a test with a schedule that has been started."""

    async def run() -> None:
        schedule = Schedule()
        schedule.start()
        try:
            await test(schedule)
        finally:
            schedule.stop()

    asyncio.run(run())


def next_run(schedule: Schedule, name: str) -> datetime:
    """When a job is due, by the wall clock that APScheduler goes by."""
    due = schedule._scheduler.get_job(name).next_run_time
    assert isinstance(due, datetime)
    return due


def test_a_job_comes_again_and_again() -> None:
    """At its interval, whatever kind of callable it is: this one is an object, not a function."""

    async def test(schedule: Schedule) -> None:
        job = Job()
        schedule.every(SOON, "job", job)
        await job.times(3)

    scheduled(test)


def test_a_job_that_fails_is_logged_and_comes_again(caplog: pytest.LogCaptureFixture) -> None:
    """A failure of one run is not the end of the job."""

    async def test(schedule: Schedule) -> None:
        job = Job(fail=OSError("disk full"))
        schedule.every(SOON, "housekeeping", job)
        await job.times(2)

    scheduled(test)
    assert "the job housekeeping failed: OSError('disk full')" in caplog.text


def test_a_name_is_one_job() -> None:
    """A job of the same name takes the other's place, at its own interval."""

    async def test(schedule: Schedule) -> None:
        old, new = Job(), Job()
        schedule.every(3600, "job", old)
        schedule.every(SOON, "job", new)
        await new.times(1)
        assert old.runs == 0

    scheduled(test)


def test_a_job_that_is_cancelled_does_not_come_again() -> None:
    """Neither one that is there nor one that is not is an error."""

    async def test(schedule: Schedule) -> None:
        schedule.every(SOON, "job", Job())
        schedule.cancel("job")
        schedule.cancel("job")
        schedule.cancel("never named")
        assert schedule._scheduler.get_jobs() == []

    scheduled(test)


def test_starting_and_stopping_twice() -> None:
    """GPU-11: is harmless, in whatever order a service is taken down."""

    async def test(schedule: Schedule) -> None:
        schedule.start()
        schedule.stop()
        schedule.stop()

    scheduled(test)


@pytest.mark.parametrize("step", [-3600.0, 3600.0], ids=["back", "forward"])
def test_a_step_of_the_wall_clock(step: float, caplog: pytest.LogCaptureFixture) -> None:
    """All jobs are scheduled anew: APScheduler would stand still for as long as the clock was set back."""

    async def test(schedule: Schedule) -> None:
        schedule.every(60, "job", Job())
        assert not schedule.check_clock(1_700_000_000.0, 1000.0)
        assert not schedule.check_clock(1_700_000_060.9, 1060.0)  # a slow clock that is slewed does not step
        # The job is due an hour off, as it is after a step.
        schedule._scheduler.modify_job("job", next_run_time=datetime.now(UTC) + timedelta(hours=1))

        assert schedule.check_clock(1_700_000_120.0 + step, 1120.0)
        assert next_run(schedule, "job") <= datetime.now(UTC) + timedelta(seconds=60)
        assert not schedule.check_clock(1_700_000_180.0 + step, 1180.0)

    caplog.set_level(logging.WARNING, "gpuagent")
    scheduled(test)
    assert [record.getMessage()[:27] for record in caplog.records] == ["the wall clock was set by " + "+-"[step < 0]]


def test_a_suspend_is_no_step() -> None:
    """Both clocks go on through it (CLOCK_BOOTTIME)."""

    async def test(schedule: Schedule) -> None:
        schedule.check_clock(1_700_000_000.0, 1000.0)
        assert not schedule.check_clock(1_700_030_000.0, 31_000.0)

    scheduled(test)
