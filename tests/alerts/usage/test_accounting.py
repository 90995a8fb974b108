"""The ledger in the service: the daily table, restarts, settings and summaries."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent.core.hardware import Power, Utilization
from gpuagent.core.snapshot import GpuIdentity, GpuReading, GpuState, NodeReading, NvmlState, Snapshot
from gpuagent.core.usage import OTHER, Amounts, Holder, HolderKind
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.problem import StoreFailure
from gpuagent_alerts.store.usage import MOST_ROWS_A_DAY, UsageDays, UsageRow
from gpuagent_alerts.usage.accounting import UsageAccounting, UsageSettings, since_day
from gpuagent_alerts.usage.summary import GroupBy, Price, usage_document
from tests.alerts.usage.test_ledger import UUID, process, work

DAY = 86_400.0
MIDNIGHT = 1_764_288_000.0  # 2025-11-28


class Agent:
    """A ledger over a store, at a wall clock that stands still until it is told."""

    def __init__(self, store: Store, wall: float = MIDNIGHT + 3600, **settings: Any) -> None:
        self.clock = ManualClock(wall=wall)
        self.usage = UsageAccounting(UsageSettings(**settings), self.clock, store, 5.0, node="n1")
        self.usage.open()
        self.look(0.0)

    def look(self, seconds: float = 1.0, user: str = "ann") -> None:
        """Let a user hold the GPU for so long."""
        self.clock.advance(seconds)
        gpu = GpuReading(
            GpuIdentity(0, UUID), GpuState.OK, time_seconds=self.clock.now(), utilization=Utilization(0.5, 0.1),
            power=Power(), processes_known=True,
        )  # fmt: skip
        node = NodeReading(NvmlState.READY)
        self.usage.observe(
            Snapshot(self.clock.wall(), self.clock.now(), node, (gpu,), (process(1, user, 8, work(0.5)),))
        )

    def held(self) -> float:
        """Seconds that are exported."""
        return sum(one.amounts.held_seconds for one in self.usage.figures().holders)

    def document(self, by: GroupBy = GroupBy.USER, since: float = DAY) -> dict[str, Any]:
        """What `gpuagent usage` is told."""
        return asyncio.run(self.usage.document(by, since))


def test_an_orderly_end_loses_nothing(tmp_path: Path) -> None:
    """Counters go on where they were, and the table has every second."""
    store = Store(tmp_path / "state.db")
    first = Agent(store)
    first.look()
    asyncio.run(first.usage.close())
    store.close()

    second = Agent(Store(tmp_path / "state.db"))
    second.look()

    assert second.held() == 2.0
    assert second.document()["total"]["held_seconds"] == 2.0


def test_after_a_crash_counters_begin_at_zero(tmp_path: Path) -> None:
    """A counter never falls to anything but zero; the table has what was written."""
    store = Store(tmp_path / "state.db")
    first = Agent(store)
    first.look()
    asyncio.run(first.usage.close())
    crashed = Agent(store)
    crashed.look()
    asyncio.run(crashed.usage.save())
    crashed.look()

    after = Agent(store)

    assert after.held() == 0.0
    assert after.document()["total"]["held_seconds"] == 2.0


def test_counters_that_are_no_counters_cost_nothing(tmp_path: Path) -> None:
    """Whatever stands in the store in their place, the agent starts, and counts from zero."""
    store = Store(tmp_path / "state.db")
    store.set_meta("usage_counters", '{"schema": 7}')

    assert Agent(store).held() == 0.0


def test_days_are_told_apart_and_forgotten() -> None:
    """A day's use is that day's, and after `keep_days` it is gone."""
    agent = Agent(Store(None), wall=MIDNIGHT + DAY - 1.5, keep_days=2)
    agent.look()
    asyncio.run(agent.usage.save())
    agent.look(4.0)

    assert agent.document()["total"]["held_seconds"] == 4.0
    assert agent.document(since=2 * DAY)["total"]["held_seconds"] == 5.0
    agent.clock.advance(DAY)
    assert agent.document(since=30 * DAY)["total"]["held_seconds"] == 4.0


def test_a_store_that_fails_is_owed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be written is written later, under the day it was used."""
    store = Store(None)
    agent = Agent(store)
    agent.look()

    def fail(*_: object) -> None:
        raise StoreFailure("full")

    with monkeypatch.context() as patch:
        patch.setattr(UsageDays, "add", fail)
        asyncio.run(agent.usage.save())
    agent.clock.advance(DAY)

    assert agent.document()["total"]["held_seconds"] == 0.0
    assert agent.document(since=2 * DAY)["total"]["held_seconds"] == 1.0


