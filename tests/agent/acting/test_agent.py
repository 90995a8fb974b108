"""Real children whose GPU memory is simulated, real signals, and the whole way from an alert to memory that is back."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpuagent.acting.agent import Acting, Around, NoSuchProcess
from gpuagent.acting.configured import step_of
from gpuagent.acting.hands import AgentHands
from gpuagent.acting.notes import Notes
from gpuagent.catalogue.remedies import REMEDY_FAMILIES
from gpuagent.config.models import Config
from gpuagent.procfs.boot import boot_id, boot_time_seconds
from gpuagent.procfs.files import RealProc
from gpuagent.procfs.table import ProcessTable
from gpuagent.procfs.watch import PidfdWatcher
from gpuagent.reading import GpuState, Snapshot
from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.remedies.judged import Judged
from gpuagent_alerts.remedies.world import Hands
from gpuagent_alerts.store.database import Store
from tests.agent.acting.processes import IGNORES_TERM, PLAIN, as_target, reader, running
from tests.agent.config.loading import load, write
from tests.fakes.rig import Rig, rig

NODE = """
description: a leaker and a neighbour, both real
gpus:
  - model: h100
    processes:
      - {name: leaker, bind: leaker, memory: {shape: ramp, start: 4GiB, rate: 64MiB}}
      - {name: neighbour, bind: neighbour, memory: {shape: constant, value: 8GiB}}
"""


class NoApps:
    """No app has a client."""

    async def release(self, pid: int, *, collect: bool = False) -> dict[str, Any]:
        raise KeyError(pid)

    async def reset(self, pid: int) -> dict[str, Any]:
        raise KeyError(pid)

    async def notice(self, pid: int, reason: str, seconds: float) -> dict[str, Any]:
        raise KeyError(pid)


def judged(alert: Alert, at: float) -> Judged:
    """True on data of that time, and for as long as the machine is up."""
    return Judged(alert, "x > 1", holds=True, measured_seconds=at, since_seconds=math.inf)


@dataclass
class Stage:
    """The agent's remedies over a simulated node, ticked until something has come true."""

    rig: Rig
    acting: Acting
    snapshot: Snapshot | None = None
    alerts: list[Alert] = field(default_factory=list)

    async def tick(self) -> Snapshot:
        self.snapshot = await self.rig.tick()
        await self.acting.see(self.snapshot)
        await self.acting.judge([judged(each, self.snapshot.clock_seconds) for each in self.alerts])
        return self.snapshot

    async def until(self, true: Callable[[], bool], ticks: int = 400) -> None:
        for _ in range(ticks):
            if true():
                return
            await self.tick()
            await asyncio.sleep(0.002)  # for the threads that write and read
        pytest.fail("it never came true")

    def fires(self, pid: int) -> None:
        """An alert about a process, as a leak with strict evidence."""
        gpu = {"gpu": "0", "uuid": self.uuid}
        labels = {"alertname": "GpuProcessMemoryLeak", "evidence": "strict", "pid": str(pid), **gpu}
        self.alerts = [Alert(labels, {}, Status.FIRING, 4e9, value=1.0)]

    @property
    def uuid(self) -> str:
        assert self.snapshot is not None
        return self.snapshot.gpus[0].identity.uuid

    def ended(self) -> list[str]:
        """What remedies came to."""
        return [note.result for note in self.acting.notes.recent()]

    def held(self, pid: int) -> int:
        """Memory that a process has on the GPU."""
        assert self.snapshot is not None
        return sum(each.used_bytes or 0 for each in self.snapshot.processes if each.pid == pid)


def config(user: str, **remedies: object) -> Config:
    """With one ladder for every leak, for real."""
    ladder = {
        "match": ['alertname="GpuProcessMemoryLeak"'],
        "steps": [{"terminate": {"wait": 5}}, {"kill": {"wait": 5}}],
    }
    keys: dict[str, object] = {
        "dry_run": False, "allow": {"users": [user]}, "ladders": [ladder], "proof": 20, **remedies,
    }  # fmt: skip
    return read({"remedies": keys})


