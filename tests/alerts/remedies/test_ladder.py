"""One run of a ladder: what it does, what it refuses, and what it says of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpuagent.core.growth import MemoryKey
from gpuagent_alerts.remedies.audit import Audit
from gpuagent_alerts.remedies.audit_rows import BEGIN, END, INTENT, RESULT
from gpuagent_alerts.remedies.observation import ActionResult, Condition
from gpuagent_alerts.remedies.outcome import RunResult
from gpuagent_alerts.remedies.safeguards.limits import RemedyLimits, owners_left_alone
from gpuagent_alerts.remedies.safeguards.policy import AllowList, Policy
from gpuagent_alerts.remedies.settings import RemedyRules
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.world import (
    BOOT,
    GIB,
    KILL,
    ORDER,
    RELEASE,
    RESET,
    RESTART,
    RULES,
    TERMINATE,
    World,
    plan,
    run_ladder,
    target,
)  # fmt: skip


def kinds(world: World, store: Store) -> list[str]:
    """The audit log's rows, in order."""
    return [event.kind for event in Audit(store, world.clock, BOOT).events()]


def test_terminate_and_the_memory_is_back(store: Store) -> None:
    """KILL-06: SIGTERM, the process ends, and its memory is seen to come back."""
    world = World()
    world.back_after = 3.0
    outcome = run_ladder(world, plan(TERMINATE, KILL), store)
    assert outcome.result is RunResult.RELEASED
    assert outcome.released_bytes == 4 * GIB
    assert outcome.seconds is not None
    assert world.log == [("SIGTERM", 100)]
    assert kinds(world, store) == [BEGIN, INTENT, RESULT, END]


def test_the_next_step_where_the_first_did_nothing(store: Store) -> None:
    """KILL-06: who does not end by SIGTERM in its time gets SIGKILL."""
    world = World()
    world.bodies[100].stubborn = True
    outcome = run_ladder(world, plan(TERMINATE, KILL), store)
    assert outcome.result is RunResult.RELEASED
    assert world.log == [("SIGTERM", 100), ("SIGKILL", 100)]


def test_no_wait_for_a_signal_that_is_ignored(store: Store) -> None:
    """A process that ignores SIGTERM is not waited for, and the record says so."""
    world = World()
    world.bodies[100].stubborn = True
    world.bodies[100].facts_changes = {"ignored_signals": 1 << 14}
    started = world.clock.now()
    run_ladder(world, plan(TERMINATE, KILL), store)
    assert world.clock.now() - started < TERMINATE.wait_seconds
    intent = next(event for event in Audit(store, world.clock, BOOT).events() if event.kind == INTENT)
    assert "ignores" in intent.data["note"]


def test_the_cache_alone_is_enough(store: Store) -> None:
    """The ladder stops as soon as the condition has gone: nothing is killed that could give its cache back."""
    world = World()

    def released(world: World) -> None:
        world.bodies[100].target = target(used_bytes=1 * GIB)
        world.condition = Condition.OVER

    world.on_release = released
    outcome = run_ladder(world, plan(RELEASE, TERMINATE, KILL), store)
    assert outcome.result is RunResult.RELEASED
    assert outcome.released_bytes == 3 * GIB
    assert world.log == [("release_cache", 100)]
    assert outcome.helped is None  # the breaker counts actions, and this was none


@pytest.mark.parametrize(
    ("ask", "kind"), [(RELEASE, "release_cache"), (RESET, "reset")], ids=["release_cache", "reset"]
)
def test_an_app_without_a_client_costs_no_time(store: Store, ask: RemedyStep, kind: str) -> None:
    """Where the app cannot be asked, refuses or is silent, the next step comes at once: that keeps nothing away."""
    world = World()
    world.app_answers = ActionResult(ok=False, detail="no client in the app")
    started = world.clock.now()
    run_ladder(world, plan(ask, TERMINATE), store)
    assert world.clock.now() - started < ask.wait_seconds
    assert world.log == [(kind, 100), ("SIGTERM", 100)]


def test_a_last_step_that_fails_is_told(store: Store) -> None:
    """A reset that no client answers is a failure where nothing comes after it."""
    world = World()
    world.app_answers = ActionResult(ok=False, detail="no client in the app")
    outcome = run_ladder(world, plan(RESET), store)
    assert (outcome.result, outcome.detail) == (RunResult.FAILED, "reset: no client in the app")