def test_a_day_has_a_bounded_number_of_rows() -> None:
    """Beyond it holders are summed up, and the sum stays."""
    days = UsageDays(Store(None))
    changes = [(0, UUID, Holder(job=str(job)), Amounts(1.0)) for job in range(MOST_ROWS_A_DAY + 100)]

    days.add("2025-11-28", "2025-11-01", changes)
    days.add("2025-11-28", "2025-11-01", changes[-1:])

    rows = days.read("2025-11-28")
    assert len(rows) == MOST_ROWS_A_DAY + 1
    assert sum(row.amounts.held_seconds for row in rows) == MOST_ROWS_A_DAY + 101
    assert next(row for row in rows if row.holder == OTHER).amounts.held_seconds == 101.0


def test_energy_that_is_not_told_stays_unknown() -> None:
    """A row without energy gets it from the first amount that has some, and never a made-up zero."""
    days = UsageDays(Store(None))
    days.add("2025-11-28", "", [(0, UUID, Holder("processes", "ann"), Amounts(1.0))])  # type: ignore[arg-type]
    assert days.read("")[0].amounts.energy_joules is None

    days.add("2025-11-28", "", [(0, UUID, Holder(HolderKind.PROCESSES, "ann"), Amounts(1.0, energy_joules=5.0))])
    days.add("2025-11-28", "", [(0, UUID, Holder(HolderKind.PROCESSES, "ann"), Amounts(1.0))])

    assert days.read("")[0].amounts == Amounts(3.0, energy_joules=5.0)


def test_any_name_can_be_kept() -> None:
    """A cgroup may hold bytes that are no UTF-8, and names as long as a path: the table takes them all the same."""
    agent = Agent(Store(None))
    agent.look(user="caf\udcff\x00" + "é" * 500)
    agent.look(user="bob")

    names = [row["name"] for row in agent.document()["usage"]]
    assert len(names) == 2
    assert names[0].startswith(("caf?", "bob"))
    assert max(len(name.encode()) for name in names) <= 256


def test_a_price_makes_money() -> None:
    """The cost of the time held, at the price of the configuration, which a reload may change."""
    agent = Agent(Store(None))
    agent.look(4.0)
    assert agent.document()["total"]["cost"] is None

    agent.usage.reconfigure(UsageSettings(price=Price(900.0, "EUR"), idle_limit_seconds=60.0))

    assert agent.document()["usage"][0]["cost"] == pytest.approx(1.0)
    assert (agent.usage.figures().price_per_gpu_hour, agent.usage.figures().idle_limit_seconds) == (900.0, 60.0)


ROWS = (
    UsageRow("2025-11-27", 0, "a", Holder(HolderKind.PROCESSES, "ann", namespace="ml", pod="p", job="7"), Amounts(10)),
    UsageRow("2025-11-28", 1, "b", Holder(HolderKind.PROCESSES, "bob", "w.service", "c"), Amounts(20)),
    UsageRow("2025-11-28", 1, "b", Holder(HolderKind.PROCESSES, "ann", "w.service"), Amounts(5)),
    UsageRow("2025-11-28", 1, "b", Holder(HolderKind.NONE), Amounts(100)),
    UsageRow("2025-11-28", 1, "b", Holder(HolderKind.UNKNOWN), Amounts(1)),
)


@pytest.mark.parametrize(
    ("by", "lines"),
    [
        (GroupBy.USER, [("bob", 20), ("ann", 15)]),
        (GroupBy.UNIT, [("w.service", 25), ("", 10)]),
        (GroupBy.CONTAINER, [("c", 20), ("", 15)]),
        (GroupBy.NAMESPACE, [("ml", 10), ("", 25)]),
        (GroupBy.POD, [("ml/p", 10), ("", 25)]),
        (GroupBy.JOB, [("7", 10), ("", 25)]),
        (GroupBy.GPU, [("1", 126), ("0", 10)]),
    ],
)
def test_usage_is_summed_up_by(by: GroupBy, lines: list[tuple[str, float]]) -> None:
    """Who held most comes first, those without such a name after them, and what is no holder last."""
    document = usage_document(ROWS, by, "2025-11-27", 0.0)

    found = [(row["name"], row["held_seconds"]) for row in document["usage"] if row["kind"] == "processes"]
    assert found == lines
    rest = [row["kind"] for row in document["usage"] if row["kind"] != "processes"]
    assert rest == ([] if by is GroupBy.GPU else ["unknown", "none"])
    assert document["total"]["held_seconds"] == 136


@pytest.mark.parametrize(
    ("since", "day"),
    [(0.0, "2025-11-28"), (3600.0, "2025-11-28"), (7200.0, "2025-11-27"), (DAY, "2025-11-28"), (7 * DAY, "2025-11-22")],
)
def test_a_period_begins_with_a_whole_day(since: float, day: str) -> None:
    """Whole days count today; what is shorter begins with the day on which it began."""
    assert since_day(MIDNIGHT + 3600, since) == day