def read(keys: dict[str, object]) -> Config:
    """As from a file: JSON is YAML."""
    with tempfile.TemporaryDirectory() as folder:
        return load(write(Path(folder), json.dumps(keys)))


@asynccontextmanager
async def stage(settings: Config, store: Store, pids: dict[str, int]) -> AsyncIterator[Stage]:
    """A node whose processes are these, and remedies over it."""
    real = RealProc()
    boot = boot_id()

    def hands(notes: Notes) -> Hands:
        return AgentHands(real, reader(), apps=NoApps(), warn=notes.announce)

    table = ProcessTable(
        real,
        _Clock(),
        watch=PidfdWatcher(),
        boot_id=boot,
        boot_time_seconds=boot_time_seconds(),
        host_pid_namespace=True,
    )
    async with rig(NODE, processes=table) as made:
        made.clock._wall = time.time()  # real processes have started in real time
        for key, pid in pids.items():
            made.node.bind(key, pid)
        acting = Acting(settings, Around(store, made.clock, boot, hands, durable=True))
        await acting.open()
        one = Stage(made, acting)
        await one.tick()
        yield one
        await acting.close()


class _Clock:
    speed = 1.0

    def now(self) -> float:
        return 0.0

    def wall(self) -> float:
        return 0.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """On the disk, as the agent has it."""
    return Store(tmp_path / "state.db")


def test_the_leaker_ends_and_the_neighbour_lives(store: Store) -> None:
    """KILL-06: SIGTERM is ignored, SIGKILL is not; the memory is back, the neighbour untouched, all of it on record."""

    async def story(leaker: int, neighbour: int, user: str) -> None:
        async with stage(config(user), store, {"leaker": leaker, "neighbour": neighbour}) as one:
            one.fires(leaker)
            await one.until(lambda: one.ended() == ["released"])
            assert one.held(leaker) == 0
            assert one.held(neighbour) == 8 * 2**30
            (run,) = (await one.acting.document())["remedies"]
            assert [step["step"] for step in run["steps"] if step["kind"] == "intent"] == ["SIGTERM", "SIGKILL"]
            assert run["end"]["released_bytes"] >= 4 * 2**30
            names = {family.name for family in REMEDY_FAMILIES if any(True for _ in family.of(one.acting.figures()))}
            assert "gpuagent_remedy_end_timestamp_seconds" in names

    with running(IGNORES_TERM) as leaker, running(PLAIN) as neighbour:
        asyncio.run(story(leaker.pid, neighbour.pid, as_target(leaker.pid).user))
        assert leaker.wait(10) == -9
        assert neighbour.poll() is None


def test_dry_run(store: Store) -> None:
    """A dry run ends with a note and a record, and with both processes alive."""

    async def story(leaker: int, user: str) -> None:
        async with stage(config(user, dry_run=True), store, {"leaker": leaker}) as one:
            one.fires(leaker)
            await one.until(lambda: one.ended() == ["dry_run"])

    with running(PLAIN) as leaker:
        asyncio.run(story(leaker.pid, as_target(leaker.pid).user))
        assert leaker.poll() is None


def test_blind_in_the_middle(store: Store) -> None:
    """KILL-02: the GPU cannot be read any more once the first step is taken: nothing further is done."""

    async def story(leaker: int, user: str) -> None:
        async with stage(config(user), store, {"leaker": leaker}) as one:
            one.acting.remedies._tools = dataclasses.replace(one.acting.remedies._tools, look_seconds=0.3)
            one.fires(leaker)
            await one.until(lambda: any(run.step is not None for run in one.acting.remedies.running))
            one.snapshot = None
            blind = await one.rig.tick()
            gpu = dataclasses.replace(blind.gpus[0], state=GpuState.BLIND, reason="hangs", processes_known=False)
            blind = dataclasses.replace(blind, gpus=(gpu,), processes=())
            while one.acting.remedies.running:
                one.rig.clock.advance(1.0)
                await one.acting.see(blind)
                await one.acting.judge([judged(one.alerts[0], one.rig.clock.now())])
                await asyncio.sleep(0.005)
            assert one.ended() == ["refused"]

    with running(IGNORES_TERM) as leaker:
        asyncio.run(story(leaker.pid, as_target(leaker.pid).user))
        assert leaker.poll() is None