def test_reused_pid_before_the_ladder(store: Store) -> None:
    """KILL-01: the number belongs to another process by now: it is not touched."""
    world = World()
    world.reuse(100)
    outcome = run_ladder(world, plan(TERMINATE), store)
    assert outcome.result in {RunResult.REFUSED, RunResult.EXITED}
    assert world.log == []


@pytest.mark.parametrize("looks", range(1, 5))
def test_reused_pid_in_the_middle(store: Store, looks: int) -> None:
    """KILL-01: whenever the pid is given to another process, that one gets no signal."""
    world = World()
    world.bodies[100].stubborn = True
    world.events = [lambda world: None] * looks + [lambda world: world.reuse(100)]
    run_ladder(world, plan(TERMINATE, KILL), store)
    assert world.bodies[100].identity.id.start_ticks == 999_999
    assert world.bodies[100].signals == []


def test_another_program_by_exec(store: Store) -> None:
    """A process that runs another program since it was chosen is left alone: pid and start time do not tell."""
    world = World()
    world.bodies[100].stubborn = True
    world.events = [lambda world: None, lambda world: None, lambda world: world.exec(100)]
    outcome = run_ladder(world, plan(TERMINATE, KILL), store)
    assert outcome.result is RunResult.REFUSED
    assert "another program" in outcome.detail
    assert ("SIGKILL", 100) not in world.log


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"condition": Condition.UNKNOWN, "reason": "GPU 0 is blind"}, "blind"),
        ({"trusted": False}, "form than documented"),
        ({"host_pid_namespace": False}, "namespace"),
    ],
)
def test_data_in_doubt(store: Store, change: dict[str, object], word: str) -> None:
    """KILL-02: where the data is missing or not to be trusted, nothing is done, and the reason is said."""
    world = World()
    world.observation_changes = change
    outcome = run_ladder(world, plan(TERMINATE), store)
    assert outcome.result is RunResult.REFUSED
    assert word in outcome.detail
    assert world.log == []


def test_no_fresh_reading(store: Store) -> None:
    """KILL-02: NVML goes silent: nothing is done on what was read before."""
    world = World()
    world.deaf = True
    assert run_ladder(world, plan(TERMINATE), store).result is RunResult.REFUSED
    assert world.log == []


def test_the_alert_ends_between_two_steps(store: Store) -> None:
    """An alert that has resolved kills nobody."""
    world = World()
    world.bodies[100].stubborn = True

    def over(world: World) -> None:
        world.condition = Condition.OVER

    world.events = [lambda world: None] * 5 + [over]
    outcome = run_ladder(world, plan(TERMINATE, KILL), store)
    assert outcome.result is RunResult.RESOLVED
    assert world.log == [("SIGTERM", 100)]


@pytest.mark.parametrize("looks", range(6))
def test_it_ends_by_itself(store: Store, looks: int) -> None:
    """A process that exits between any two steps is neither signaled nor waited for in vain."""
    world = World()
    world.bodies[100].stubborn = True
    world.events = [lambda world: None] * looks + [lambda world: world.end(100)]
    outcome = run_ladder(world, plan(TERMINATE, KILL), store)
    assert outcome.result in {RunResult.EXITED, RunResult.RELEASED, RunResult.REFUSED}
    assert ("SIGKILL", 100) not in world.log


def test_dry_run_decides_the_same_and_does_nothing(store: Store) -> None:
    """A dry run takes the same decisions and writes the same record, marked so; nothing reaches the process."""
    real, dry = World(), World()
    for world in (real, dry):
        world.bodies[100].stubborn = True
        world.bodies[100].immortal = True
    other = Store(None)
    run_ladder(real, plan(TERMINATE, KILL), store)
    outcome = run_ladder(dry, plan(TERMINATE, KILL, dry_run=True), other)
    assert outcome.result is RunResult.DRY_RUN
    assert dry.log == []
    rows, dry_rows = (Audit(one, real.clock, BOOT).events() for one in (store, other))
    assert [event.data.get("step") for event in rows] == [event.data.get("step") for event in dry_rows]
    assert [event.kind for event in rows] == [event.kind for event in dry_rows]
    assert all(event.data["dry_run"] for event in dry_rows if event.kind in {BEGIN, INTENT})
    other.close()


