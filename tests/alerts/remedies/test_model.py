"""Whatever happens in whatever order: what must never be, never is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuagent.core.growth import MemoryKey
from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.remedies.audit import Audit
from gpuagent_alerts.remedies.audit_rows import INTENT
from gpuagent_alerts.remedies.manager import RemedyManager
from gpuagent_alerts.remedies.observation import Condition
from gpuagent_alerts.remedies.safeguards.limits import RemedyLimits
from gpuagent_alerts.remedies.safeguards.policy import AllowList
from gpuagent_alerts.remedies.selection import AlertCandidates
from gpuagent_alerts.remedies.settings import LadderRule
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.world import BOOT, KILL, RELEASE, RULES, TERMINATE, World, context, target

PIDS = (100, 101, 102)
TARGETS = tuple(
    target(pid, key=MemoryKey(f"GPU-{gpu}", pid), gpu_index=gpu) for pid, gpu in zip(PIDS, (0, 0, 1), strict=True)
)


def _condition(condition: Condition) -> Callable[[World], None]:
    def change(world: World) -> None:
        world.condition = condition

    return change


def _body(pid: int, name: str, value: object) -> Callable[[World], None]:
    return lambda world: setattr(world.bodies[pid], name, value)


def _wait(seconds: float) -> Callable[[World], None]:
    return lambda world: world.clock.advance(seconds)


LADDER = LadderRule(lambda labels: True, (RELEASE, TERMINATE, KILL), dry_run=False)
LIMITS = RemedyLimits(pause=60, per_hour=2, per_day=3, unit_per_hour=1, cooldown=0, breaker=2)
IN_FORCE = replace(RULES, limits=LIMITS)


def _reload(ladder: LadderRule | None, **policy: object) -> Callable[[World], None]:
    """The configuration is read again: another ladder, or none; `policy` says whom it may touch."""

    def change(world: World) -> None:
        assert isinstance(world, Witness)
        world.ladder = ladder
        world.rules = replace(IN_FORCE, policy=replace(RULES.policy, **policy))  # type: ignore[arg-type]
        assert world.remedies is not None
        world.remedies.use([ladder] if ladder is not None else [], world.rules, 20.0)

    return change


RELOADS = [
    _reload(LADDER),
    _reload(None),
    _reload(replace(LADDER, dry_run=True)),
    _reload(replace(LADDER, steps=(RELEASE, KILL))),
    _reload(LADDER, allow=AllowList(users=("somebody-else",))),
    _reload(LADDER, never=("pyth*",)),
]


def _nothing(_: World) -> None:
    pass


EVENTS = st.one_of(
    st.just(_nothing),
    st.just(_nothing),
    st.sampled_from([_condition(each) for each in Condition]),
    st.sampled_from([lambda world, pid=pid: world.end(pid) for pid in PIDS]),
    st.sampled_from([lambda world, pid=pid: world.reuse(pid) for pid in PIDS]),
    st.sampled_from([lambda world, pid=pid: world.exec(pid) for pid in PIDS]),
    st.builds(_body, st.sampled_from(PIDS), st.just("stubborn"), st.booleans()),
    st.builds(_body, st.sampled_from(PIDS), st.just("immortal"), st.booleans()),
    st.builds(_body, st.sampled_from(PIDS), st.just("permitted"), st.booleans()),
    st.builds(_body, st.sampled_from(PIDS), st.just("state"), st.sampled_from("SDZR")),
    st.builds(_wait, st.floats(0, 4000)),
    st.sampled_from(RELOADS),
)
INNER = st.one_of(
    st.just(_nothing),
    st.just(_nothing),
    st.just(_nothing),
    st.sampled_from(RELOADS),
    st.sampled_from([lambda world, pid=pid: world.reuse(pid) for pid in PIDS]),
    st.sampled_from([lambda world, pid=pid: world.exec(pid) for pid in PIDS]),
)
"""What comes between a decision and the act."""


class Witness(World):
    """A world that checks, at the very moment at which something reaches a process."""

    def __init__(self, store: Store) -> None:
        super().__init__(*TARGETS)
        self.store = store
        self.remedies: RemedyManager | None = None
        self.ladder: LadderRule | None = LADDER
        self.rules = IN_FORCE
        self.first = dict(self.bodies)
        self.faults: list[str] = []
        self.acts: list[tuple[float, str, int]] = []
        self.log = _Log(self)

    def see(self, ok: bool, fault: str) -> None:
        """Kept for the end: an exception here would be taken for a failed step."""
        if not ok:
            self.faults.append(fault)

    def acted(self, what: str, pid: int) -> None:
        intents = [
            event
            for event in Audit(self.store, self.clock, BOOT).events()
            if event.kind == INTENT and pid in event.data["pids"] and event.data["step"] == what
        ]
        self.see(bool(intents), f"{what} for {pid} without an intent on record")
        self.see(self.bodies[pid] is self.first[pid], f"{what} reached a stranger")
        self.see(what in self._permitted(), f"{what} for {pid} after the configuration forbade it")
        gpu = self.first[pid].target.key.gpu_uuid
        assert self.remedies is not None
        victims = {run.plan.target.pid for run in self.remedies.running if run.plan.target.key.gpu_uuid == gpu}
        self.see(victims == {pid}, "two victims at once on a GPU")
        self.acts.append((self.clock.now(), what, pid))

    def _permitted(self) -> set[str]:
        """Steps, by the configuration that is in force now."""
        ladder, policy = self.ladder, self.rules.policy
        if ladder is None or ladder.dry_run or policy.never or "svc" not in policy.allow.users:
            return set()
        return {str(step) for step in ladder.steps}


class _Log(list[tuple[str, int]]):
    def __init__(self, witness: Witness) -> None:
        super().__init__()
        self._witness = witness

    def append(self, entry: tuple[str, int]) -> None:
        self._witness.acted(*entry)
        super().append(entry)


@pytest.mark.slow
@given(
    events=st.lists(EVENTS, max_size=60),
    inner=st.lists(INNER, max_size=40),
    order=st.lists(st.tuples(st.sampled_from(PIDS), st.booleans()), min_size=1, max_size=12),
    back_after=st.sampled_from([0.0, 5.0, 1e9]),
)
@settings(max_examples=100)
def test_never(
    events: list[Callable[[World], None]],
    inner: list[Callable[[World], None]],
    order: list[tuple[int, bool]],
    back_after: float,
) -> None:
    """KILL-01, KILL-06: no signal without an intent, none to a stranger, none after the configuration forbids it.

    One victim a GPU, and never beyond the budget.
    """
    asyncio.run(_story(events, inner, order, back_after))


@pytest.mark.parametrize("change", RELOADS[1:], ids=["removed", "dry", "shorter", "narrower", "never"])
@pytest.mark.parametrize("moment", range(12))
def test_a_reload_at_every_moment(change: Callable[[World], None], moment: int) -> None:
    """KILL-06: wherever in a run the configuration is read again: nothing that it forbids is done after that."""
    asyncio.run(_story([], [*[_nothing] * moment, change], [(PIDS[0], True)], 0.0))
    asyncio.run(_story([*[_nothing] * moment, change], [], [(PIDS[0], True)], 0.0))


async def _story(
    events: list[Callable[[World], None]],
    inner: list[Callable[[World], None]],
    order: list[tuple[int, bool]],
    back_after: float,
) -> None:
    store = Store(None)
    world = Witness(store)
    world.back_after = back_after
    world.events, world.inner = list(events), list(inner)
    remedies = RemedyManager([LADDER], IN_FORCE, context(world, store), proof_seconds=20.0, on_run_end=lambda *_: None)
    world.remedies = remedies
    for pid, wait in order:
        seen = [body.target for body in world.bodies.values() if body.alive]
        alert = Alert({"alertname": "Full", "pid": str(pid)}, {}, Status.FIRING, world.clock.wall())
        remedies.consider([AlertCandidates(alert, 1e9, seen)])
        if wait:
            await _until_idle(remedies)
        else:
            await asyncio.sleep(0)
    await _until_idle(remedies)
    assert world.faults == []
    victims: dict[int, float] = {}
    for when, what, pid in world.acts:
        if what != "release_cache":
            victims.setdefault(pid, when)
    times = sorted(victims.values())
    for index, start in enumerate(times):
        assert sum(time < start + 3600 for time in times[index:]) <= LIMITS.per_hour
    assert len([each for each in times if each < times[0] + 86_400]) <= LIMITS.per_day if times else True
    store.close()


async def _until_idle(remedies: RemedyManager) -> None:
    limit = time.monotonic() + 20
    while remedies.running:
        await asyncio.sleep(0)
        assert time.monotonic() < limit, "a run does not end"