def test_interrupted(store: Store) -> None:
    """The agent is gone between intent and result: the next start closes the record and repeats nothing."""

    async def first(leaker: int, user: str) -> None:
        async with stage(config(user), store, {"leaker": leaker}) as one:
            one.fires(leaker)
            await one.until(lambda: any(run.id for run in one.acting.remedies.running))

    async def second(leaker: int, user: str) -> None:
        async with stage(config(user), store, {"leaker": leaker}) as one:
            (run,) = (await one.acting.document())["remedies"]
            assert run["end"]["result"] == "interrupted"
            assert one.ended() == ["interrupted"]
            one.fires(leaker)
            await one.until(lambda: len(one.ended()) == 2)
            assert one.ended() == ["interrupted", "refused"]  # it counts, and the program cools down

    with running(IGNORES_TERM) as leaker:
        user = as_target(leaker.pid).user
        asyncio.run(first(leaker.pid, user))
        asyncio.run(second(leaker.pid, user))
        assert leaker.poll() is None


def test_by_hand(store: Store) -> None:
    """A person's kill goes through the same refusals; --force lifts the allow list, and the caller is on record."""

    async def story(leaker: int) -> None:
        async with stage(config("nobody-else"), store, {"leaker": leaker}) as one:
            with pytest.raises(NoSuchProcess):
                await one.acting.kill(1, [], uid=0, force=True, dry_run=False)
            steps = [step_of(step) for step in one.acting.config.remedies.ladders[0].steps]
            for force, result in ((False, "refused"), (True, "released")):
                kill = asyncio.create_task(one.acting.kill(leaker, steps, uid=0, force=force, dry_run=False))
                await one.until(kill.done)
                assert (await kill)["result"] == result
            runs = (await one.acting.document())["remedies"]
            assert {run["asked_by"] for run in runs} == {"root (uid 0)"}

    with running(PLAIN) as leaker:
        asyncio.run(story(leaker.pid))
        assert leaker.wait(10) == -15


def test_a_budget(store: Store) -> None:
    """An alert on a budget names a GPU and no process: the largest of those that count towards it is chosen."""

    async def story(leaker: int, neighbour: int, user: str) -> None:
        ladder = {"match": ['alertname="GpuBudgetExceeded"'], "victim": "largest", "steps": [{"kill": {"wait": 5}}]}
        settings = read({
            "budgets": [{"name": "b", "match": {"user": user}, "memory": "6GiB"}],
            "remedies": {"dry_run": False, "allow": {"users": [user]}, "ladders": [ladder], "proof": 20},
        })  # fmt: skip
        async with stage(settings, store, {"leaker": leaker, "neighbour": neighbour}) as one:
            (use,) = one.acting.figures().budgets
            assert (use.limit_bytes, use.used_bytes > 12 * 2**30) == (6 * 2**30, True)
            labels = {"alertname": "GpuBudgetExceeded", "budget": "b", "gpu": "0", "uuid": one.uuid}
            one.alerts = [Alert(labels, {}, Status.FIRING, 4e9, value=1.0)]
            await one.until(lambda: one.ended() == ["released"])
            one.alerts = []
            await one.tick()

    with running(PLAIN) as leaker, running(PLAIN) as neighbour:
        asyncio.run(story(leaker.pid, neighbour.pid, as_target(leaker.pid).user))
        assert neighbour.wait(10) == -9
        assert leaker.poll() is None
