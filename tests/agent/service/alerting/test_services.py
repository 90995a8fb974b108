"""Stories of services through detector, rules, incidents and messages: restarts, restarts of the agent, replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gpuagent.core.growth import Evidence, Growth, Verdict
from gpuagent.core.identity import ProcessId
from gpuagent.core.snapshot import ProcessReading, Snapshot
from gpuagent_alerts.leak.sensor import LeakDetection
from tests.agent.service.alerting.stage import TICK_SECONDS, Stage
from tests.fakes.readings import BOOT_ID, gpu, process, snapshot

pytestmark = pytest.mark.slow

HOUR, MINUTE = 3600.0, 60.0
TOTAL_GIB, BASE_GIB = 24.0, 8.0
PACE = 12.0
"""GiB an hour: all that is free is gone in 80 min."""
VERSION = "serve --model a"


@dataclass
class Life:
    """A process on a GPU of its own."""

    pid: int
    begins: float
    unit: str
    command: str = VERSION
    pace: float = PACE
    gpu_index: int = 0
    age: float = 0.0
    """Seconds that it had run for before the agent saw it first."""
    owner: dict[str, Any] = field(default_factory=lambda: {"proven_names": frozenset({"unit"})})

    def reading(self, now: float) -> ProcessReading:
        """As it is now: it begins to grow after 10 min, until the GPU is full."""
        grown = max(0.0, now - self.begins - 10 * MINUTE) / HOUR * self.pace
        # The driver gives memory in pages of 2 MiB.
        used = int(min(BASE_GIB + grown, TOTAL_GIB - 0.3) * 512) / 512
        started = ProcessId(BOOT_ID, self.pid, int((self.begins - self.age) * 100))
        place: dict[str, Any] = {"unit": self.unit, "process_group": self.pid, "start_time_seconds": 1e9}
        return process(
            self.pid, used_gib=used, gpu_index=self.gpu_index, id=started, command=self.command, name="serve",
            **place, **self.owner,
        )  # fmt: skip


class Node:
    """An agent with a real leak detector, over processes whose memory follows a line."""

    def __init__(self, folder: Path) -> None:
        self.stage = Stage(folder)
        self.stage.clock.advance(2 * HOUR)  # since the boot
        self.growth: dict[int, Growth] = {}
        self._open_leaks()

    def _open_leaks(self) -> None:
        store = self.stage.store
        self.leaks = LeakDetection("balanced", self.stage.clock, store=store, boot_id=BOOT_ID)
        self.leaks.open()

    @property
    def now(self) -> float:
        """On the agent's clock."""
        return self.stage.clock.now()

    def restart(self) -> None:
        """Restart the agent as an upgrade does."""
        asyncio.run(self.leaks.close())
        self.stage.kill()
        self._open_leaks()

    def live(self, *lives: Life, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass while these run; return whether `until` came true, which ends it."""
        end = self.now + seconds
        while self.now < end:
            self.stage.show(self._observe(lives), TICK_SECONDS)
            if until():
                return True
        return False

    def _observe(self, lives: tuple[Life, ...]) -> Snapshot:
        at = self.now + TICK_SECONDS
        readings = [life.reading(at) for life in lives]
        held = dict.fromkeys(range(1 + max((life.gpu_index for life in lives), default=0)), 0.0)
        for reading in readings:
            held[reading.gpu_index] += (reading.used_bytes or 0) / 2**30
        gpus = [replace(gpu(index, used_gib=used), time_seconds=at) for index, used in held.items()]
        seen = self.leaks.observe(snapshot(gpus, readings, clock_seconds=at))
        self.growth = {key.pid: growth for key, growth in seen.growth.items() if key.pid}
        return seen

    def says(self, pid: int, evidence: Evidence | None = None) -> Callable[[], bool]:
        """Return a question: whether a process is called a leak now, by this evidence."""

        def asked() -> bool:
            said = self.growth.get(pid)
            leaks = said is not None and said.verdict is Verdict.LEAKING
            return leaks and (evidence is None or (said is not None and said.grade is evidence))

        return asked

    def told_after(self, life: Life, evidence: Evidence | None = None) -> float:
        """Return the seconds from the begin of a life to its leak, in which it runs alone."""
        assert self.live(life, seconds=3 * HOUR, until=self.says(life.pid, evidence))
        return self.now - life.begins


def test_lives_of_a_service_over_a_restart_of_the_agent(tmp_path: Path) -> None:
    """The second life is told sooner, also by an agent that was restarted; a new version is told as if it were new."""
    node = Node(tmp_path / "state")
    first = Life(100, node.now, "vllm.service")
    plain = node.told_after(first)
    confirmed = node.told_after(first, Evidence.CONFIRMED)
    node.live(first, seconds=40 * MINUTE)
    node.live(seconds=11 * MINUTE)
    node.restart()
    second = Life(200, node.now, "vllm.service")
    again = node.told_after(second)
    reasons = node.growth[200].reasons
    sure = node.told_after(second, Evidence.CONFIRMED)
    node.live(second, seconds=5 * MINUTE)
    node.live(seconds=11 * MINUTE)
    update = Life(300, node.now, "vllm.service", command="serve --model a --fixed")
    anew = node.told_after(update)

    assert again < plain - 5 * MINUTE
    assert sure < confirmed - 5 * MINUTE
    assert abs(anew - plain) <= 2 * MINUTE
    assert reasons[-1] == "an earlier life of this service leaked until its end"


@pytest.mark.parametrize("command", [VERSION, "serve --model a --fixed"])
def test_a_fixed_version_is_not_judged_by_the_leaking_one(tmp_path: Path, command: str) -> None:
    """What has taken a quarter of what was free is a leak in the version that has leaked, and growth in the next."""
    node = Node(tmp_path / "state")
    first = Life(100, node.now, "vllm.service")
    node.told_after(first)
    node.live(first, seconds=40 * MINUTE)
    node.live(seconds=11 * MINUTE)
    fixed = Life(200, node.now, "vllm.service", command=command, pace=4.0)
    node.live(fixed, seconds=70 * MINUTE)

    assert node.growth[200].verdict is (Verdict.LEAKING if command == VERSION else Verdict.GROWING)


def test_replicas_are_one_incident_and_confirm_each_other(tmp_path: Path) -> None:
    """Two instances of a template are confirmed before one by itself, in one incident that outlives the agent."""
    alone, node = Node(tmp_path / "alone"), Node(tmp_path / "state")
    single = alone.told_after(Life(9, alone.now, "whisper@0.service", pace=4.0, age=HOUR), Evidence.CONFIRMED)
    pair = [
        Life(100 + place, node.now, f"whisper@{place}.service", f"serve --gpu {place}", 4.0, place, age=HOUR)
        for place in range(2)
    ]
    begun = node.now

    def both() -> bool:
        return node.says(100, Evidence.CONFIRMED)() and node.says(101, Evidence.CONFIRMED)()

    assert node.live(*pair, seconds=3 * HOUR, until=both)
    together = node.now - begun
    node.live(*pair, seconds=5 * MINUTE)
    node.restart()
    node.live(*pair, seconds=11 * MINUTE)

    assert together < single - 5 * MINUTE
    assert both()
    assert [one.news for one in node.stage.heard].count("began") == 1
    assert len(node.stage.keys()) == 1
    assert "GPUs 0, 1: 2 instances of whisper@.service (alice) leaking " in node.stage.headlines()[0]


def test_a_command_that_a_user_runs_twice_is_one_incident(tmp_path: Path) -> None:
    """Started from two shells with other ports they are replicas; what another user runs is none of it."""
    node = Node(tmp_path / "state")

    def of(pid: int, place: int, **owner: Any) -> Life:
        host: dict[str, Any] = {"on_host": True, **owner}
        return Life(pid, node.now, "", f"serve --port 800{place}", gpu_index=place, owner=host)

    lives = [of(100, 0), of(101, 1), of(102, 2, uid=7, user="bob")]

    def every() -> bool:
        return all(node.says(life.pid, Evidence.STRICT)() for life in lives)

    assert node.live(*lives, seconds=2 * HOUR, until=every)
    node.live(*lives, seconds=5 * MINUTE)

    assert [one.news for one in node.stage.heard].count("began") == len(node.stage.keys()) == 2
    assert [line.partition(" leaking ")[0] for line in node.stage.headlines()[:2]] == [
        "WARNING node7 GPUs 0, 1: serve (2 processes, alice)", "WARNING node7 GPU 2: serve (bob, pid 102)",
    ]  # fmt: skip
