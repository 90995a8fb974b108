"""A small world to act in: one clock, processes that can be signaled, and a GPU whose memory follows from them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from gpuagent.core.clock import ManualClock
from gpuagent.core.growth import MemoryKey
from gpuagent.core.identity import ProcessId
from gpuagent_alerts.remedies.audit import Audit
from gpuagent_alerts.remedies.observation import (
    ActionResult,
    Condition,
    LimitAsk,
    NotPermitted,
    Observation,
    ProcessEnded,
    RemedyRequest,
    UnitPermission,
)
from gpuagent_alerts.remedies.outcome import RunOutcome
from gpuagent_alerts.remedies.pinned_processes import ActionRefused
from gpuagent_alerts.remedies.plan import Plan
from gpuagent_alerts.remedies.run import LadderRun
from gpuagent_alerts.remedies.run_context import RunContext
from gpuagent_alerts.remedies.safeguards.limits import RemedyLimits
from gpuagent_alerts.remedies.safeguards.policy import AllowList, Policy
from gpuagent_alerts.remedies.settings import RemedyRules
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind, groups_of
from gpuagent_alerts.remedies.target import Facts, Identity, Target, Ties
from gpuagent_alerts.store.database import Store

GIB = 2**30
PROVEN = frozenset({"unit", "container", "job"})
MOMENT = 0.001
"""Time goes on while somebody waits, however little is left: less than this may be lost in a float."""
BOOT = "boot"
ALERT = "a1"
RELEASE = RemedyStep(StepKind.RELEASE_CACHE, 30.0)
RESET = RemedyStep(StepKind.RESET, 60.0)
TERMINATE = RemedyStep(StepKind.TERMINATE, 30.0)
KILL = RemedyStep(StepKind.KILL, 60.0)
RESTART = RemedyStep(StepKind.RESTART_UNIT, 60.0)
ORDER = RemedyRequest(
    alert=ALERT, alertname="GpuProcessMemoryLeak", expression="up == 1", value=1.0, labels={"evidence": "strict"}
)
RULES = RemedyRules(Policy(AllowList(users=("svc",))), RemedyLimits(pause=0, per_hour=99, per_day=99, unit_per_hour=99,
                                                     cooldown=0, breaker=99))  # fmt: skip


def target(pid: int = 100, **changes: Any) -> Target:
    """A process of the user `svc` with 4 GiB on GPU 0."""
    made = Target(
        id=ProcessId(BOOT, pid, pid * 10),
        key=MemoryKey("GPU-0", pid),
        gpu_index=0,
        name="python",
        uid=1000,
        user="svc",
        command="python serve.py",
        cgroup="/user.slice",
        used_bytes=4 * GIB,
        driver_confirms=True,
        proven_names=PROVEN,
    )
    return replace(made, **changes)


@dataclass
class Body:
    """A process of this world."""

    target: Target
    identity: Identity
    alive: bool = True
    state: str = "S"
    threads: int = 1
    stubborn: bool = False
    """SIGTERM does nothing."""
    immortal: bool = False
    """Nor does SIGKILL: it waits in the kernel."""
    permitted: bool = True
    signals: list[int] = field(default_factory=list)
    facts_changes: dict[str, Any] = field(default_factory=dict)


class World:
    """Observer and executor, and what happens in between: `events` are called, one at each look."""

    def __init__(self, *targets: Target) -> None:
        self.clock = ManualClock()
        self.bodies = {each.pid: Body(each, _identity(each)) for each in targets or (target(),)}
        self.condition = Condition.HOLDS
        self.back_after = 0.0
        """Seconds from the end of a process to the return of its memory."""
        self.events: list[Callable[[World], None]] = []
        self.inner: list[Callable[[World], None]] = []
        """As `events`, one at each look at a process: also between a decision and the act."""
        self.log: list[tuple[str, int]] = []
        """Everything that reached a process, in order: what, and the pid that it was meant for."""
        self.ended_at: dict[int, float] = {}
        self.observation_changes: dict[str, Any] = {}
        self.deaf = False
        """No fresh reading comes."""
        self.app_answers = ActionResult(ok=True)
        self.on_release: Callable[[World], None] = lambda world: None
        self.collected = False
        self.unit_problem = ""
        self.limit_result = ActionResult(ok=True, detail="it is limited to 6.0 GiB")
        self.limit_asks: list[LimitAsk] = []
        self.group_problem = ""
        """Why a container or job must not be handed to a program."""
        self.container_problem = ""
        self.unit_sharing = ""
        """Why the unit may run other people's work."""
        self.before_restart: Callable[[World], None] = lambda world: None
        """Called between the decision to restart a unit and the last look at it."""
        self.ties = Ties()
        """Who else ends with the processes."""
        self.look_seconds = 0.0
        """Time that it takes to see who that is."""
        self.ending: frozenset[ProcessId] = frozenset()
        self.ending_beside_unit: frozenset[ProcessId] = frozenset()
        """Who was taken for ending besides when a unit was last looked at."""
        self.asked: dict[int, set[int]] = {}
        """By target, who was ever taken for ending besides."""
        self.successors: tuple[int, ...] = ()
        self.relatives: tuple[int, ...] = ()
        """Pids of those that belong to the target; with a scope, they fall with it."""

    # ---- observer

    def observe(self, target: Target, alert: str, scope: str = "process") -> Observation:
        body = self.bodies.get(target.pid)
        listed = body is not None and self._counts(body)
        belonging = tuple(self.bodies[pid].target for pid in self.relatives if self.bodies[pid].alive)
        gpu = target.key.gpu_uuid
        observation = Observation(
            clock_seconds=self.clock.now(),
            condition=self.condition,
            target=body.target if body is not None and body.alive and body.identity.id == target.id else None,
            target_listed=listed,
            gpu_used_bytes=sum(each.target.used_bytes for each in self.bodies.values() if self._counts(each)),
            gpu_unattributed_bytes=0,
            relatives=tuple(each for each in belonging if each.key.gpu_uuid == gpu),
            successors=tuple(body.target for pid, body in self.bodies.items() if pid in self.successors and body.alive),
            members=belonging if scope != "process" else (),
            present=frozenset(
                each.identity.id for each in self.bodies.values() if each.alive and each.target.key.gpu_uuid == gpu
            ),
        )
        return replace(observation, **self.observation_changes)

    async def next_observation(
        self,
        target: Target,
        alert: str,
        after: float,
        deadline_seconds: float,
        *,
        evaluated: bool = True,
        scope: str = "process",
    ) -> Observation | None:
        await asyncio.sleep(0)
        if deadline_seconds <= 0:
            return None
        if self.deaf:
            self.clock.advance(max(deadline_seconds, MOMENT))
            return None
        self.clock.advance(max(min(1.0, deadline_seconds), MOMENT))
        if self.events:
            self.events.pop(0)(self)
        observation = self.observe(target, alert, scope)
        return observation if observation.clock_seconds > after else None

    # ---- executor

    def pin(self, target: Target) -> HeldBody:
        body = self.bodies.get(target.pid)
        if body is None or not body.alive:
            raise ProcessEnded
        return HeldBody(self, body)

    def protected(self) -> frozenset[int]:
        return frozenset({1, 2})

    def is_alive(self, identity: ProcessId) -> bool:
        return any(body.alive and body.identity.id == identity for body in self.bodies.values())

    async def tied_to(
        self, targets: Sequence[Target], ending: Collection[ProcessId] = (), *, with_units: bool = False
    ) -> Ties:
        assert all(self.bodies[each.pid].target.id.pid == each.pid for each in targets)
        self.ending = frozenset(ending)
        self.asked.setdefault(targets[0].pid, set()).update(each.pid for each in ending)
        self.clock.advance(self.look_seconds)
        return self.ties if with_units else replace(self.ties, units=frozenset())

    async def notify(self, target: Target, reason: str, deadline_seconds: float) -> ActionResult:
        self.log.append(("notify", target.pid))
        return ActionResult(ok=True)

    async def release_cache(self, target: Target, deadline_seconds: float, *, collect: bool = False) -> ActionResult:
        self.log.append(("release_cache", target.pid))
        self.collected = collect
        self.on_release(self)
        return self.app_answers

    async def drop_caches(self, step: RemedyStep, *, rehearse: bool) -> ActionResult:
        self.log.append(("rehearsed drop_caches" if rehearse else "drop_caches", 0))
        return ActionResult(ok=True, detail="at most 1.0 GiB")

    async def limit(self, step: RemedyStep, target: Target, permission: UnitPermission, ask: LimitAsk) -> ActionResult:
        if refusal := await self.group_refusal(step, target, permission):
            raise ActionRefused(refusal)
        self.log.append(("rehearsed limit" if ask.rehearse else "limit", target.pid))
        self.limit_asks.append(ask)
        return self.limit_result

    async def reset(self, target: Target, deadline_seconds: float) -> ActionResult:
        self.log.append(("reset", target.pid))
        return self.app_answers

    async def unit_refusal(self, target: Target, permission: UnitPermission) -> str:
        self.ending_beside_unit = frozenset(permission.ending)
        return self.unit_problem or (self.unit_sharing if not permission.shared else "")

    async def container_refusal(self, target: Target) -> str:
        return self.container_problem

    async def restart_unit(self, target: Target, permission: UnitPermission, deadline_seconds: float) -> ActionResult:
        self.before_restart(self)
        if refusal := await self.unit_refusal(target, permission):
            raise ActionRefused(refusal)
        pid = next(body.target.pid for body in self.bodies.values() if body.target.unit == target.unit)
        self.log.append(("restart_unit", pid))
        self.end(pid)
        return ActionResult(ok=True)

    async def group_refusal(self, step: RemedyStep, target: Target, permission: UnitPermission) -> str:
        if step.kind is StepKind.RESTART_UNIT:
            return await self.unit_refusal(target, permission)
        return self.group_problem if groups_of(step) or step.kind is StepKind.LIMIT else ""

    async def execute(self, step: RemedyStep, target: Target, permission: UnitPermission) -> ActionResult:
        if refusal := await self.group_refusal(step, target, permission):
            raise ActionRefused(refusal)
        self.log.append(("exec", target.pid))
        return ActionResult(ok=True)

    # ---- events

    def end(self, pid: int) -> None:
        """The process is gone."""
        self.bodies[pid].alive = False
        self.ended_at.setdefault(pid, self.clock.now())

    def reuse(self, pid: int) -> None:
        """The number belongs to an innocent one now; who held the old one still holds the old one."""
        self.end(pid)
        stranger = target(pid, id=ProcessId(BOOT, pid, 999_999), user="someone", uid=2000)
        self.bodies[pid] = Body(stranger, _identity(stranger))

    def exec(self, pid: int) -> None:
        """The process runs another program."""
        body = self.bodies[pid]
        body.identity = replace(body.identity, command_digest="other", executable="/usr/bin/other")

    def _counts(self, body: Body) -> bool:
        ended = self.ended_at.get(body.target.pid)
        return body.alive or (ended is not None and self.clock.now() - ended < self.back_after)


