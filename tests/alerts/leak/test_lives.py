"""What the other lives of a service say of a leak, who may say it, and how long it is remembered."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent.core.growth import Evidence, Growth, Verdict
from gpuagent_alerts.leak.blocks import PAGE_BYTES
from gpuagent_alerts.leak.histories import COMPARING_TURNS
from gpuagent_alerts.leak.lives import LifeSoFar, Lives, Service, ServiceKey, ServiceMemory, service_of
from gpuagent_alerts.leak.sensor import LeakDetection
from gpuagent_alerts.leak.witnesses import NOTHING_KNOWN, Prior
from gpuagent_alerts.store.database import Store
from tests.alerts.leak.curves import GIB, HOUR, MIB, detector, leak, plateau, show
from tests.fakes.detectors import FakeDetectors
from tests.fakes.readings import BOOT_ID, gpu, process, snapshot

LEAKED = LifeSoFar(9000.0, 0, 0, leaks=True, grows=False, full=False, strongly=True)
EXHAUSTED = LEAKED._replace(full=True)
GREW = LEAKED._replace(leaks=False, grows=True, strongly=False)
QUIET = LifeSoFar(9 * HOUR, 0, 0, leaks=False, grows=False, full=False, strongly=False)
ROSE = QUIET._replace(rose=True)
LEVEL = 40 * GIB // PAGE_BYTES
LEVELLED = QUIET._replace(level_used=LEVEL)
VLLM = Service(ServiceKey("unit vllm.service", "vllm", 80 * GIB), 1, "unit vllm.service")


def name_of(**info: Any) -> tuple[str, int] | None:
    """Whose life a process is."""
    known = process(1, **info).info
    assert known is not None
    service = service_of(known, 80 * GIB)
    return None if service is None else (service.key.owner, service.version)


# ---- who a service is ------------------------------------------------------------------------------------


def test_a_unit_counts_where_only_root_can_have_chosen_it() -> None:
    """A unit that a user could have chosen tells nothing of another user's service."""
    proven, claimed = (
        name_of(unit="vllm.service", proven_names=names) for names in (frozenset({"unit"}), frozenset[str]())
    )

    assert proven is not None
    assert proven[0] == "unit vllm.service"
    assert claimed is None


def test_a_user_is_known_by_uid_and_command() -> None:
    """The command makes a service of one's own alone, and ports and seeds make no other of it."""
    alice, bob, port, other = (
        name_of(on_host=True, uid=uid, command=command)
        for uid, command in ((1, "serve --port 8001"), (2, "serve --port 8001"), (1, "serve --port 8002"), (1, "train"))
    )

    assert alice == port
    assert len({alice, bob, other}) == 3


def test_pods_of_a_deployment_are_replicas_until_its_next_version() -> None:
    """The name of a pod changes with each life, that of its replica set with each version."""
    proven = {"container_id": "c" * 64, "proven_names": frozenset({"container"})}
    first, replica, update = (
        name_of(container_name=f"ml/llm-{version}-{pod}/server", **proven)
        for version, pod in (("7d9f8c6b5", "x2x9z"), ("7d9f8c6b5", "k8k2q"), ("66d4bbf57", "p4p5w"))
    )

    assert first is not None
    assert update is not None
    assert first == replica
    assert first[0] == update[0] == "container ml/llm/server"
    assert first[1] != update[1]


def test_a_container_without_proof_is_nobody() -> None:
    """A container whose name anybody may have given is no service."""
    assert name_of(container_id="c" * 64, container_name="llm") is None