def test_what_cannot_be_killed(store: Store) -> None:
    """PROC-02: SIGKILL is sent once; the outcome says unkillable, and where in the kernel it waits."""
    world = World()
    world.bodies[100].immortal = True
    world.bodies[100].facts_changes = {"wait_channel": "nvidia_ioctl"}
    outcome = run_ladder(world, plan(KILL), store)
    assert outcome.result is RunResult.UNKILLABLE
    assert "nvidia_ioctl" in outcome.detail
    assert world.log == [("SIGKILL", 100)]


def test_no_right(store: Store) -> None:
    """EPERM ends the run, is recorded as such, and stops all remedies until a person has looked."""
    world = World()
    world.bodies[100].permitted = False
    assert run_ladder(world, plan(KILL), store).result is RunResult.FAILED
    world.bodies[100].permitted = True
    outcome = run_ladder(world, plan(KILL), store)
    assert outcome.result is RunResult.REFUSED
    assert "remedies reset" in outcome.detail
    Audit(store, world.clock, BOOT).reset("root")
    assert run_ladder(world, plan(KILL), store).result is RunResult.RELEASED


def test_what_systemd_supervises_is_restarted_by_systemd(store: Store) -> None:
    """A bare SIGTERM would leave the service down: refused, and restart_unit works."""
    unit = target(unit="whisper.service")
    world = World(unit)
    outcome = run_ladder(world, plan(TERMINATE, of=unit), store)
    assert outcome.result is RunResult.REFUSED
    assert "restart_unit" in outcome.detail
    assert run_ladder(world, plan(RESTART, of=unit), store).result is RunResult.RELEASED
    assert world.log == [("restart_unit", 100)]


def test_a_unit_at_its_start_limit(store: Store) -> None:
    """A unit that one more start would leave failed is left alone."""
    unit = target(unit="whisper.service")
    world = World(unit)
    world.unit_problem = "one more could leave it down"
    assert run_ladder(world, plan(RESTART, of=unit), store).result is RunResult.REFUSED
    assert world.log == []


def test_the_driver_goes_on_counting(store: Store) -> None:
    """The process has ended and its memory is still listed: said so, and not called released."""
    world = World()
    world.back_after = 1e9
    assert run_ladder(world, plan(KILL), store).result is RunResult.STILL_LISTED


def test_an_orphan_holds_it(store: Store) -> None:
    """The leader has ended, its group holds the GPU: named."""
    world = World(target(), target(101, key=MemoryKey("GPU-0", 101)))
    world.relatives = (101,)
    world.bodies[100].target = target()

    def grows(world: World) -> None:
        world.bodies[101].target = replace(world.bodies[101].target, used_bytes=8 * GIB)

    world.events = [lambda world: None, grows]
    outcome = run_ladder(world, plan(KILL), store)
    assert outcome.result is RunResult.HELD_BY_OTHER
    assert "pid 101" in outcome.detail


def test_all_of_a_scope_or_none(store: Store) -> None:
    """One rank of a job killed alone strands the rest: where one may not be signaled, none is."""
    world = World(target(), target(101))
    world.relatives = (101,)
    world.bodies[101].permitted = False
    assert run_ladder(world, plan(KILL, scope="job"), store).result is RunResult.FAILED
    assert world.log == []
    world.bodies[101].permitted = True
    Audit(store, world.clock, BOOT).reset("root")
    run_ladder(world, plan(KILL, scope="job"), store)
    assert sorted(world.log) == [("SIGKILL", 100), ("SIGKILL", 101)]


def test_evidence(store: Store) -> None:
    """Beyond release_cache a leak needs the evidence that the configuration asks for."""
    world = World()
    weak = replace(ORDER, labels={"evidence": "balanced"})
    outcome = run_ladder(world, plan(RELEASE, TERMINATE, request=weak), store)
    assert outcome.result is RunResult.REFUSED
    assert "evidence" in outcome.detail
    assert world.log == [("release_cache", 100)]
    lowered = replace(RULES, policy=replace(RULES.policy, evidence=("strict", "balanced")))
    assert run_ladder(world, plan(TERMINATE, request=weak), store, lowered).result is RunResult.RELEASED


def test_by_hand(store: Store) -> None:
    """`--force` lifts the allow list, and never the never-list."""
    stranger = target(user="other")
    forced = replace(ORDER, forced=True, alert="", alertname="")
    assert run_ladder(World(stranger), plan(KILL, of=stranger), store).result is RunResult.REFUSED
    assert run_ladder(World(stranger), plan(KILL, of=stranger, request=forced), store).result is RunResult.RELEASED
    daemon = target(name="nvidia-persiste")
    assert run_ladder(World(daemon), plan(KILL, of=daemon, request=forced), store).result is RunResult.REFUSED


