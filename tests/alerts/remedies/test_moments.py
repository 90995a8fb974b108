"""Whatever happens between any two steps of a ladder, with real processes and real signals."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuagent.config.models import Config
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.processes import IGNORES_TERM, PLAIN, as_target, running
from tests.alerts.remedies.staging import Stage, config, let_threads_work, stage
from tests.fakes.nobody import NOBODY, run_as_nobody

TELLS = (
    "import os, signal\n"
    "for number in (signal.SIGUSR1, signal.SIGTERM):\n"
    # Not by print, which may still be at the word before.
    "    signal.signal(number, lambda number, _: os.write(1, (signal.Signals(number).name + '\\n').encode()))\n"
    "print('ready', flush=True)\n"
    "while True: signal.pause()"
)
"""Says which signal it got, and ends by SIGKILL alone."""
LADDER = {
    "match": ['alertname="GpuProcessMemoryLeak"'],
    "steps": [{"signal": {"name": "USR1", "wait": 2}}, {"terminate": {"wait": 2}}, {"kill": {"wait": 60}}],
}
MOMENTS = range(8)
"""In ticks since the alert; the ladder takes about eight."""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """On the disk, as the agent has it."""
    return Store(tmp_path / "state.db")


def settings(pid: int) -> Config:
    """USR1, then SIGTERM, then SIGKILL."""
    return config(as_target(pid).user, ladders=[LADDER])


async def run_ladder(one: Stage, pid: int, moment: int, event: Callable[[], None]) -> list[dict[str, Any]]:
    """A ladder on the process, with something that happens after so many ticks; its record."""
    one.fires(pid)
    for _ in range(moment):
        await one.tick()
        await let_threads_work()
    event()
    for _ in range(120):
        await one.tick()
        await let_threads_work()
        if not one.service.remedies.running and (one.service.remedies.counts or not one.alerts):
            break
    await asyncio.wait_for(one.service.remedies.idle(), 10)
    document = await one.service.document()
    runs: list[dict[str, Any]] = document["remedies"]
    return runs


def sent(runs: list[dict[str, Any]]) -> list[str]:
    """Signals that the record says were sent."""
    return [
        step["step"].removeprefix("signal ")
        for run in runs
        for step in run["steps"]
        if step["kind"] == "result" and step["ok"]
    ]


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_the_alert_ends(store: Store, moment: int) -> None:
    """An alert that resolves between any two steps: what was sent until then is on record, and nothing comes after."""
    with running(TELLS) as leaker, running(PLAIN) as neighbor:

        async def story() -> list[dict[str, Any]]:
            pids = {"leaker": leaker.pid, "neighbor": neighbor.pid}
            async with stage(settings(leaker.pid), store, pids) as one:
                return await run_ladder(one, leaker.pid, moment, one.alerts.clear)

        runs = asyncio.run(story())
        signals = sent(runs)
        assert {run["end"]["result"] for run in runs} <= {"resolved", "released"}
        assert signals == ["SIGUSR1", "SIGTERM", "SIGKILL"][: len(signals)]
        if "SIGKILL" not in signals:
            assert leaker.poll() is None
        leaker.kill()
        assert leaker.stdout is not None
        assert leaker.stdout.read().split() == [each for each in signals if each != "SIGKILL"]
        assert neighbor.poll() is None


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_the_process_ends(store: Store, moment: int) -> None:
    """A process that exits by itself between any two steps: said so, nobody else is signaled, no defect is told."""
    with running(TELLS) as leaker, running(PLAIN) as neighbor:

        def ends() -> None:
            leaker.kill()
            leaker.wait()

        async def story() -> list[dict[str, Any]]:
            pids = {"leaker": leaker.pid, "neighbor": neighbor.pid}
            async with stage(settings(leaker.pid), store, pids) as one:
                return await run_ladder(one, leaker.pid, moment, ends)

        runs = asyncio.run(story())
        assert {run["end"]["result"] for run in runs} <= {"exited", "released", "refused"}
        assert all("defect" not in run["end"]["detail"] for run in runs)
        assert neighbor.poll() is None


EPERM = """
import asyncio, sys
from pathlib import Path
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.staging import config, stage

async def story(leaker, neighbor):
    store = Store(Path(sys.argv[1]) / "state.db")
    settings = config("root", limits={"pause": 0, "cooldown": 0, "per_hour": 9, "per_day": 9})
    async with stage(settings, store, {"leaker": leaker, "neighbor": neighbor}) as one:
        one.fires(leaker)
        await one.until(lambda: one.ended() == ["failed"])
        await one.until(lambda: one.service.figures().stopped)
        one.fires(neighbor)
        await one.until(lambda: len(one.ended()) == 2)
        for run in (await one.service.document())["remedies"]:
            print(run["end"]["result"], run["end"]["detail"])

asyncio.run(story(int(sys.argv[2]), int(sys.argv[3])))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_without_the_right() -> None:
    """EPERM: the first refusal by the kernel ends the run and stops all remedies: the second process is not tried."""
    with (
        tempfile.TemporaryDirectory(prefix="gpuagent-", dir="/tmp") as folder,
        running(IGNORES_TERM) as leaker,
        running(PLAIN) as neighbor,
    ):
        os.chown(folder, NOBODY, NOBODY)
        result = run_as_nobody(EPERM, folder, leaker.pid, neighbor.pid)
        assert result.returncode == 0, result.stderr
        first, second = result.stdout.splitlines()
        assert first.startswith("failed SIGTERM: not permitted")
        assert second.startswith("refused remedies are stopped: the agent may not act")
        assert (leaker.poll(), neighbor.poll()) == (None, None)
        assert Path(f"/proc/{leaker.pid}/status").read_text().count("ShdPnd:\t0000000000000000") == 1


def test_the_signals_are_those_of_the_ladder() -> None:
    """What the stories above rely on: the child tells both, and SIGKILL is not to be caught."""
    with running(TELLS) as process:
        assert process.stdout is not None
        for number in (signal.SIGUSR1, signal.SIGTERM):
            process.send_signal(number)
            assert process.stdout.readline().strip() == number.name