# ---- what is remembered ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lives", "prior"),
    [
        ([], NOTHING_KNOWN),
        ([LEAKED], Prior(leaked=True)),
        ([EXHAUSTED], Prior(leaked=True, exhausted=True)),
        ([GREW, GREW], NOTHING_KNOWN),
        ([GREW, GREW, GREW], Prior(leaked=True)),
        ([GREW, QUIET, GREW, GREW], NOTHING_KNOWN),
        ([ROSE, ROSE], NOTHING_KNOWN),
        ([ROSE, GREW, ROSE], Prior(leaked=True)),
        ([ROSE, ROSE, LEVELLED, ROSE], Prior(level_used=LEVEL)),
        ([EXHAUSTED, QUIET], Prior(leaked=True, exhausted=True)),
        ([EXHAUSTED, QUIET, QUIET], NOTHING_KNOWN),
        ([EXHAUSTED, LEVELLED], Prior(level_used=LEVEL)),
        ([LEVELLED, LEVELLED._replace(level_used=LEVEL - 9)], Prior(level_used=LEVEL)),
        ([LEVELLED, EXHAUSTED], Prior(level_used=LEVEL, leaked=True, exhausted=True)),
    ],
)
def test_lives_add_up(lives: list[LifeSoFar], prior: Prior) -> None:
    """A leak until the end counts at once, growth that was cut short the third time, and quiet lives end both."""
    memory = ServiceMemory(1)
    for life in lives:
        memory.end_life(life)

    assert memory.prior() == prior


def _rising(begins: float, ends: float, **others: Any) -> LifeSoFar:
    return QUIET._replace(seconds=ends - begins, rises=True, last_seconds=ends, **others)


@pytest.mark.parametrize(
    ("lives", "ended"),
    [
        ([_rising(0, 700), _rising(710, 1400)], None),
        ([_rising(0, 700), _rising(710, 1400), _rising(1410, 2100)], 2100),
        ([_rising(0, 700), _rising(710, 1400), _rising(1410, 2100, level_used=LEVEL)], None),
        ([_rising(0, 700), _rising(0, 700), _rising(0, 701)], None),
        ([_rising(0, 700), _rising(710, 1400), _rising(9000, 9700)], None),
        ([_rising(0, 700), _rising(710, 1400), QUIET, _rising(1410, 2100)], None),
        ([_rising(0, 700), _rising(710, 1400), QUIET._replace(seconds=200), _rising(1710, 2400)], 2400),
    ],
)
def test_lives_that_are_cut_short_add_up(lives: list[LifeSoFar], ended: float | None) -> None:
    """Three restarts while it rose are a witness; workers that end together, runs now and then and a cache are not."""
    memory = ServiceMemory(1)
    for life in lives:
        memory.end_life(life)

    assert memory.prior().cut_short_seconds == ended


def test_jobs_of_a_user_are_not_cut_short() -> None:
    """A command that a user runs again and again ends when it is done, whatever its memory did until then."""
    lives, job = Lives(), VLLM._replace(key=VLLM.key._replace(owner="user 1000 5"))
    for service in (VLLM, job):
        for number in range(3):
            lives.end_life(service, number, _rising(1000 * number, 1000 * number + 900))

    assert lives.prior(VLLM, 9).cut_short_seconds == 2900
    assert lives.prior(job, 9).cut_short_seconds is None


def test_replicas_are_each_others_witnesses() -> None:
    """Also on memory of another size; a process is none for itself on its other GPU, nor once it has ended."""
    lives, small = Lives(), VLLM._replace(key=VLLM.key._replace(total_bytes=24 * GIB))
    for who, service, gpu_name in (("a", VLLM, "0"), ("a", VLLM, "1"), ("b", small, "2")):
        lives.note_life(service, who, LEAKED, gpu_name)
    assert [lives.prior(VLLM, who).replicas for who in ("a", "b", "c")] == [1, 1, 2]
    lives.end_life(VLLM, "a", QUIET, "0")
    assert lives.prior(small, "b").replicas == 1
    lives.end_life(VLLM, "a", QUIET, "1")
    assert lives.prior(small, "b").replicas == 0
    lives.note_life(small, "b", QUIET, "2")
    assert lives.prior(VLLM, "c") == NOTHING_KNOWN


