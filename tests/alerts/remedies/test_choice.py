"""Who is chosen, who may never be, and who comes next."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpuagent.core.growth import MemoryKey
from gpuagent.core.identity import ProcessId
from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.remedies.manager import RemedyManager
from gpuagent_alerts.remedies.observation import Condition, Observation, RemedyRequest
from gpuagent_alerts.remedies.outcome import RunOutcome, RunResult
from gpuagent_alerts.remedies.plan import Plan
from gpuagent_alerts.remedies.run import LadderRun
from gpuagent_alerts.remedies.safeguards.never_list import NEVER
from gpuagent_alerts.remedies.safeguards.policy import AllowList, Policy
from gpuagent_alerts.remedies.safeguards.victim import VictimPolicy, rank
from gpuagent_alerts.remedies.selection import AlertCandidates
from gpuagent_alerts.remedies.settings import LadderRule
from gpuagent_alerts.remedies.steps import RemedyStep
from gpuagent_alerts.remedies.target import Facts, Target
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.world import BOOT, GIB, KILL, RULES, TERMINATE, World, _identity, context, target

NOW = 100_000.0
"""Seconds since the boot."""


def on_gpu(pid: int, **changes: Any) -> Target:
    """A process of GPU 0 by its pid."""
    started = changes.pop("started_seconds", 10.0)
    return target(pid, id=ProcessId(BOOT, pid, int(started * 100)), key=MemoryKey("GPU-0", pid), **changes)


LARGE = on_gpu(1001, used_bytes=9 * GIB, sm_ratio=0.8)
NEW = on_gpu(1002, used_bytes=1 * GIB, started_seconds=NOW - 60, sm_ratio=0.0, idle_seconds=300.0)
LEAKER = on_gpu(1003, used_bytes=3 * GIB, sm_ratio=0.0, idle_seconds=299.0, leaking=True, slope_bytes_per_second=1e6)
UNKNOWN = on_gpu(1004, used_bytes=8 * GIB, sm_ratio=0.0, idle_seconds=None)


@pytest.mark.parametrize(
    ("policy", "pids"),
    [
        (VictimPolicy.LARGEST, [1001, 1004, 1003, 1002]),
        (VictimPolicy.NEWEST, [1002, 1004, 1003, 1001]),
        (VictimPolicy.LEAKING, [1003]),
        (VictimPolicy.IDLE, [1002]),
    ],
)
def test_ranking(policy: VictimPolicy, pids: list[int]) -> None:
    """KILL-04: by what the policy says; who has not been at 0 % for long enough is not idle. Each has its reason."""
    ranking = rank(policy, [UNKNOWN, LEAKER, NEW, LARGE], NOW)
    assert [candidate.target.pid for candidate in ranking] == pids
    assert all("holds" in candidate.reason for candidate in ranking)


def refusals(
    of: Target,
    step: RemedyStep = KILL,
    policy: Policy = RULES.policy,
    facts: Mapping[str, Any] | None = None,
) -> str:
    """Why it may not be acted on."""
    seen = Facts(
        identity=_identity(of), state="S", threads=1, uids=(of.uid,) * 4, root_user_namespace=True, own_root=False,
        namespace_pids=(of.pid,), user=of.user,
    )  # fmt: skip
    order = RemedyRequest(alert="a", alertname="Full", labels={})
    observation = Observation(1.0, Condition.HOLDS, target=of, target_listed=True)
    changed = replace(seen, **(facts or {}))
    return "; ".join(policy.refusals(step, order, observation, changed, NOW, frozenset({1, 77})))


@pytest.mark.parametrize(
    "name",
    ["systemd", "systemd-journal", "sshd", "Xorg", "gnome-shell", "dockerd", "containerd-shim", "kubelet", "slurmstepd",
     "nvidia-persiste", "nv-fabricmanage", "nv-hostengine", "nvidia-cuda-mps", "dcgm-exporter", "gpuagent", "init",
     "Xvnc", "Xtigervnc", "Xvfb", "Xdcv", "dcvserver", "nxagent", "xpra", "gamescope-wl", "Hyprland", "labwc",
     "kwin_wayland", "cinnamon", "xfwm4", "marco", "compiz", "gnome-remote-desktop-daemon", "gnome-remote-de"],
)  # fmt: skip
def test_never(name: str) -> None:
    """KILL-03: what a node stands on is never acted on, whatever is allowed."""
    assert "never-list" in refusals(target(name=name))
    everything = replace(RULES.policy, allow=AllowList(users=("svc",)))
    assert "never-list" in refusals(target(name=name), policy=everything)


def test_never_by_executable() -> None:
    """KILL-03: a process that has taken another name is still what its executable is."""
    disguised = target(name="python")
    facts = {"identity": replace(_identity(disguised), executable="/usr/bin/nv-hostengine")}
    assert "never-list" in refusals(disguised, facts=facts)


@pytest.mark.parametrize(
    ("of", "facts", "word"),
    [
        (target(77), {}, "ancestors"),
        (target(1), {}, "ancestors"),
        (target(), {"kernel_thread": True}, "kernel thread"),
        (target(), {"oom_score_adjust": -1000}, "oom_score_adj"),
        (target(kinds="CM"), {}, "MPS"),
        (target(user="other"), {}, "allow.users"),
        (target(container_id="c" * 64), {}, "allow.containers"),
    ],
)
def test_refused(of: Target, facts: Mapping[str, object], word: str) -> None:
    """KILL-03: each of these is a reason by itself."""
    assert word in refusals(of, facts=facts)


@pytest.mark.parametrize(
    ("allow", "of", "allowed"),
    [
        (AllowList(), target(), False),
        (AllowList(gpus=("0",)), target(), False),
        (AllowList(users=("svc",)), target(), True),
        (AllowList(users=("svc",), containers=("c" * 12,)), target(), False),
        (AllowList(users=("svc",), gpus=("1",)), target(), False),
        (AllowList(users=("svc",), min_age=1e9), target(), False),
        (AllowList(users=("svc",), min_memory=5 * GIB), target(), False),
        (AllowList(containers=("c" * 12,)), target(container_id="c" * 64), True),
        (AllowList(containers=("c" * 8,)), target(container_id="c" * 64), False),
        (AllowList(units=("a.service",)), target(unit="b.service"), False),
    ],
)
def test_the_allow_list(allow: AllowList, of: Target, allowed: bool) -> None:
    """All keys that are given must hold, and with no name nothing is allowed."""
    why = refusals(of, policy=Policy(allow))
    assert ("allow" not in why) == allowed


def test_nobody_is_refused_for_nothing() -> None:
    """The ordinary case has no reason against it; and no pattern of the never-list takes everything."""
    assert refusals(target()) == ""
    assert "*" not in NEVER


def alert(pid: str = "") -> Alert:
    """About a process, or about GPU 0 as a whole."""
    labels = {"alertname": "Full", "gpu": "0", **({"pid": pid} if pid else {})}
    return Alert(labels, {}, Status.FIRING, 1.7e9)


async def _consider(
    rounds: list[list[AlertCandidates]], world: World, ladder: LadderRule
) -> tuple[RemedyManager, list[str]]:
    ends: list[str] = []

    def told(plan: Plan, run: LadderRun, outcome: RunOutcome, again: bool) -> None:
        ends.append(f"{plan.target.pid} {outcome.result}")

    remedies = RemedyManager([ladder], RULES, context(world, Store(None)), proof_seconds=5.0, on_run_end=told)
    for firing in rounds:
        remedies.consider(firing)
        await remedies.idle()
    return remedies, ends


def ladder(*steps: RemedyStep, victim: VictimPolicy | None = None) -> LadderRule:
    """For every alert, for real."""
    return LadderRule(lambda labels: True, steps or (KILL,), dry_run=False, victim=victim)


def test_the_next_one_only_after_fresh_data() -> None:
    """The first of the ranking is not allowed: the second one is due at the next evaluation, not before."""
    first, second = on_gpu(1001, used_bytes=9 * GIB, user="other"), on_gpu(1002)
    world = World(first, second)
    firing = [AlertCandidates(alert(), NOW, [first, second])]
    _, ends = asyncio.run(_consider([firing], world, ladder(victim=VictimPolicy.LARGEST)))
    assert ends == []
    _, ends = asyncio.run(_consider([firing, firing], World(first, second), ladder(victim=VictimPolicy.LARGEST)))
    assert ends == ["1002 released"]


def test_nobody_where_the_alert_names_nobody() -> None:
    """Without a policy an alert about a GPU ends nobody."""
    world = World(on_gpu(1001))
    _, ends = asyncio.run(_consider([[AlertCandidates(alert(), NOW, [on_gpu(1001)])]], world, ladder()))
    assert ends == []


def test_a_process_that_came_after_the_alert() -> None:
    """KILL-01: the pid of the alert belongs to a process that started later: it is not the one that was meant."""
    late = on_gpu(1001, started_seconds=NOW + 1)
    _, ends = asyncio.run(_consider([[AlertCandidates(alert("1001"), NOW, [late])]], World(late), ladder()))
    assert ends == []


def test_the_same_refusal_is_told_once() -> None:
    """It is tried again after a while, and nobody hears the same twice."""
    stranger = on_gpu(1001)
    world = World(stranger)
    world.bodies[1001].facts_changes = {"uids": (1000, 0, 0, 0)}
    firing = [AlertCandidates(alert("1001"), NOW, [stranger])]

    async def story() -> list[str]:
        ends: list[str] = []
        remedies = RemedyManager(
            [ladder(TERMINATE)], RULES, context(world, Store(None)), proof_seconds=5.0,
            on_run_end=lambda plan, run, outcome, again: None if again else ends.append(outcome.result),
        )  # fmt: skip
        for _ in range(30):
            remedies.consider(firing)
            await remedies.idle()
            world.clock.advance(30)
        assert 2 <= remedies.counts[RunResult.REFUSED, False] <= 8
        return ends

    assert asyncio.run(story()) == [RunResult.REFUSED]


def test_no_second_victim_beside_one_that_cannot_be_killed() -> None:
    """PROC-02: an unkillable process blocks its GPU for remedies until it has ended."""
    stuck, other = on_gpu(1001), on_gpu(1002)
    world = World(stuck, other)
    world.bodies[1001].immortal = True
    rounds = [
        [AlertCandidates(alert("1001"), NOW, [stuck, other])],
        [AlertCandidates(alert("1002"), NOW, [stuck, other])],
    ]

    async def story() -> None:
        remedies, ends = await _consider(rounds, world, ladder())
        assert ends == ["1001 unkillable"]
        world.end(1001)
        remedies.forget_ended()
        remedies.consider(rounds[1])
        await remedies.idle()
        assert ends == ["1001 unkillable", "1002 released"]

    asyncio.run(story())