def test_not_recorded_not_done(store: Store) -> None:
    """The intent is on the disk before the signal is sent; where it cannot be written, nothing is sent."""
    world = World()
    store.execute("DROP TABLE remedy_audit")
    assert run_ladder(world, plan(KILL), store).result is RunResult.REFUSED
    assert world.log == []


def budget(**changes: float) -> RemedyLimits:
    """Only the limits that are named."""
    return replace(RULES.limits, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limits", "word"),
    [
        (budget(pause=600.0), "pause"),
        (budget(per_hour=1), "per_hour"),
        (budget(per_day=1), "per_day"),
        (budget(cooldown=600.0), "cools down"),
    ],
)
def test_limits(store: Store, limits: RemedyLimits, word: str) -> None:
    """Each limit refuses the action after the last that it permits, for real ones and for dry runs apart."""
    rules = replace(RULES, limits=limits)
    for dry_run in (True, False):
        first, second = World(), World()
        run_ladder(first, plan(KILL, dry_run=dry_run), store, rules)
        outcome = run_ladder(second, plan(KILL, dry_run=dry_run), store, rules)
        assert outcome.result is RunResult.REFUSED
        assert word in outcome.detail
        assert second.log == []


@pytest.mark.parametrize(
    ("limits", "word"),
    [
        (budget(per_hour=0), "per_hour is 0"),
        (budget(per_day=0), "per_day is 0"),
        (budget(unit_per_hour=0), "unit_per_hour is 0"),
    ],
)
def test_a_limit_of_none(store: Store, limits: RemedyLimits, word: str) -> None:
    """A limit of 0 permits no action, the very first one included."""
    unit = target(unit="whisper.service")
    world = World(unit)
    outcome = run_ladder(world, plan(RESTART, of=unit), store, replace(RULES, limits=limits))
    assert outcome.result is RunResult.REFUSED
    assert word in outcome.detail
    assert world.log == []


def test_the_breaker_of_one_owner(store: Store) -> None:
    """After so many actions without effect rules leave their owner alone, and nobody else, until a person has looked.

    That of three owners stops all of them.
    """
    rules = replace(RULES, limits=budget(breaker=2))
    useless: Callable[[], World] = World
    for _ in range(2):
        world = useless()
        world.back_after = 1e9
        assert run_ladder(world, plan(TERMINATE), store, rules).result is RunResult.STILL_LISTED
    audit = Audit(store, world.clock, BOOT)
    left_alone = [owners_left_alone(rules.limits, audit.past(dry_run=False, since_reset=True))]
    assert left_alone == [["uid 1000"]]
    stopped = World()
    outcome = run_ladder(stopped, plan(TERMINATE), store, rules)
    assert (outcome.result, "rules leave the processes of" in outcome.detail) == (RunResult.REFUSED, True)
    assert stopped.log == []
    for unit in ("a.service", "b.service"):
        for _ in range(2):
            other = World(target(unit=unit))
            other.back_after = 1e9
            assert run_ladder(other, plan(RESTART, of=target(unit=unit)), store, rules).result is not RunResult.REFUSED
    last = World(target(unit="c.service"))
    assert "remedies are stopped" in run_ladder(last, plan(RESTART, of=target(unit="c.service")), store, rules).detail
    Audit(store, stopped.clock, BOOT).reset("root")
    assert run_ladder(stopped, plan(TERMINATE), store, rules).result is RunResult.RELEASED


def test_other_signals(store: Store) -> None:
    """A signal that the app knows is sent, waited for, and is no end of the process."""
    world = World()
    usr1 = RemedyStep(StepKind.SIGNAL, 5.0, signal_number=10)
    assert run_ladder(world, plan(usr1), store).result is RunResult.NO_EFFECT
    assert world.log == [("SIGUSR1", 100)]


def test_nobody_is_allowed_by_default(store: Store) -> None:
    """Off until configured: without an allow list nothing is done."""
    world = World()
    outcome = run_ladder(world, plan(KILL), store, RemedyRules(Policy(AllowList()), RULES.limits))
    assert outcome.result is RunResult.REFUSED
    assert "remedies.allow" in outcome.detail
