"""Whom an alert is about: by the labels of the result, and by the analysis of its rule."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.core.growth import MemoryKey
from gpuagent.core.identity import ProcessId
from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.remedies.alert_evaluation import AlertEvaluation
from gpuagent_alerts.remedies.safeguards.rule_analysis import UNKNOWN, RuleAnalysis, Subject
from gpuagent_alerts.remedies.snapshot_targets import targets_named
from gpuagent_alerts.remedies.target import Target
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.processes import PLAIN, as_target, running
from tests.alerts.remedies.staging import config, evaluation, let_threads_work, stage

CONTAINER = "c" * 64
GPU = RuleAnalysis()
PROCESS = RuleAnalysis(subject=Subject.PROCESS)
REFUSED = RuleAnalysis("it is none")
ABOUT_FULL = ['alertname="Full"']


def target(pid: int, **fields: object) -> Target:
    """Alice's, in no unit and no container."""
    base = Target(
        id=ProcessId("boot", pid, 100 + pid), key=MemoryKey("GPU-0", pid), gpu_index=0, name=f"name{pid}", uid=1000,
        user="alice", command="train", cgroup="/a", used_bytes=2**30,
    )  # fmt: skip
    return replace(base, **fields)  # type: ignore[arg-type]


TARGETS = (
    target(1),
    target(2, uid=1001, user="bob"),
    target(3, container_id=CONTAINER, proven_names=frozenset({"container"})),
    target(4, container_id=CONTAINER),
)


@pytest.mark.parametrize(
    ("labels", "analysis", "pids"),
    [
        ({}, GPU, [1, 2, 3, 4]),
        # What no sum over processes can be about
        ({"user": "alice"}, GPU, []),
        ({"container_id": CONTAINER}, GPU, []),
        ({"pid": "2"}, PROCESS, [2]),
        ({"pid": "9"}, PROCESS, []),
        # A result that does not have what its expression promises
        ({}, PROCESS, []),
        ({"pid": ""}, PROCESS, []),
        ({"pid": "2"}, GPU, []),
        # For ladders without a step that disrupts
        ({"pid": "2"}, REFUSED, [2]),
        ({"process": "name1"}, REFUSED, []),
    ],
)
def test_by_the_grounds(labels: Mapping[str, str], analysis: RuleAnalysis, pids: list[int]) -> None:
    """An alert is about its process or the GPU; one that says more of processes is about nobody."""
    assert [each.pid for each in targets_named(TARGETS, labels, analysis)] == pids


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """On the disk, as the agent has it."""
    return Store(tmp_path / "state.db")


def chosen(
    store: Store, steps: list[object], analysis: RuleAnalysis, own: Mapping[str, str], *result: str
) -> list[str]:
    """Return the names of the processes that a ladder begins with in dry run, the leaker being the smaller of two.

    `own` are labels that the rule writes; `result` are labels of the leaker that the result of the expression has.
    """

    async def story(pids: dict[str, int], user: str) -> list[str]:
        ladder = {"match": ABOUT_FULL, "steps": steps, "victim": "largest"}
        async with stage(config(user, ladders=[ladder], dry_run=True), store, pids) as one:
            known = {"pid": str(pids["leaker"]), "user": user, "uuid": one.uuid, "gpu": "0"}
            labels = {name: known[name] for name in result}
            alert = Alert({**labels, **own, "alertname": "Full"}, {}, Status.FIRING, 4e9, value=1.0)
            assert one.snapshot is not None
            fires = AlertEvaluation(
                alert, "x", holds=True, measured_seconds=one.snapshot.clock_seconds, since_seconds=math.inf,
                analysis=analysis, result_labels=labels,
            )  # fmt: skip
            await one.service.update_alerts([fires])
            names = {pid: name for name, pid in pids.items()}
            return [names[run.plan.target.pid] for run in one.service.remedies.running]

    with running(PLAIN) as leaker, running(PLAIN) as neighbor:
        pids = {"leaker": leaker.pid, "neighbor": neighbor.pid}
        return asyncio.run(story(pids, as_target(leaker.pid).user))


@pytest.mark.parametrize(
    ("analysis", "own", "result", "names"),
    [
        (GPU, {}, ("uuid", "gpu"), ["neighbor"]),
        (GPU, {"unit": "gpu-team"}, ("uuid", "gpu"), ["neighbor"]),
        (PROCESS, {}, ("uuid", "gpu", "pid"), ["leaker"]),
        (GPU, {"pid": "1"}, ("uuid", "gpu"), []),
        (REFUSED, {}, ("uuid", "gpu"), []),
        (REFUSED, {}, ("uuid", "gpu", "pid"), []),
        (UNKNOWN, {}, ("uuid", "gpu"), []),
    ],
)
def test_on_whom_a_ladder_begins(
    store: Store, analysis: RuleAnalysis, own: Mapping[str, str], result: tuple[str, ...], names: list[str]
) -> None:
    """Labels that the rule writes neither limit nor make the choice, and a refusal of the analysis leaves nobody."""
    assert chosen(store, [{"release_cache": {}}, {"kill": {"wait": 60}}], analysis, own, *result) == names


def test_harmless_steps_need_no_grounds(store: Store) -> None:
    """A ladder that only tells or asks for cached memory is begun on any alert that names its process."""
    assert chosen(store, [{"release_cache": {}}], REFUSED, {}, "uuid", "gpu", "pid") == ["leaker"]


@pytest.mark.parametrize(("about_growth", "ended"), [(False, "released"), (True, "refused")])
def test_a_rule_on_growth_ends_no_process_that_does_not_leak(store: Store, about_growth: bool, ended: str) -> None:
    """What the expression reads reaches the judgment: who acts on growth needs a leak of the very process."""
    alert = Alert({"alertname": "Grows"}, {}, Status.FIRING, 4e9, value=1.0)
    ladder = {"match": ['alertname="Grows"'], "steps": [{"kill": {"wait": 60}}]}

    async def story(pids: dict[str, int], user: str) -> None:
        async with stage(config(user, ladders=[ladder]), store, pids) as one:
            labels = {"pid": str(pids["leaker"]), "uuid": one.uuid, "gpu": "0"}
            about = replace(alert, labels={**labels, **alert.labels})
            for _ in range(400):
                snapshot = await one.rig.tick()
                await one.service.update_snapshot(snapshot)
                analysis = RuleAnalysis(subject=Subject.PROCESS, about_growth=about_growth)
                await one.service.update_alerts([evaluation(about, snapshot.clock_seconds)._replace(analysis=analysis)])
                if one.ended():
                    break
                await let_threads_work()
            assert one.ended() == [ended]

    with running(PLAIN) as leaker, running(PLAIN) as neighbor:
        asyncio.run(story({"leaker": leaker.pid, "neighbor": neighbor.pid}, as_target(leaker.pid).user))
        assert neighbor.poll() is None
        assert (leaker.poll() is None) is about_growth
