"""What the record says when the disk was full: nothing that was not done, and everything that was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent_alerts.remedies.audit import Audit, NotRecorded
from gpuagent_alerts.remedies.audit_rows import BEGIN, END, INTENT, RESET
from gpuagent_alerts.remedies.outcome import RunOutcome, RunResult
from gpuagent_alerts.remedies.plan import Plan
from gpuagent_alerts.remedies.run import LadderRun
from gpuagent_alerts.remedies.run_context import RunContext
from gpuagent_alerts.store.database import Store
from gpuagent_alerts.store.problem import StoreFailure
from tests.alerts.remedies.world import BOOT, KILL, RULES, TERMINATE, Gate, World, plan, run_ladder
from tests.alerts.store.test_database import fill, write_much


def full(store: Store) -> None:
    """Fill the disk, and let the store find out."""
    fill(store, room_pages=0)
    with pytest.raises(StoreFailure):
        write_much(store)


def fill_only(store: Store) -> None:
    """Fill the disk; the next row that needs a page finds out."""
    store.execute("INSERT INTO remedy_audit (run, kind, boot_id, clock, wall, data) VALUES ('', ?, ?, 0, 0, ?)",
                  (RESET, BOOT, "{}"))  # fmt: skip
    fill(store, room_pages=0)


def run_with(world: World, audit: Audit, what: Plan) -> RunOutcome:
    """Run it to its end with this record."""

    async def run() -> RunOutcome:
        return await LadderRun(what, RULES, RunContext(world, world, audit, Gate(), world.clock.now)).run()

    return asyncio.run(run())


@pytest.mark.parametrize("kind", [BEGIN, INTENT, RESET])
@pytest.mark.parametrize("break_it", [full, fill_only])
def test_what_was_refused_for_want_of_a_record_is_in_no_copy_of_it(
    tmp_path: Path, kind: str, break_it: Callable[[Store], None]
) -> None:
    """A row before an act that cannot be on the disk is nowhere, also after the disk has room again."""
    with closing(Store(tmp_path / "state.db")) as store:
        audit = Audit(store, ManualClock(), BOOT)
        break_it(store)
        before = len(audit.events())
        for _ in range(3):
            with pytest.raises(NotRecorded):
                audit.write("r1", kind, {"step": "kill", "disrupts": True, "note": "x" * 100_000})
        assert len(audit.events()) == before
        assert store.heal()
        assert len(audit.events()) == before


def test_a_refusal_on_a_full_disk_leaves_no_open_run(tmp_path: Path) -> None:
    """Nothing is done, and the next start finds no run that was interrupted."""
    world = World()
    with closing(Store(tmp_path / "state.db")) as store:
        full(store)
        for _ in range(2):
            outcome = run_ladder(world, plan(KILL), store)
            assert outcome.result is RunResult.REFUSED
            assert "not recorded, so not done" in outcome.detail
        assert world.log == []
        assert store.heal()
        audit = Audit(store, world.clock, BOOT)
        assert audit.events() == []
        assert audit.close_open() == []


def test_a_lock_that_passes_records_no_second_beginning(store: Store) -> None:
    """A refusal because the record took nothing begins no run, even where the record would take it a moment later."""

    class Once(Audit):
        failed = False

        def begin(self, data: Mapping[str, Any]) -> str:
            if not self.failed:
                self.failed = True
                raise NotRecorded("database is locked")
            raise AssertionError("a second run was begun")

    world = World()
    assert run_with(world, Once(store, world.clock, BOOT), plan(KILL)).result is RunResult.REFUSED


def test_a_step_that_was_taken_is_told_as_taken(tmp_path: Path) -> None:
    """The disk is full when the signal has been sent: the outcome says what came of it, and that the record is owed."""
    world = World()
    with closing(Store(tmp_path / "state.db")) as store:

        class Filling(Audit):
            def write(self, run: str, kind: str, data: Mapping[str, Any]) -> None:
                if kind == "result" and store.problem is None:
                    full(store)
                super().write(run, kind, data)

        outcome = run_with(world, Filling(store, world.clock, BOOT), plan(TERMINATE, KILL))
        assert world.log == [("SIGTERM", 100)]
        assert outcome.result is RunResult.RELEASED
        assert outcome.acted
        assert "owed: SIGTERM: " in outcome.detail
        assert store.heal()
        kinds = [event.kind for event in Audit(store, world.clock, BOOT).events()]
        assert kinds == [BEGIN, INTENT, "result", END]
