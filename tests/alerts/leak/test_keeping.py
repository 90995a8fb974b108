"""What is remembered over a restart of the agent, and what must not be."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent.core.growth import Evidence, Growth, MemoryKey, Range, Verdict
from gpuagent.core.identity import NO_INSTANCE, ProcessId
from gpuagent.core.snapshot import Snapshot
from gpuagent_alerts.leak.histories import UNCLAIMED_SECONDS, Beginning, Histories
from gpuagent_alerts.leak.sensor import LeakDetection
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.leaks import LeakHistories, LeakHistory, LeakKey
from gpuagent_alerts.store.problem import StoreFailure
from gpuagent_alerts.store.tables import Value
from tests.fakes.detectors import FakeDetectors
from tests.fakes.readings import BOOT_ID, gpu, process, snapshot

LEAKS = Growth(Verdict.LEAKING, Evidence.STRICT, Range(1.0, 1.0, 1.0), 10.0)


def history(pid: int = 7, boot_id: str = BOOT_ID, dump: bytes = b"9 readings", clock: float = 900.0) -> LeakHistory:
    """One that is kept."""
    return LeakHistory(LeakKey(ProcessId(boot_id, pid, 1000), "GPU-00000000", NO_INSTANCE), clock, ("strict",), dump)


class Agent:
    """The leak detector's part of an agent, over fake detectors."""

    def __init__(self, store: Store, now: float = 1000.0, boot_id: str = BOOT_ID) -> None:
        self.clock = ManualClock(now)
        self.detectors = FakeDetectors()
        self.leaks = LeakDetection(
            "balanced", self.clock, store=store, boot_id=boot_id, detector_type=self.detectors.type
        )
        self.leaks.open()

    def tick(self, *pids: int) -> Snapshot:
        """The next second."""
        self.clock.advance(1)
        now = self.clock.now()
        seen = snapshot([replace(gpu(), time_seconds=now)], [process(pid) for pid in pids], clock_seconds=now)
        return self.leaks.observe(seen)

    @property
    def resumed(self) -> list[bytes]:
        """What its detectors go on with."""
        return [made.resumed for made in self.detectors.made]


def test_histories_are_kept_exactly(tmp_path: Path) -> None:
    """LEAK-03: whatever bytes a dump has; a later one replaces it; what is gone is gone."""
    store = Store(tmp_path / "state.db")
    kept = LeakHistories(store)
    first, second = history(7, dump=bytes(range(256)) * 32), history(8)
    kept.save([first, second], [])
    later = first._replace(clock_seconds=950.0, evidence=("balanced", "strict"), dump=b"")
    kept.save([later], [second.key])
    store.close()

    again = LeakHistories(Store(tmp_path / "state.db"))
    assert again.load(BOOT_ID) == [later]
    assert again.load("another boot") == []
    assert again.load(BOOT_ID) == []


def test_a_restart_goes_on() -> None:
    """LEAK-03: of the processes that are still there, with the criteria that were told; nobody's memory too."""
    store = Store(None)
    before = Agent(store)
    before.tick(7, 8)
    before.detectors.made[1].said = LEAKS
    before.tick(7, 8)
    asyncio.run(before.leaks.close())

    after = Agent(store, 1100.0)
    after.detectors.first_word = replace(LEAKS, evidence=Evidence.SENSITIVE)
    seen = after.tick(7, 9)
    assert after.resumed == [b"2 readings", b"2 readings", b""]
    told = seen.growth[MemoryKey("GPU-00000000", 7)].evidence_told
    assert told == (Evidence.STRICT, Evidence.SENSITIVE)


def test_another_boot_begins_anew() -> None:
    """LEAK-03: pids and clocks of another boot mean nothing."""
    store = Store(None)
    before = Agent(store)
    before.tick(7)
    asyncio.run(before.leaks.close())
    after = Agent(store, boot_id="another boot")
    after.tick(7)
    assert after.resumed == [b"", b""]