def test_no_process_is_its_own_witness() -> None:
    """One on two GPUs has one life: that it leaves one of them is an earlier life to others alone, and none yet."""
    lives = Lives()
    for gpu_name in ("0", "1"):
        lives.note_life(VLLM, "a", LEAKED, gpu_name)
    assert lives.leave(VLLM, "a", LEAKED, "0")
    assert (lives.prior(VLLM, "a").leaked, lives.prior(VLLM, "b").leaked) == (False, True)
    lives.end_life(VLLM, "a", LEAKED, "0")
    assert not lives.prior(VLLM, "b").leaked
    lives.end_life(VLLM, "a", LEAKED, "1")
    assert lives.prior(VLLM, "b").leaked
    assert lives.rows()[0].leaked == 1


def test_who_is_not_seen_is_no_witness() -> None:
    """A replica on a GPU that is lost may have ended."""
    lives = Lives()
    lives.note_life(VLLM, "a", LEAKED, "0")
    assert lives.prior(VLLM, "b").replicas == 1
    lives.hide(VLLM, "a", "0")
    assert lives.prior(VLLM, "b").replicas == 0


def test_without_a_command_a_users_processes_are_no_replicas() -> None:
    """Every program of a user is called python: only the command tells them apart."""
    assert _replicas(command="") == ""
    assert _replicas(command="", unit="w@0.service", proven_names=frozenset({"unit"})) != ""


def _replicas(**info: Any) -> str:
    known = process(1, **info).info
    assert known is not None
    service = service_of(known, 80 * GIB)
    return "" if service is None else service.replicas


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([{"unit": "w@0.service", "command": "w --gpu 0"}, {"unit": "w@1.service", "command": "w --gpu 1"}], True),
        ([{"unit": "w@a.service", "command": "w a.toml"}, {"unit": "w@b.service", "command": "w b.toml"}], False),
        ([{"unit": "w@0.service", "command": "w llama-7b"}, {"unit": "w@1.service", "command": "w qwen-7b"}], False),
        ([{"unit": "w@0.service", "command": "w llama-7b"}, {"unit": "w@1.service", "command": "w llama-70b"}], False),
        ([{"unit": "w.service", "name": "rank0"}, {"unit": "w.service", "name": "rank1"}], True),
        ([{"unit": "w.service"}, {"unit": "v.service"}], False),
        ([{"container_name": "ml/llm-0/server"}, {"container_name": "ml/llm-1/server"}], True),
        ([{"container_name": "ml/llm-0/server"}, {"container_name": "ml/llm-0/proxy"}], False),
        ([{"command": "serve --port=8001 cuda:0"}, {"command": "serve --port=8002 cuda:1"}], True),
        ([{"command": "serve"}, {"command": "serve", "uid": 7}], False),
        ([{"command": "serve llama:8"}, {"command": "serve llama:70"}], False),
        ([{"command": "serve host:8001"}, {"command": "serve host:8002"}], True),
    ],
)  # fmt: skip
def test_who_is_a_replica(changes: list[dict[str, Any]], expected: bool) -> None:
    """Instances of a template, pods of a stateful set, a user's command with another GPU or port; no other model."""

    def proven(info: dict[str, Any]) -> dict[str, Any]:
        if "container_name" in info:
            return {"container_id": "c" * 64, "proven_names": frozenset({"container"}), **info}
        return {"proven_names": frozenset({"unit"}), "on_host": True, **info}

    one, other = (_replicas(**proven(each)) for each in changes)
    assert one
    assert (one == other) is expected


