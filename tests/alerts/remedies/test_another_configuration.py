"""A reload decides anew: what another configuration refused, or tried in dry run, binds nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.remedies.audit import Audit
from gpuagent_alerts.remedies.audit_rows import END
from gpuagent_alerts.remedies.manager import RemedyManager
from gpuagent_alerts.remedies.outcome import RunOutcome, RunResult
from gpuagent_alerts.remedies.plan import Plan
from gpuagent_alerts.remedies.run import LadderRun
from gpuagent_alerts.remedies.safeguards.policy import AllowList, Policy
from gpuagent_alerts.remedies.safeguards.victim import VictimPolicy
from gpuagent_alerts.remedies.selection import AlertCandidates
from gpuagent_alerts.remedies.settings import LadderRule, RemedyRules
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.world import BOOT, GIB, RULES, TERMINATE, World, context, target

LARGE = target(100, used_bytes=30 * GIB, user="mail", uid=8)
SMALL = target(101, used_bytes=20 * GIB, user="games", uid=5)


def allowing(*users: str) -> RemedyRules:
    """Rules that permit these users."""
    return replace(RULES, policy=Policy(AllowList(users=users)))


def ladder(*, dry_run: bool = False) -> LadderRule:
    """One for every alert: the largest, by SIGTERM."""
    return LadderRule(lambda labels: True, (TERMINATE,), dry_run=dry_run, victim=VictimPolicy.LARGEST)


class Story:
    """An alert about a GPU with two processes on it, under a configuration that changes."""

    def __init__(self, store: Store, rules: RemedyRules, *, dry_run: bool = False) -> None:
        self.world = World(LARGE, SMALL)
        self.ends: list[tuple[int, RunResult]] = []
        self.made = RemedyManager(
            [ladder(dry_run=dry_run)], rules, context(self.world, store), proof_seconds=20.0, on_run_end=self._told
        )

    def _told(self, plan: Plan, _run: LadderRun, outcome: RunOutcome, _again: bool) -> None:
        self.ends.append((plan.target.pid, outcome.result))

    def use(self, rules: RemedyRules, *, dry_run: bool = False) -> None:
        """Reload."""
        self.made.use([ladder(dry_run=dry_run)], rules, 20.0)

    async def evaluate(self) -> None:
        """The alert fires, and what is due is carried to its end."""
        self.consider()
        await self.made.idle()
        self.world.clock.advance(1.0)

    def consider(self) -> None:
        """The alert fires."""
        seen: Sequence[Any] = [body.target for body in self.world.bodies.values() if body.alive]
        alert = Alert({"alertname": "GpuMemoryHigh"}, {}, Status.FIRING, self.world.clock.wall())
        self.made.consider([AlertCandidates(alert, 1e9, seen)])


def tell(
    store: Store, rules: RemedyRules, story: Callable[[Story], Coroutine[Any, Any, None]], **options: bool
) -> Story:
    """Run it."""
    told = Story(store, rules, **options)
    asyncio.run(story(told))
    return told


def test_a_refusal_is_not_carried_over(store: Store) -> None:
    """KILL-09: the largest was not permitted; now it is: it is ended, and the next one that would have been is not."""

    async def story(told: Story) -> None:
        await told.evaluate()
        assert told.ends == []
        told.use(allowing("games", "mail"))
        await told.evaluate()

    told = tell(store, allowing("games"), story)
    assert told.ends == [(100, RunResult.RELEASED)]
    assert told.world.log == [("SIGTERM", 100)]


def test_a_refusal_that_ends_after_the_reload_is_not_carried_over(store: Store) -> None:
    """KILL-09: the reload comes while the refusal by the configuration before is written down: the next one is safe."""

    async def story(told: Story) -> None:
        told.world.inner = [lambda world: world.bodies[100].facts_changes.update(uids=(8, 0, 0, 0))]
        loop = asyncio.get_running_loop()

        class SlowDisk(Audit):
            def write(self, run: str, kind: str, data: Mapping[str, Any]) -> None:
                super().write(run, kind, data)
                if kind == END and not told.ends:  # in a thread: the reload comes before what waits for it
                    loop.call_soon_threadsafe(told.use, allowing("games", "mail"))
                    told.world.bodies[100].facts_changes.clear()

        told.made.context = replace(told.made.context, audit=SlowDisk(store, told.world.clock, BOOT))
        await told.evaluate()
        await told.evaluate()

    told = tell(store, allowing("games", "mail"), story)
    assert told.ends == [(100, RunResult.REFUSED), (100, RunResult.RELEASED)]
    assert told.world.log == [("SIGTERM", 100)]


def test_a_look_that_a_reload_interrupts_is_not_carried_over(store: Store) -> None:
    """KILL-09: the reload comes while those whom the list does not mean are looked at: nobody is passed over."""

    async def story(told: Story) -> None:
        told.world.inner = [lambda _: told.use(allowing("games", "mail"))]
        await told.evaluate()
        await told.evaluate()

    told = tell(store, allowing("games"), story)
    assert told.ends == [(100, RunResult.RELEASED)]


def test_who_is_passed_over_is_decided_anew(store: Store) -> None:
    """KILL-09: a run that has begun on the next one ends before its step, if the configuration changes meanwhile."""

    async def story(told: Story) -> None:
        await told.evaluate()
        told.world.events = [lambda _: told.use(allowing("games", "mail"))]
        await told.evaluate()

    told = tell(store, allowing("games"), story)
    assert told.ends == [(101, RunResult.REFUSED)]
    assert told.world.log == []


def test_the_same_configuration_passes_over(store: Store) -> None:
    """Without a reload the next one that the list permits is ended."""

    async def story(told: Story) -> None:
        await told.evaluate()
        await told.evaluate()

    assert tell(store, allowing("games"), story).world.log == [("SIGTERM", 101)]


def test_a_dry_run_stands_in_nobodys_way(store: Store) -> None:
    """KILL-10: what was only rehearsed is done at once when it is meant."""

    async def story(told: Story) -> None:
        await told.evaluate()
        assert told.world.log == []
        told.use(allowing("mail"))
        await told.evaluate()

    told = tell(store, allowing("mail"), story, dry_run=True)
    assert told.ends == [(100, RunResult.DRY_RUN), (100, RunResult.RELEASED)]


def test_what_was_done_is_not_forgotten(store: Store) -> None:
    """A process that did not end is not signaled again at once, because somebody reloads."""

    async def story(told: Story) -> None:
        told.world.bodies[100].stubborn = True
        await told.evaluate()
        assert told.world.log == [("SIGTERM", 100)]
        told.use(allowing("mail"))
        await told.evaluate()

    assert tell(store, allowing("mail"), story).world.log == [("SIGTERM", 100)]
