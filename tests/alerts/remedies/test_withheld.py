"""An alert that has a ladder and is not acted on says why; and who came late is not chosen, nor anybody instead."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import pytest

from gpuagent.core.identity import ProcessId
from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.remedies.attempts import WithheldLadders
from gpuagent_alerts.remedies.manager import RemedyManager
from gpuagent_alerts.remedies.safeguards.victim import VictimChoice, VictimPolicy
from gpuagent_alerts.remedies.selection import AlertCandidates
from gpuagent_alerts.remedies.settings import LadderRule
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from gpuagent_alerts.remedies.target import Target
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.test_choice import NOW, on_gpu
from tests.alerts.remedies.world import GIB, RULES, World, context

NEW = "it has held the memory for 2 s"
FIRST, SECOND = on_gpu(1001, used_bytes=9 * GIB), on_gpu(1002)
IDLE = on_gpu(1003, idle_seconds=1.0)


def alert(pid: str = "") -> Alert:
    """About a process, or about GPU 0 as a whole."""
    labels = {"alertname": "Full", "gpu": "0", **({"pid": pid} if pid else {})}
    return Alert(labels, {}, Status.FIRING, 1.7e9)


def firing(*processes: Target, pid: str = "", **more: object) -> AlertCandidates:
    """Fires, true since now."""
    return AlertCandidates(alert(pid), NOW, processes, **more)  # type: ignore[arg-type]


def considered(
    *rounds: AlertCandidates, victim: VictimPolicy | None = VictimPolicy.LARGEST, world: World | None = None
) -> tuple[list[str], str]:
    """Consider an alert so many times; return what was done, and why nothing is."""
    world = world or World(FIRST, SECOND)
    ends: list[str] = []
    ladder = LadderRule(lambda _: True, (RemedyStep(StepKind.KILL, 60.0),), dry_run=False, victim=victim)

    async def story() -> str:
        remedies = RemedyManager(
            [ladder], RULES, context(world, Store(None)), proof_seconds=5.0,
            on_run_end=lambda plan, _run, outcome, _again: ends.append(f"{plan.target.pid} {outcome.result}"),
        )  # fmt: skip
        for each in rounds:
            remedies.consider([each])
            await remedies.idle()
        (found,) = remedies.withheld.documents(1.7e9) or [{"reason": "", "since_seconds": 1.7e9}]
        assert found["since_seconds"] == 1.7e9
        assert remedies.withheld.reason(rounds[0].alert.fingerprint) == found["reason"]
        remedies.consider([])
        assert remedies.withheld.documents(0.0) == []
        return str(found["reason"])

    reason = asyncio.run(story())
    return ends, reason


def test_a_newcomer_is_not_chosen_nor_the_next_one() -> None:
    """KILL-01: while the first of the ranking is new nobody is chosen; one further down is in nobody's way."""
    assert considered(firing(FIRST, SECOND, newcomers={FIRST.id: NEW})) == ([], NEW)
    assert considered(firing(FIRST, SECOND, newcomers={SECOND.id: NEW}))[0] == ["1001 released"]


@pytest.mark.parametrize(
    ("newcomers", "target", "passed_over", "objects"),
    [
        ({}, FIRST, (), False),
        ({FIRST.id: NEW}, FIRST, (), True),
        ({FIRST.id: NEW}, SECOND, (FIRST.id,), True),
        ({SECOND.id: NEW}, SECOND, (FIRST.id,), True),
        ({SECOND.id: NEW}, FIRST, (), False),
    ],
)
def test_the_same_right_before_acting(
    newcomers: Mapping[ProcessId, str], target: Target, passed_over: tuple[ProcessId, ...], objects: bool
) -> None:
    """KILL-01: the choice is not renewed while the chosen one, or one before it, has not been there for long enough."""
    choice = VictimChoice((FIRST.id, SECOND.id), newcomers=newcomers)
    assert choice.objection(VictimPolicy.LARGEST, target, passed_over) == (NEW if objects else "")


@pytest.mark.parametrize(
    ("what", "victim", "reason"),
    [
        (firing(FIRST, objection="the data behind the alert is missing"), None, "data behind the alert is missing"),
        (firing(FIRST), None, "`victim`"),
        (firing(nobody="its rule is no reason"), VictimPolicy.LARGEST, "its rule is no reason"),
        (firing(), VictimPolicy.LARGEST, "no process on the GPU"),
        (firing(IDLE), VictimPolicy.IDLE, "observed at 0 %"),
        (firing(FIRST), VictimPolicy.LEAKING, "leaks"),
        (firing(FIRST, pid="99"), None, "pid 99 is not among"),
        (firing(on_gpu(1001, started_seconds=NOW + 1), pid="1001"), None, "had become true"),
    ],
)
def test_nobody_is_chosen_and_it_says_why(what: AlertCandidates, victim: VictimPolicy | None, reason: str) -> None:
    """A ladder that is not begun has a reason for as long as its alert fires."""
    ends, found = considered(what, victim=victim)
    assert ends == []
    assert reason in found


def test_what_was_tried() -> None:
    """After a refusal the reason says what it was, and when the next try is due; a ladder that is begun has none."""
    world = World(on_gpu(1001))
    world.bodies[1001].facts_changes = {"uids": (1000, 0, 0, 0)}
    what = firing(on_gpu(1001), pid="1001")
    ends, reason = considered(what, what, victim=None, world=world)
    assert ends == ["1001 refused"]
    assert "pid 1001 was tried" in reason
    assert "the next try is due in 1 min" in reason
    assert considered(firing(FIRST))[1] == ""


def test_a_reason_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """How long something still takes is no other reason; another pid is."""
    caplog.set_level(logging.INFO)
    seconds = [100.0]
    withheld = WithheldLadders(lambda: seconds[0])
    for reason in ("pid 7 in 4 min 5 s", "pid 7 in 59 s", "pid 8 in 58 s"):
        withheld.update({"f": (alert(), reason)})
        seconds[0] += 1
    texts = [each.getMessage() for each in caplog.records]
    assert texts == [f"nothing is done about Full (gpu 0): {text}" for text in ("pid 7 in 4 min 5 s", "pid 8 in 58 s")]
    (document,) = withheld.documents(1000.0)
    assert document["since_seconds"] == 999.0