def test_a_leak_counts_on_memory_of_another_size() -> None:
    """In a larger MIG instance the service is known; a level of another size, or another version, is not."""
    lives, whole = Lives(most=2), VLLM._replace(key=VLLM.key._replace(total_bytes=2 * VLLM.key.total_bytes))
    lives.end_life(VLLM, 1, LEVELLED)
    assert lives.prior(whole, 2) == NOTHING_KNOWN
    lives.end_life(VLLM, 1, EXHAUSTED)
    assert lives.prior(whole, 2) == Prior(leaked=True)
    assert lives.prior(whole._replace(version=2), 2) == NOTHING_KNOWN
    lives.note_life(whole, 2, QUIET)
    assert lives.prior(whole, 2) == Prior(leaked=True)
    again = Lives()
    again.restore(lives.rows())
    assert again.prior(whole, 2) == Prior(leaked=True)
    lives.end_life(whole, 2, QUIET)
    assert lives.prior(whole, 3) == NOTHING_KNOWN
    for number in range(2):
        lives.end_life(VLLM._replace(key=VLLM.key._replace(owner=f"unit {number}")), number, LEAKED)
    assert lives.prior(whole, 3) == NOTHING_KNOWN


def test_a_new_version_begins_anew() -> None:
    """What an earlier version did is no prior, and its last processes do not bring it back."""
    lives, update = Lives(), VLLM._replace(version=2)
    lives.end_life(VLLM, 1, EXHAUSTED)
    assert lives.prior(update, 2) == NOTHING_KNOWN
    lives.note_life(update, 2, QUIET)
    lives.end_life(VLLM, 3, EXHAUSTED)
    assert lives.prior(update, 4) == NOTHING_KNOWN
    assert lives.prior(VLLM, 4) == NOTHING_KNOWN


def test_services_are_bounded() -> None:
    """A user who starts ever more commands makes the agent forget the oldest services, and no more."""
    lives = Lives(most=3)
    for number in range(5):
        lives.end_life(VLLM._replace(key=VLLM.key._replace(owner=f"user {number}")), number, LEAKED)

    assert [row.key.owner for row in lives.rows()] == ["user 2", "user 3", "user 4"]


@pytest.mark.slow
def test_a_life_tells_where_it_levelled_off() -> None:
    """A day without growth is a level; before that, and of what grows, there is none."""
    stopped, grows = detector(), detector()
    show(stopped, plateau(2, 20_000), 24 * HOUR, every=15)
    assert stopped.life().level_used == 0
    show(stopped, plateau(2, 20_000), 50 * HOUR, since=24 * HOUR, every=15)
    show(grows, leak(0.2), 50 * HOUR, every=15)

    assert stopped.life().level_used == 40_000 * MIB // PAGE_BYTES
    assert grows.life()._replace(seconds=0, last_seconds=0) == LEAKED._replace(seconds=0, rose=True)


# ---- through the agent -----------------------------------------------------------------------------------


class Agent:
    """The leak detector's part of an agent, over fake detectors."""

    def __init__(self, store: Store, now: float = 1000.0) -> None:
        self.clock = ManualClock(now)
        self.detectors = FakeDetectors()
        self.leaks = LeakDetection(
            "balanced", self.clock, store=store, boot_id=BOOT_ID, detector_type=self.detectors.type
        )
        self.leaks.open()

    def tick(self, *pids: int, seconds: float = 1.0, command: str = "vllm serve", **owner: Any) -> None:
        """Some seconds later."""
        self.clock.advance(seconds)
        now = self.clock.now()
        unit: dict[str, Any] = owner or {"unit": "vllm.service", "proven_names": frozenset({"unit"})}
        seen = [process(pid, command=command, **unit) for pid in pids]
        self.leaks.observe(snapshot([replace(gpu(), time_seconds=now)], seen, clock_seconds=now))

    def of(self, pid: int) -> Prior:
        """What the detector of a process was told."""
        history = next(one for one in self.leaks.histories if one.id.pid == pid)
        return next(made for made in self.detectors.made if made is history.detector).prior