@pytest.mark.parametrize(
    "kept", [history(dump=b"garbage"), history(clock=99_999.0), history()._replace(evidence=("hearsay",))]
)
def test_what_cannot_be_so_begins_anew(kept: LeakHistory) -> None:
    """LEAK-03: a damaged dump, a dump from the future, a criterion of another version: that history begins anew."""
    store = Store(None)
    LeakHistories(store).save([kept], [])
    agent = Agent(store)
    agent.tick(7)
    assert agent.resumed[1] == b"" or kept.evidence == ("hearsay",)
    assert agent.tick(7).growth[MemoryKey("GPU-00000000", 7)].evidence_told == ()


def test_the_ended_are_not_kept_for_ever() -> None:
    """LEAK-03: a process that has gone is forgotten on disk too, and what no process claims in an hour."""
    store = Store(None)
    LeakHistories(store).save([history(5)], [])
    agent = Agent(store)
    agent.tick(7, 8)
    asyncio.run(agent.leaks.keep())
    assert {one.key.id.pid for one in LeakHistories(store).load(BOOT_ID)} == {0, 5, 7, 8}
    agent.clock.advance(UNCLAIMED_SECONDS)
    agent.tick(7)
    asyncio.run(agent.leaks.keep())
    assert {one.key.id.pid for one in LeakHistories(store).load(BOOT_ID)} == {0, 7}


def test_each_is_written_in_its_turn() -> None:
    """LEAK-03: those that were written down longest ago come first, so that none waits for ever."""
    histories = Histories("balanced", detector_type=FakeDetectors().type)
    for pid in range(1, 6):
        histories.begin(ProcessId(BOOT_ID, pid, 1), MemoryKey("GPU-0", pid), Beginning(2**34, 0.0, 0))
    turns = [{one.key.id.pid for one in histories.to_keep(float(turn), 2)} for turn in range(1, 6)]
    assert set.union(*turns[:3]) == {1, 2, 3, 4, 5}
    assert all(len(turn) == 2 for turn in turns)


class FailingStore(Store):
    """One whose writes fail."""

    failing = False

    def execute_many(self, sql: str, rows: Iterable[Sequence[Value]]) -> None:
        if self.failing:
            raise StoreFailure("disk full")
        super().execute_many(sql, rows)


def test_a_disk_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    """LEAK-03: costs one line in the log, and nothing that is said of leaks; later it is written after all."""
    store = FailingStore(None)
    agent = Agent(store)
    agent.tick(7)
    store.failing = True
    for _ in range(3):
        asyncio.run(agent.leaks.keep())
    assert [record.message for record in caplog.records] == [
        "what the leak detector remembers cannot be kept: disk full"
    ]
    assert agent.tick(7).growth
    store.failing = False
    asyncio.run(agent.leaks.keep())
    assert len(LeakHistories(store).load(BOOT_ID)) == 2


def test_another_sensitivity() -> None:
    """LEAK-02: takes effect at a reload, and no history is lost."""
    agent = Agent(Store(None))
    agent.tick(7)
    agent.leaks.use("strict")
    agent.tick(7, 8)
    assert [(made.sensitivity, len(made.readings)) for made in agent.detectors.made] == [
        ("strict", 2),
        ("strict", 2),
        ("strict", 1),
    ]


def test_a_defect_costs_the_growth_alone(caplog: pytest.LogCaptureFixture) -> None:
    """LEAK-03: the snapshot goes on without, and the log says so once."""
    agent = Agent(Store(None))

    def break_down(*_: Any, **__: Any) -> Growth:
        raise ZeroDivisionError

    agent.tick(7)
    working = agent.detectors.made[1].update
    agent.detectors.made[1].update = break_down  # type: ignore[method-assign]
    assert agent.tick(7).growth == {}
    assert agent.tick(7).growth == {}
    assert len(caplog.records) == 1
    agent.detectors.made[1].update = working  # type: ignore[method-assign]
    assert agent.tick(7).growth != {}
