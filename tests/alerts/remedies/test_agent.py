"""Real children whose GPU memory is simulated, real signals, and the whole way from an alert to memory that is back."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import closing
from pathlib import Path

import pytest

from gpuagent.config.remedy_settings import step_of
from gpuagent.core.clock import ManualClock
from gpuagent.core.metrics.remedies import REMEDY_FAMILIES
from gpuagent.core.snapshot import GpuState
from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.remedies.audit import Audit
from gpuagent_alerts.remedies.audit_rows import INTENT
from gpuagent_alerts.remedies.manual_requests import NoSuchProcess, read_identified
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.processes import IGNORES_TERM, PLAIN, as_target, running
from tests.alerts.remedies.staging import config, evaluation, read, stage

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """On the disk, as the agent has it."""
    return Store(tmp_path / "state.db")


def test_the_leaker_ends_and_the_neighbor_lives(store: Store) -> None:
    """KILL-06: SIGTERM is ignored, SIGKILL is not; the memory is back, the neighbor untouched, all of it on record."""

    async def story(leaker: int, neighbor: int, user: str) -> None:
        async with stage(config(user), store, {"leaker": leaker, "neighbor": neighbor}) as one:
            one.fires(leaker)
            await one.until(lambda: one.ended() == ["released"])
            assert one.held(leaker) == 0
            assert one.held(neighbor) == 8 * 2**30
            (run,) = (await one.service.document())["remedies"]
            assert [step["step"] for step in run["steps"] if step["kind"] == "intent"] == ["SIGTERM", "SIGKILL"]
            assert run["end"]["released_bytes"] >= 4 * 2**30
            names = {family.name for family in REMEDY_FAMILIES if any(True for _ in family.of(one.service.figures()))}
            assert "gpuagent_remedy_end_timestamp_seconds" in names

    with running(IGNORES_TERM) as leaker, running(PLAIN) as neighbor:
        asyncio.run(story(leaker.pid, neighbor.pid, as_target(leaker.pid).user))
        assert leaker.wait(10) == -9
        assert neighbor.poll() is None


def test_dry_run(store: Store) -> None:
    """A dry run ends with a note and a record, and with both processes alive."""

    async def story(leaker: int, user: str) -> None:
        async with stage(config(user, dry_run=True), store, {"leaker": leaker}) as one:
            one.fires(leaker)
            await one.until(lambda: one.ended() == ["dry_run"])

    with running(PLAIN) as leaker:
        asyncio.run(story(leaker.pid, as_target(leaker.pid).user))
        assert leaker.poll() is None


def test_blind_in_the_middle(store: Store) -> None:
    """KILL-02: the GPU cannot be read any more once the first step is taken: nothing further is done."""

    async def story(leaker: int, user: str) -> None:
        async with stage(config(user), store, {"leaker": leaker}) as one:
            one.service.remedies.context = dataclasses.replace(one.service.remedies.context, look_seconds=0.3)
            one.fires(leaker)
            await one.until(lambda: any(run.step is not None for run in one.service.remedies.running))
            one.snapshot = None
            blind = await one.rig.tick()
            gpu = dataclasses.replace(blind.gpus[0], state=GpuState.BLIND, reason="hangs", processes_known=False)
            blind = dataclasses.replace(blind, gpus=(gpu,), processes=())
            while one.service.remedies.running:
                one.rig.clock.advance(1.0)
                await one.service.update_snapshot(blind)
                await one.service.update_alerts([evaluation(one.alerts[0], one.rig.clock.now())])
                await asyncio.sleep(0.005)
            assert one.ended() == ["refused"]

    with running(IGNORES_TERM) as leaker:
        asyncio.run(story(leaker.pid, as_target(leaker.pid).user))
        assert leaker.poll() is None


def test_interrupted(store: Store) -> None:
    """The agent is gone between intent and result: the next start closes the record and repeats nothing."""

    async def first(leaker: int, user: str) -> None:
        async with stage(config(user), store, {"leaker": leaker}) as one:
            one.fires(leaker)
            await one.until(lambda: any(run.id for run in one.service.remedies.running))

    async def second(leaker: int, user: str) -> None:
        async with stage(config(user), store, {"leaker": leaker}) as one:
            (run,) = (await one.service.document())["remedies"]
            assert run["end"]["result"] == "interrupted"
            assert one.ended() == ["interrupted"]
            one.fires(leaker)
            await one.until(lambda: len(one.ended()) == 2)
            assert one.ended() == ["interrupted", "refused"]  # it counts, and the program cools down

    with running(IGNORES_TERM) as leaker:
        user = as_target(leaker.pid).user
        asyncio.run(first(leaker.pid, user))
        asyncio.run(second(leaker.pid, user))
        assert leaker.poll() is None


@pytest.mark.parametrize("steps", [["terminate"], ["release_cache", "restart_unit"]])
def test_told_once_over_a_restart(store: Store, steps: list[str]) -> None:
    """What was refused at the first or at a later step has the same labels after a restart: it is told once."""
    ladder = {
        "match": ['alertname="GpuProcessMemoryLeak"'],
        "steps": [{step: {"wait": 1}} for step in steps],
    }

    async def story(leaker: int, user: str) -> None:
        allow = {"users": [user], **({} if len(steps) > 1 else {"min_memory": "70GiB"})}
        settings = config(user, ladders=[ladder], allow=allow)
        async with stage(settings, store, {"leaker": leaker}) as one:
            one.fires(leaker)
            await one.until(lambda: one.ended() == ["refused"])
            (before,) = one.service.history.recent()
        async with stage(settings, store, {"leaker": leaker}) as one:
            (after,) = one.service.history.recent()
        assert before.step == str(step_of(settings.remedies.ladders[0].steps[-1]))
        assert after._replace(time_seconds=before.time_seconds) == before

    with running(PLAIN) as leaker:
        asyncio.run(story(leaker.pid, as_target(leaker.pid).user))
        assert leaker.poll() is None


def test_by_hand(store: Store) -> None:
    """A person's kill goes through the same refusals; --force lifts the allow list, and the caller is on record."""

    async def story(leaker: int) -> None:
        async with stage(config("nobody-else"), store, {"leaker": leaker}) as one:
            shown = read_identified(one.shown(leaker))
            with pytest.raises(NoSuchProcess):
                await one.service.kill(1, [], read_identified(one.shown(1)), uid=0, force=True, dry_run=False)
            with pytest.raises(NoSuchProcess, match="is on GPU 7"):
                await one.service.kill(leaker, [], shown, uid=0, force=True, dry_run=False, gpu="7")
            steps = list(one.service.settings.ladders[0].steps)
            for force, result in ((False, "refused"), (True, "released")):
                kill = asyncio.create_task(one.service.kill(leaker, steps, shown, uid=0, force=force, dry_run=False))
                await one.until(kill.done)
                assert (await kill)["result"] == result
            runs = (await one.service.document())["remedies"]
            assert {run["asked_by"] for run in runs} == {"root (uid 0)"}

    with running(PLAIN) as leaker:
        asyncio.run(story(leaker.pid))
        assert leaker.wait(10) == -15