def test_the_second_life_is_told_of_the_first(tmp_path: Path) -> None:
    """It is also told after a restart of the agent, and until the unit runs another command."""
    agent = Agent(Store(tmp_path / "state.db"))
    agent.tick(7)
    made = agent.detectors.made[-1]
    made.said, made.shown = Growth(Verdict.LEAKING, Evidence.STRICT), EXHAUSTED
    agent.tick(7)
    for _ in range(3):
        agent.tick(seconds=700.0)
    agent.tick(8)
    assert agent.of(8) == Prior(leaked=True, exhausted=True)
    asyncio.run(agent.leaks.close())

    again = Agent(Store(tmp_path / "state.db"))
    again.tick(9)
    assert again.of(9) == Prior(leaked=True, exhausted=True)
    again.tick(10, command="vllm serve --model another")
    assert again.of(10) == NOTHING_KNOWN


def test_the_second_life_is_told_at_once() -> None:
    """A leaker that has left is known to what is started in its place; one that comes back is no earlier life."""
    agent = Agent(Store(None))
    agent.tick(7)
    made = agent.detectors.made[-1]
    made.said, made.shown = Growth(Verdict.LEAKING, Evidence.STRICT), LEAKED
    agent.tick(7, 8)
    assert agent.of(8) == NOTHING_KNOWN
    agent.tick(8)
    agent.tick(8, 9)
    assert [agent.of(pid) for pid in (8, 9)] == [Prior(leaked=True)] * 2
    for _ in range(2 * COMPARING_TURNS):
        agent.tick(7, 8, 9, seconds=15.0)
    assert agent.of(8) == Prior(replicas=1)


@pytest.mark.parametrize("left", [True, False])
def test_a_leaker_that_ends_while_the_agent_is_away_is_an_earlier_life(tmp_path: Path, *, left: bool) -> None:
    """What leaked when the agent was stopped, or had just left, and is not seen again counts; what is, does not."""
    agent = Agent(Store(tmp_path / "state.db"))
    agent.tick(7)
    made = agent.detectors.made[-1]
    made.said, made.shown = Growth(Verdict.LEAKING, Evidence.STRICT), LEAKED
    agent.tick(7)
    if left:
        agent.tick()
    asyncio.run(agent.leaks.close())

    again = Agent(Store(tmp_path / "state.db"), now=1100.0)
    again.detectors.resumed_life = LEAKED
    again.tick(8)
    assert again.of(8) == Prior(leaked=True)
    if not left:
        again.tick(7, 8)
        assert again.of(7) == NOTHING_KNOWN
    else:
        again.tick(8, seconds=3700.0)
        again.tick(8, 9)
    assert [row.leaked for row in again.leaks.histories.lives.rows()] == ([1] if left else [])


def test_replicas_hear_of_each_other() -> None:
    """Within 5 min each process of a unit is told how many others of it leak, and that they do not any more."""
    agent = Agent(Store(None))
    agent.tick(7, 8)
    for made in agent.detectors.made[-2:]:
        made.shown = LEAKED
    for _ in range(2 * COMPARING_TURNS):
        agent.tick(7, 8, seconds=15.0)
    assert [agent.of(pid).replicas for pid in (7, 8)] == [1, 1]
    for made in agent.detectors.made[-2:]:
        made.shown = QUIET
    for _ in range(2 * COMPARING_TURNS):
        agent.tick(7, 8, seconds=15.0)
    assert [agent.of(pid).replicas for pid in (7, 8)] == [0, 0]


def test_a_container_whose_name_is_learned_late_is_told_of_its_lives() -> None:
    """A runtime is asked by a thread of its own, and the kubelet makes its folders after the process has begun."""
    agent = Agent(Store(None))
    named: dict[str, Any] = {
        "container_id": "c" * 64,
        "proven_names": frozenset({"container"}),
        "container_name": "llm",
    }
    nameless = {**named, "container_name": ""}
    agent.tick(7, **nameless)
    made = agent.detectors.made[-1]
    made.said, made.shown = Growth(Verdict.LEAKING, Evidence.STRICT), EXHAUSTED
    agent.tick(7, **named)
    for _ in range(3):
        agent.tick(seconds=700.0)
    agent.tick(8, **named)

    assert agent.of(8) == Prior(leaked=True, exhausted=True)