class HeldBody:
    """As a pidfd: bound to the body, not to its number."""

    def __init__(self, world: World, body: Body) -> None:
        self._world = world
        self._body = body
        self.closed = False

    async def facts(self) -> Facts:
        await asyncio.sleep(0)
        if self._world.inner:
            self._world.inner.pop(0)(self._world)
        body = self._body
        if not body.alive:
            raise ProcessEnded
        facts = Facts(
            identity=body.identity, state=body.state, threads=body.threads, uids=(body.identity.uid,) * 4,
            root_user_namespace=True, own_root=False, namespace_pids=(body.target.pid,), user=body.target.user,
        )  # fmt: skip
        return replace(facts, **body.facts_changes)

    def send(self, number: int) -> None:
        body = self._body
        if not body.alive:
            raise ProcessEnded
        if not body.permitted:
            raise NotPermitted("Operation not permitted")
        if number == 0:
            return
        body.signals.append(number)
        self._world.log.append((signal.Signals(number).name, body.target.pid))
        if body.immortal or (number == signal.SIGTERM and body.stubborn) or number == signal.SIGUSR1:
            return
        self._world.end(body.target.pid)

    def has_ended(self) -> bool:
        return not self._body.alive

    def close(self) -> None:
        assert not self.closed, "closed twice"
        self.closed = True


class Gate(AbstractAsyncContextManager[object]):
    """An asyncio.Lock made where the loop is."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> object:
        return await self._lock.acquire()

    async def __aexit__(self, *exception: object) -> None:
        self._lock.release()


def context(world: World, store: Store) -> RunContext:
    """What a run needs, all of it of this world."""
    audit = Audit(store, world.clock, BOOT)
    return RunContext(world, world, audit, Gate(), world.clock.now)


def run_ladder(world: World, what: Plan, store: Store, rules: RemedyRules = RULES) -> RunOutcome:
    """Run it to its end."""

    async def run() -> RunOutcome:
        return await LadderRun(what, rules, context(world, store)).run()

    return asyncio.run(run())


def plan(*steps: RemedyStep, of: Target | None = None, **changes: Any) -> Plan:
    """For real, on the only process, unless said otherwise."""
    return replace(Plan(ORDER, of or target(), steps, dry_run=False, proof_seconds=20.0), **changes)


def _identity(of: Target) -> Identity:
    return Identity(of.id, of.uid, of.name, "digest", of.cgroup, "/usr/bin/python3", of.proven_names, of.pid)