def test_a_budget(store: Store) -> None:
    """An alert on a budget names a GPU and no process: the largest of those that count towards it is chosen."""

    async def story(leaker: int, neighbor: int, user: str) -> None:
        ladder = {"match": ['alertname="GpuBudgetExceeded"'], "victim": "largest", "steps": [{"kill": {"wait": 60}}]}
        settings = read({
            "budgets": [{"name": "b", "match": {"user": user}, "memory": "6GiB"}],
            "remedies": {"dry_run": False, "allow": {"users": [user]}, "ladders": [ladder], "proof": 20},
        })  # fmt: skip
        async with stage(settings, store, {"leaker": leaker, "neighbor": neighbor}) as one:
            (use,) = one.service.figures().budgets
            assert (use.limit_bytes, use.used_bytes > 12 * 2**30) == (6 * 2**30, True)
            labels = {"alertname": "GpuBudgetExceeded", "budget": "b", "gpu": "0", "uuid": one.uuid}
            one.alerts = [Alert(labels, {}, Status.FIRING, 4e9, value=1.0)]
            await one.until(lambda: one.ended() == ["released"])
            one.alerts = []
            await one.tick()

    with running(PLAIN) as leaker, running(PLAIN) as neighbor:
        asyncio.run(story(leaker.pid, neighbor.pid, as_target(leaker.pid).user))
        assert neighbor.wait(10) == -9
        assert leaker.poll() is None


