"""Who outlived a step: nobody else on the GPU is chosen before it has ended, by the record alone."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.core.growth import MemoryKey
from gpuagent_alerts.remedies.audit import Audit
from gpuagent_alerts.remedies.audit_rows import INTENT, RESULT
from gpuagent_alerts.remedies.manager import RemedyManager
from gpuagent_alerts.remedies.outcome import RunResult
from gpuagent_alerts.remedies.plan import begin_row, may_end_row, skipped_row
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.test_person_and_rules import asked, fire, manager
from tests.alerts.remedies.world import BOOT, KILL, RELEASE, RESTART, RULES, TERMINATE, World, plan, run_ladder, target

STUBBORN, INNOCENT = target(100), target(101, key=MemoryKey("GPU-0", 101))
TELL = RemedyStep(StepKind.EXEC, 5.0, command=("/usr/bin/logger", "full"))
END = RemedyStep(StepKind.EXEC, 5.0, command=("/usr/local/bin/end", "{pid}"))
CONTINUE = RemedyStep(StepKind.SIGNAL, 5.0, signal_number=18)
USR1 = RemedyStep(StepKind.SIGNAL, 5.0, signal_number=10)


def world() -> World:
    """Two processes on one GPU; the first ignores SIGTERM."""
    made = World(STUBBORN, INNOCENT)
    made.bodies[100].stubborn = True
    return made


async def after_restart(made: World, store: Store, ends: list[str]) -> RemedyManager:
    """The next agent, with the same record."""
    remedies = manager(made, store, ends)
    await remedies.recall()
    return remedies


def outstanding(made: World, store: Store) -> list[tuple[int, str]]:
    """Pid and step of those that are waited for by the record."""
    return [(one.identity.pid, one.step) for one in Audit(store, made.clock, BOOT).outstanding()]


@pytest.mark.parametrize("restarts", [False, True])
def test_nobody_else_is_chosen_before_it_has_ended(store: Store, *, restarts: bool) -> None:
    """KILL-01: SIGTERM was ignored: its neighbor is left alone, over a restart too; when it has ended, it may be."""
    here = world()

    async def story() -> None:
        ends: list[str] = []
        made = manager(here, store, ends, steps=[TERMINATE])
        fire(made, here, 100)
        await made.idle()
        assert ends == ["100 no_effect"]
        if restarts:
            made = await after_restart(here, store, ends)
        fire(made, here, 101)
        assert made.running == ()
        (withheld,) = made.withheld.documents(0.0)
        assert "pid 100 (python) on GPU 0 has not ended since SIGTERM was begun for it at 20" in str(withheld["reason"])
        here.end(100)
        made.forget_ended()
        assert made.outstanding == ()
        fire(made, here, 101)
        await made.idle()
        assert ends[-1] == "101 released"

    asyncio.run(story())


def test_it_may_be_asked_again_and_sigkill_comes_once(store: Store) -> None:
    """KILL-06: the guilty one is not safe behind its own SIGTERM; what SIGKILL did not end is left alone."""
    here = world()
    assert run_ladder(here, plan(TERMINATE, of=STUBBORN), store).result is RunResult.NO_EFFECT
    here.bodies[100].immortal = True
    assert run_ladder(here, plan(KILL, of=STUBBORN), store).result is RunResult.UNKILLABLE
    outcome = run_ladder(here, plan(KILL, of=STUBBORN), store)
    assert outcome.result is RunResult.REFUSED
    assert "has not ended since SIGKILL" in outcome.detail
    assert [name for name, _ in here.log] == ["SIGTERM", "SIGKILL"]


def test_the_record_forbids_it_where_the_manager_knows_nothing(store: Store) -> None:
    """KILL-01: a run asks the record right before each step, whatever was read at the start."""
    here = world()
    run_ladder(here, plan(TERMINATE, of=STUBBORN), store)
    outcome = run_ladder(here, plan(KILL, of=INNOCENT), store)
    assert (outcome.result, "pid 100" in outcome.detail) == (RunResult.REFUSED, True)
    assert here.log == [("SIGTERM", 100)]


def test_the_agent_ends_between_intent_and_result(store: Store) -> None:
    """KILL-06: nobody knows whether the signal was sent: the neighbor waits, the process itself may be tried again."""
    here = world()
    audit = Audit(store, here.clock, BOOT)
    run = audit.begin({
        "pid": 100, "start_ticks": 1000, "boot_id": BOOT, "gpu": 0, "gpu_uuid": "GPU-0", "name": "python",
        "dry_run": False, "ladder": ["SIGKILL"],
    })  # fmt: skip
    audit.write(run, INTENT, {"step": "SIGKILL", "disrupts": True})  # as an older version wrote it
    assert Audit(store, here.clock, BOOT).close_open() == [run]
    assert run_ladder(here, plan(KILL, of=INNOCENT), store).result is RunResult.REFUSED
    assert run_ladder(here, plan(KILL, of=STUBBORN), store).result is RunResult.RELEASED
    assert run_ladder(here, plan(KILL, of=INNOCENT), store).result is RunResult.RELEASED


def test_another_boot_waits_for_nobody(store: Store) -> None:
    """After a reboot no process of the record is left."""
    here = world()
    run_ladder(here, plan(TERMINATE, of=STUBBORN), store)
    assert outstanding(here, store) == [(100, "SIGTERM")]
    assert Audit(store, here.clock, "next boot").outstanding() == []


@pytest.mark.parametrize(
    ("step", "waits"),
    [(RELEASE, False), (TELL, False), (CONTINUE, False), (RemedyStep(StepKind.NOTIFY, 5.0), False),
     (RemedyStep(StepKind.RESET, 5.0), False), (END, True), (USR1, True), (TERMINATE, True)],
    ids=["release", "exec that tells", "SIGCONT", "notify", "reset", "exec with a pid", "SIGUSR1", "SIGTERM"],
)  # fmt: skip
def test_what_ends_nobody_holds_nobody_up(store: Store, step: RemedyStep, *, waits: bool) -> None:
    """Only a step after which the process may end is waited for."""
    here = world()
    here.events = [lambda _: None] * 50
    run_ladder(here, plan(step, of=STUBBORN), store)
    assert outstanding(here, store) == ([(100, str(step))] if waits else [])


@pytest.mark.parametrize("how", ["dry run", "EPERM", "forbidden at the last look"])
def test_what_was_not_done_is_not_waited_for(store: Store, how: str) -> None:
    """A dry run, a signal that may not be sent, and a step that the very last look forbade end nobody."""
    here = world()
    if how == "EPERM":
        here.bodies[100].permitted = False
    if how == "forbidden at the last look":
        here.inner = [lambda _: None, lambda _: None, lambda made: made.exec(100)]
    run_ladder(here, plan(TERMINATE, of=STUBBORN, dry_run=how == "dry run"), store)
    assert here.log == []
    assert [event.kind for event in Audit(store, here.clock, BOOT).events()].count(INTENT) == 1
    assert outstanding(here, store) == []


@pytest.mark.parametrize("how", ["passed over", "forbidden at the last look"])
@pytest.mark.parametrize("step", [TERMINATE, END], ids=["SIGTERM", "exec"])
def test_a_step_of_the_same_name_that_was_not_taken(store: Store, step: RemedyStep, how: str) -> None:
    """KILL-01: a ladder has a step twice: that the second one was not taken says nothing of the first."""
    here = world()
    audit = Audit(store, here.clock, BOOT)
    of = plan(step, step, KILL, of=STUBBORN)
    run = audit.begin(begin_row(of, "", [100]))
    for taken, is_passed_over in ((True, False), (False, how == "passed over")):
        intent = {"step": str(step), "disrupts": True, **may_end_row(of, step, [STUBBORN], ["GPU-0"])}
        audit.write(run, INTENT, skipped_row(of, step, "state D") if is_passed_over else intent)
        audit.write(run, RESULT, {"step": str(step), "ok": True, "taken": taken})
    assert outstanding(here, store) == [(100, str(step))]
    assert run_ladder(here, plan(KILL, of=INNOCENT), store).result is RunResult.REFUSED


def test_all_that_fall_together_on_all_their_gpus(store: Store) -> None:
    """A job over two GPUs whose second process outlives SIGTERM: both GPUs wait for it."""
    second = target(101, key=MemoryKey("GPU-1", 101), gpu_index=1)
    other = target(102, key=MemoryKey("GPU-1", 102), gpu_index=1)
    here = World(STUBBORN, second, other)
    here.relatives = (100, 101)
    here.bodies[101].stubborn = True
    run_ladder(here, plan(TERMINATE, of=STUBBORN, scope="job"), store)
    here.relatives = ()
    outcome = run_ladder(here, plan(KILL, of=other), store)
    assert (outcome.result, "pid 101" in outcome.detail) == (RunResult.REFUSED, True)


def test_a_person_waits_for_nobody(store: Store) -> None:
    """Who clears a GPU by hand may end the neighbor of one that hangs."""
    here = world()
    run_ladder(here, plan(TERMINATE, of=STUBBORN), store)
    assert run_ladder(here, asked(here, 101), store).result is RunResult.RELEASED


def test_it_is_on_the_disk(tmp_path: Path) -> None:
    """KILL-06: what is waited for is known after a kill -9, from the file alone."""
    here = world()
    with closing(Store(tmp_path / "state.db")) as store:
        run_ladder(here, plan(TERMINATE, of=STUBBORN), store)
    with closing(Store(tmp_path / "state.db")) as store:
        assert outstanding(here, store) == [(100, "SIGTERM")]


def test_a_reload_forgets_nobody(store: Store) -> None:
    """Another configuration decides anew about everything but who may still end."""
    here = world()

    async def story() -> None:
        made = manager(here, store, [], steps=[TERMINATE])
        fire(made, here, 100)
        await made.idle()
        made.use(made.ladders, replace(RULES), 20.0)
        assert [one.identity for one in made.outstanding] == [STUBBORN.id]
        fire(made, here, 101)
        assert made.running == ()

    asyncio.run(story())


def asked_about(made: World, pid: int) -> set[int]:
    """Whose end was taken for granted when it was last seen whom the end of this one would end."""
    return {one.pid for one in made.ending} - {pid}


@pytest.mark.parametrize("restarts", [False, True])
def test_who_was_signaled_and_lives_counts_as_ending(store: Store, *, restarts: bool) -> None:
    """Each next one is judged as if it had ended, over a restart too; who has ended, or met a dry run alone, is not."""
    here = world()
    here.bodies[102] = World(target(102, key=MemoryKey("GPU-1", 102))).bodies[102]

    async def story() -> None:
        ends: list[str] = []
        made = manager(here, store, ends)
        await made.by_hand(asked(here, 101, TERMINATE, dry_run=True))
        await made.by_hand(asked(here, 102, TERMINATE, dry_run=True))
        assert asked_about(here, 102) == set()
        await made.by_hand(asked(here, 100, TERMINATE))
        assert ends[-1] == "100 no_effect"
        if restarts:
            made = await after_restart(here, store, ends)
        for dry_run in (True, False):
            await made.by_hand(asked(here, 102, TERMINATE, dry_run=dry_run))
            assert asked_about(here, 102) == {100}
        here.end(100)
        await made.by_hand(asked(here, 101, TERMINATE, dry_run=True))
        assert asked_about(here, 101) == set()

    asyncio.run(story())


def test_two_that_are_under_way_count_for_each_other(store: Store) -> None:
    """Of two acts at once neither is judged as if the other stayed, also where neither has signaled yet."""
    here = world()

    async def story() -> None:
        made = manager(here, store, [])
        first, second = (asyncio.create_task(made.by_hand(asked(here, pid, TERMINATE))) for pid in (100, 101))
        await asyncio.gather(first, second)
        assert (here.asked[101], here.asked[100]) == ({100}, {101})

    asyncio.run(story())


@pytest.mark.parametrize("dry_run", [True, False])
def test_several_that_a_person_asks_for_are_judged_together(store: Store, *, dry_run: bool) -> None:
    """What a request names as asked for at the same time counts as ending, in a dry run as in the act."""
    here = world()
    what = asked(here, 101, TERMINATE, dry_run=dry_run)
    run_ladder(here, replace(what, request=replace(what.request, together=frozenset({(100, 1000)}))), store)
    assert here.ending == {STUBBORN.id}


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_restart_counts_who_was_signaled_before(store: Store, *, dry_run: bool) -> None:
    """A unit is judged, in a dry run as in the act, as if who was asked to end before had ended with all of it."""
    here = world()
    here.bodies[102] = World(target(102, key=MemoryKey("GPU-1", 102), unit="a.service")).bodies[102]

    async def story() -> None:
        made = manager(here, store, [])
        await made.by_hand(asked(here, 100, TERMINATE))
        await made.by_hand(asked(here, 102, RESTART, dry_run=dry_run))
        assert STUBBORN.id in here.ending_beside_unit

    asyncio.run(story())
