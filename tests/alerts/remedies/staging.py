"""Remedies over a simulated node with real processes, ticked by hand."""

from __future__ import annotations

import asyncio
import json
import math
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gpuagent.config.load import DEFAULT_PATH
from gpuagent.config.models import Config
from gpuagent.config.remedy_settings import settings_of
from gpuagent.core.clock import ManualClock
from gpuagent.core.identity import SHOWN_FIELDS
from gpuagent.core.memory_limits import CGROUP_ROOT, MemoryLimits, NoMemoryLimits
from gpuagent.core.snapshot import Snapshot
from gpuagent.procfs.files import RealProc
from gpuagent.procfs.hanging import IDLE_READERS, THREAD
from gpuagent.procfs.machine import boot_id, boot_time_seconds
from gpuagent.procfs.table import PidfdWatcher, ProcessTable
from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.remedies.alert_evaluation import AlertEvaluation
from gpuagent_alerts.remedies.execution.executor import Apps, NodeActionExecutor
from gpuagent_alerts.remedies.facts.command_digests import CommandDigests
from gpuagent_alerts.remedies.facts.fresh_lookup import TableLookup, look_up
from gpuagent_alerts.remedies.history import RemedyHistory
from gpuagent_alerts.remedies.manual_requests import gpus_of, identity_card
from gpuagent_alerts.remedies.observation import ActionExecutor
from gpuagent_alerts.remedies.safeguards.rule_analysis import RuleAnalysis, Subject
from gpuagent_alerts.remedies.service import RemedyDependencies, RemedyService
from gpuagent_alerts.remedies.target import Target
from gpuagent_alerts.store.database import Store
from gpuagent_exporters.status.document import processes_document
from tests.agent.config.loading import load, write
from tests.alerts.remedies.processes import reader
from tests.fakes.rig import Rig, rig

NODE = """
description: a leaker and a neighbor, both real
gpus:
  - model: h100
    processes:
      - {name: leaker, bind: leaker, memory: {shape: ramp, start: 4GiB, rate: 64MiB}}
      - {name: neighbor, bind: neighbor, memory: {shape: constant, value: 8GiB}}
"""


_LOOK_TURNS = 500
"""So long a look may hang before time goes on."""
DIGESTS = CommandDigests()
"""By one key, as those of an agent are."""


class NoApps:
    """No app has a client."""

    async def release(self, pid: int, *, collect: bool = False) -> dict[str, Any]:
        raise KeyError(pid)

    async def reset(self, pid: int) -> dict[str, Any]:
        raise KeyError(pid)

    async def notice(self, pid: int, reason: str, seconds: float) -> dict[str, Any]:
        raise KeyError(pid)


async def no_warning(target: Target, reason: str, seconds: float) -> None:
    """Tell nobody."""


def evaluation(alert: Alert, at: float) -> AlertEvaluation:
    """True on data of that time, and for as long as the machine is up."""
    return AlertEvaluation(
        alert, "x > 1", holds=True, measured_seconds=at, since_seconds=math.inf,
        analysis=RuleAnalysis(subject=Subject.PROCESS if alert.labels.get("pid") else Subject.GPU),
        result_labels=alert.labels,
    )  # fmt: skip


async def let_threads_work() -> None:
    """Let threads write and read between two ticks: a second passes in a tick, and no look at /proc takes that long."""
    await asyncio.sleep(0.002)
    for _ in range(_LOOK_TURNS):
        idle = {each.ident for each in tuple(IDLE_READERS) if not each.is_telling}
        if not any(each.name == THREAD and each.ident not in idle for each in threading.enumerate()):
            return
        await asyncio.sleep(0.001)