def test_a_budget_whose_label_is_not_its_own(store: Store) -> None:
    """KILL-01: where a label is that of two budgets, or of none, nobody is known to exceed it and nobody is chosen."""

    async def story(leaker: int, user: str) -> None:
        ladder = {"match": ['alertname="GpuBudgetExceeded"'], "victim": "largest", "steps": [{"kill": {"wait": 60}}]}
        settings = read({
            "budgets": [{"name": "b", "match": {"user": user}, "memory": "1GiB"}],
            "remedies": {"dry_run": False, "allow": {"users": [user]}, "ladders": [ladder], "proof": 20},
        })  # fmt: skip
        (budget,) = settings.budgets
        for budgets in ((budget, budget), ()):
            twice = dataclasses.replace(settings, budgets=budgets)
            async with stage(twice, store, {"leaker": leaker}) as one:
                labels = {"alertname": "GpuBudgetExceeded", "budget": "b", "gpu": "0", "uuid": one.uuid}
                one.alerts = [Alert(labels, {}, Status.FIRING, 4e9, value=1.0)]
                for _ in range(10):
                    await one.tick()
                assert one.ended() == []
                assert not one.service.remedies.running

    with running(PLAIN) as leaker:
        asyncio.run(story(leaker.pid, as_target(leaker.pid).user))
        assert leaker.poll() is None


def test_a_file_that_could_not_be_used_at_the_start(tmp_path: Path) -> None:
    """KILL-05: a run that a dead agent left open has its end as soon as the file is used, and is waited for."""
    path = tmp_path / "state.db"

    async def story(leaker: int, user: str) -> None:
        identity = as_target(leaker).id
        with closing(Store(path)) as before:
            audit = Audit(before, ManualClock(), identity.boot_id)
            run = audit.begin({
                "pid": leaker, "start_ticks": identity.start_ticks, "boot_id": identity.boot_id, "gpu": 0,
                "gpu_uuid": "GPU-0", "name": "python", "dry_run": False, "ladder": ["SIGTERM"],
            })  # fmt: skip
            audit.write(run, INTENT, {"step": "SIGTERM", "disrupts": True})
        path.rename(tmp_path / "kept")
        path.mkdir()
        with closing(Store(path)) as store:
            async with stage(config(user), store, {"leaker": leaker}) as one:
                assert one.service.remedies.outstanding == ()
                path.rmdir()
                (tmp_path / "kept").rename(path)
                assert store.heal()
                await one.until(lambda: [each.run for each in one.service.remedies.outstanding] == [run])
                (found,) = (await one.service.document())["remedies"]
                assert found["end"]["result"] == "interrupted"

    with running(PLAIN) as leaker:
        asyncio.run(story(leaker.pid, as_target(leaker.pid).user))
        assert leaker.poll() is None


def test_of_an_ended_alert_nothing_is_withheld(store: Store) -> None:
    """Why nothing is done is true while an alert fires; its end does not repeat it."""

    async def story(leaker: int, user: str) -> None:
        async with stage(config(user), store, {"leaker": leaker}) as one:
            one.fires(leaker)
            (alert,) = one.alerts
            one.service.remedies.withheld.update({alert.fingerprint: (alert, "it is on the never-list")})
            assert one.service.remedy_of(alert) == "nothing is done: it is on the never-list"
            assert one.service.remedy_of(dataclasses.replace(alert, status=Status.RESOLVED)) == ""

    with running(PLAIN) as leaker:
        asyncio.run(story(leaker.pid, as_target(leaker.pid).user))
