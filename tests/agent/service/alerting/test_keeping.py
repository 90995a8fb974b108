"""When states are written down, and what a process that is killed in between may cost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuagent.core.clock import ManualClock
from gpuagent_alerts.promql.series import SeriesIndex
from gpuagent_alerts.states.engine import RuleEngine
from gpuagent_alerts.states.missing import Missing, find_missing
from gpuagent_alerts.states.persister import LATEST_SECONDS, StatePersister
from gpuagent_alerts.store.database import Store
from tests.agent.service.alerting.bench import BUSY, CALM, FULL, Bench, alerting, config, rules, run
from tests.alerts.states.rules import groups

METRIC = "gpuagent_gpu_memory_used_bytes"
GPUS = ("0", "1", "2")
Timers = dict[str, Mapping[str, Any]]


def timers(store: Store) -> Timers:
    """What is on disk, by GPU and rule."""
    rows = store.execute("SELECT fingerprint, dump FROM instances")
    return {fingerprint: json.loads(dump) for fingerprint, dump in rows}


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(st.integers(1, 12), st.sets(st.sampled_from(GPUS)), st.booleans(), st.integers(0, 9)), max_size=40
    )
)
def test_what_is_on_disk_is_late_but_never_early(steps: list[tuple[int, set[str], bool, int]]) -> None:
    """ALERT-08: killed at any moment: the same instances in the same states, their clocks behind by 30 s at most.

    A clock that is behind makes its alert fire later and lasts longer; none may be ahead.
    """
    clock, store = ManualClock(), Store(None)
    texts = (f"alert: Slow, expr: {METRIC} > 0, for: 10s, keep_firing_for: 50s", f"alert: Fast, expr: {METRIC} > 1")
    engine = RuleEngine(groups(*texts))
    keeper = StatePersister(store, engine, clock)
    for seconds, full, blind, dice in steps:
        clock.advance(seconds)
        if dice == 0:  # a reload with fewer rules and back
            engine.reload(groups(*texts[1:]), clock.wall())
            engine.reload(groups(*texts), clock.wall())
            keeper.forget()
        index = SeriesIndex([(METRIC, {"gpu": gpu}, 2.0 if gpu == "0" else 1.0) for gpu in full])
        engine.evaluate(index, clock.now(), clock.wall(), find_missing(None) if blind else Missing())
        keeper.save_if_due()

        kept = timers(store)
        real = {record.fingerprint: record.dump for record in engine.dump()}
        assert kept.keys() == real.keys()
        for fingerprint, now in real.items():
            then = kept[fingerprint]
            assert (then["state"], then["starts_at"]) == (now["state"], now["starts_at"])
            for timer in ("active_for", "kept_for", "ended_for"):
                assert (then[timer] is None) == (now[timer] is None)
                if now[timer] is not None:
                    assert 0.0 <= now[timer] - then[timer] <= LATEST_SECONDS + 20
    store.close()


def test_a_save_that_failed_is_made_up_for() -> None:
    """What is kept must not be taken for what should have been."""
    clock, store = ManualClock(), Store(None)
    engine = RuleEngine(groups("alert: A, expr: m > 0, for: 1h"))
    keeper = StatePersister(store, engine, clock)

    def step(*gpus: str) -> None:
        clock.advance(5)
        engine.evaluate(SeriesIndex([("m", {"gpu": gpu}, 1.0) for gpu in gpus]), clock.now(), clock.wall(), Missing())

    step("0")
    keeper.save_if_due()
    step()
    try:
        with store.transaction():
            keeper.save_if_due()
            raise ArithmeticError
    except ArithmeticError:
        pass
    step("0")  # the same instance as on disk, by its looks: but it began just now
    keeper.save_if_due()

    assert [dump["active_for"] for dump in timers(store).values()] == [0.0]
    store.close()


def writes(bench: Bench) -> Any:
    """The dump on disk."""
    return next(iter(timers(bench.alerting.store).values()))["active_for"]


def test_a_quiet_alert_is_written_every_half_a_minute(tmp_path: Path) -> None:
    """A firing alert does not cost a write at every evaluation."""

    async def test() -> None:
        async with alerting(config(tmp_path, None), rules(FULL), ManualClock(), tmp_path / "s") as bench:
            seen = []
            for _ in range(13):
                await bench.show(BUSY)
                seen.append(await asyncio.to_thread(writes, bench))
        assert seen == [0.0] * 6 + [30.0] * 6 + [60.0]

    run(test)


def test_a_stop_writes_everything(tmp_path: Path) -> None:
    """ALERT-08: an orderly stop costs no second of a hold: it fires when it would have."""

    async def test() -> None:
        clock, held = ManualClock(), f"{FULL}, for: 60s"
        settings = config(tmp_path, None)
        async with alerting(settings, rules(held), clock, tmp_path / "s") as first:
            await first.show(CALM)
            await first.show(BUSY, times=6)  # 25 s
        async with alerting(settings, rules(held), clock, tmp_path / "s") as second:
            await second.show(BUSY, times=7)  # the first goes on where the last one was; 55 s
            assert (await second.state())["state"] == "pending"
            await second.show(BUSY)
            assert (await second.state())["state"] == "firing"

    run(test)