@dataclass
class Stage:
    """The agent's remedies over a simulated node, ticked until something has come true."""

    rig: Rig
    service: RemedyService
    snapshot: Snapshot | None = None
    alerts: list[Alert] = field(default_factory=list)
    about_idleness: bool = False
    """Whether the rules of the alerts are."""
    change: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot
    """What becomes of each snapshot before the service gets it."""

    async def tick(self) -> Snapshot:
        self.snapshot = self.change(await self.rig.tick())
        await self.service.update_snapshot(self.snapshot)
        told = [evaluation(each, self.snapshot.clock_seconds) for each in self.alerts]
        idle = [each._replace(analysis=replace(each.analysis, about_idleness=self.about_idleness)) for each in told]
        await self.service.update_alerts(idle)
        return self.snapshot

    async def until(self, true: Callable[[], bool], ticks: int = 400) -> None:
        for _ in range(ticks):
            if true():
                return
            await self.tick()
            await let_threads_work()
        pytest.fail("it never came true")

    def fires(self, *pids: int) -> None:
        """An alert about each of these processes, on every GPU that it is on, as a leak with strict evidence."""
        assert self.snapshot is not None
        self.alerts = [
            Alert(
                {
                    "alertname": "GpuProcessMemoryLeak", "evidence": "strict", "pid": str(process.pid),
                    "gpu": str(process.gpu_index), "uuid": process.gpu_uuid,
                },
                {}, Status.FIRING, 4e9, value=1.0,
            )
            for process in self.snapshot.processes
            if process.pid in pids
        ]  # fmt: skip

    @property
    def uuid(self) -> str:
        """Of the first GPU."""
        assert self.snapshot is not None
        return self.snapshot.gpus[0].identity.uuid

    def ended(self) -> list[str]:
        """What remedies came to."""
        return [note.result for note in self.service.history.recent()]

    def shown(self, pid: int) -> dict[str, Any]:
        """What a request about a process has to carry, as a person was shown it just now."""
        document: dict[str, Any] = processes_document(self.snapshot, now_seconds=0.0, identified=True)
        rows: list[dict[str, Any]] = document["processes"]
        found = next((row for row in rows if row["pid"] == pid), None)
        now = look_up(RealProc(), reader(), [pid], DIGESTS)[pid]
        if found is None or now is None or self.snapshot is None:
            return {"start_ticks": 1, "boot_id": "b", "pid_namespace": 1, "card": "none"}
        shown = found | {"card": identity_card(now, gpus_of(self.snapshot, pid), DIGESTS)}
        return {name: shown[name] for name in SHOWN_FIELDS} | {
            "ends_with_it": [list(each.key) for each in now.ends_with_it or ()]
        }

    def held(self, pid: int) -> int:
        """Memory that a process has on the GPU."""
        assert self.snapshot is not None
        return sum(each.used_bytes or 0 for each in self.snapshot.processes if each.pid == pid)


def config(user: str, **remedies: object) -> Config:
    """With one ladder for every leak, for real. Seconds are ticks here: a busy machine needs some to end a process."""
    ladder = {
        "match": ['alertname="GpuProcessMemoryLeak"'],
        "steps": [{"terminate": {"wait": 60}}, {"kill": {"wait": 60}}],
    }
    keys: dict[str, object] = {
        "dry_run": False, "allow": {"users": [user]}, "evidence": ["strict"], "ladders": [ladder], "proof": 20,
        **remedies,
    }  # fmt: skip
    return read({"remedies": keys})


def read(keys: dict[str, object]) -> Config:
    """As from a file: JSON is YAML."""
    with tempfile.TemporaryDirectory() as folder:
        return load(write(Path(folder), json.dumps(keys)))


@asynccontextmanager
async def stage(
    settings: Config,
    store: Store,
    pids: dict[str, int],
    node: str = NODE,
    *,
    apps: Apps | None = None,
    limits: Callable[[Rig], MemoryLimits] = lambda _: NoMemoryLimits(),
    cgroup_root: str = CGROUP_ROOT,
) -> AsyncIterator[Stage]:
    """A node whose processes are these, and remedies over it; `limits` makes what sets memory limits there."""
    real = RealProc()
    boot = boot_id()

    def executor(history: RemedyHistory) -> ActionExecutor:
        return NodeActionExecutor(
            real, reader(), apps=apps or NoApps(), warn=history.announce, digests=DIGESTS, limits=sets,
            cgroup_root=cgroup_root,
        )  # fmt: skip

    table = ProcessTable(
        real,
        _Clock(),
        watch=PidfdWatcher(),
        boot_id=boot,
        boot_time_seconds=boot_time_seconds(),
        host_pid_namespace=True,
    )
    # Real processes have started in real time.
    clock = ManualClock(time.clock_gettime(time.CLOCK_BOOTTIME), time.time())
    async with rig(node, processes=table, clock=clock) as made:
        for key, pid in pids.items():
            made.node.bind(key, pid)
        lookup, sets = TableLookup(real, table, DIGESTS), limits(made)
        dependencies = RemedyDependencies(
            store, made.clock, boot, executor, str(DEFAULT_PATH), lookup=lookup, digests=DIGESTS, limits=sets
        )
        service = RemedyService(settings_of(settings, speed=made.clock.speed), dependencies)
        await service.open()
        one = Stage(made, service)
        await one.tick()
        yield one
        await service.close()


class _Clock:
    speed = 1.0

    def now(self) -> float:
        return 0.0

    def wall(self) -> float:
        return 0.0
