"""What the other lives of a service say of a leak, who may say it, and how long it is remembered."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuagent.core.clock import ManualClock
from gpuagent.core.growth import Evidence, Growth, Verdict
from gpuagent_alerts.leak.blocks import PAGE_BYTES
from gpuagent_alerts.leak.course import LIVES_ROSE
from gpuagent_alerts.leak.detector import MemoryLeakDetector
from gpuagent_alerts.leak.histories import COMPARING_TURNS
from gpuagent_alerts.leak.lives import LifeSoFar, Lives, Service, ServiceKey, ServiceMemory, service_of
from gpuagent_alerts.leak.sensor import LeakDetection
from gpuagent_alerts.leak.settings import Sensitivity
from gpuagent_alerts.leak.witnesses import NOTHING_KNOWN, Prior
from gpuagent_alerts.store.database import Store
from tests.alerts.leak.curves import GIB, HOUR, MIB, Change, Curve, detector, first, leak, plateau, show
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


def words_of(watched: MemoryLeakDetector, curve: Curve, until: float) -> list[Change]:
    """Every word of a detector, also where the verdict stays."""
    words: list[Change] = []
    for tick in range(int(until / 15)):
        used = curve(15.0 * tick) * MIB
        if used >= 80 * GIB:
            break
        said = watched.update(15.0 * tick, used, 80 * GIB - used)
        if not words or said is not words[-1].growth:
            words.append(Change(15.0 * tick, said))
    return words


# ---- what it changes -------------------------------------------------------------------------------------


def test_a_cache_that_stopped_before_is_held_back() -> None:
    """LEAK-01: growth to where an earlier life levelled off is growth; beyond it, it is a leak."""
    watched = detector()
    watched.use_prior(Prior(level_used=int(60_000 * MIB) // PAGE_BYTES))
    words = words_of(watched, leak(2), 9 * HOUR)
    told = first(words, Verdict.LEAKING)
    plain = first(show(detector(), leak(2), 9 * HOUR, every=15), Verdict.LEAKING)

    assert plain is not None
    assert told is not None
    assert leak(2)(plain) < 50_000
    assert 60_000 < leak(2)(told) < 68_000
    held = next(one.growth for one in words if one.seconds > plain + 60)
    assert held.verdict is Verdict.GROWING
    assert held.reasons[-1] == "an earlier life of this service levelled off at 58.6 GiB"


def test_after_a_life_that_leaked_growth_is_enough() -> None:
    """LEAK-02: the second life is told earlier than the first, and a strict sensitivity waits all the same."""
    once, again, strict = detector(), detector(), detector("strict")
    for each in (again, strict):
        each.use_prior(Prior(leaked=True, exhausted=True))
    plain, sooner, strictly = (
        first(show(each, leak(2), 9 * HOUR, every=15), Verdict.LEAKING) for each in (once, again, strict)
    )

    assert plain is not None
    assert strictly is not None
    assert sooner is not None
    assert sooner < plain - 0.5 * HOUR
    assert strictly >= plain


def test_after_lives_that_were_cut_short_a_rise_is_enough() -> None:
    """A service that dies every 12 min is named in its next life, by `balanced`, and not where that waits or is off."""
    balanced, strict, later = detector(), detector("strict"), detector()
    for each, ended in ((balanced, 0.0), (strict, 0.0), (later, -700.0)):
        each.use_prior(Prior(cut_short_seconds=ended))
    words = words_of(balanced, leak(40, begin=20), 720)
    told = next(one for one in words if one.growth.verdict is Verdict.LEAKING)

    assert told.seconds < 660
    assert told.growth.evidence is Evidence.BALANCED
    assert not told.growth.confirmed
    assert told.growth.forecast_seconds is not None
    assert told.growth.reasons == ("it rises evenly, as each of the lives before did until it was restarted",)
    assert first(words_of(strict, leak(40, begin=20), 720), Verdict.LEAKING) is None
    assert first(words_of(later, leak(40, begin=20), 720), Verdict.LEAKING) is None
    assert (balanced.life().rises, balanced.life().leaks, balanced.life().full) == (True, False, True)
    assert later.life().rises


def night(hours: float) -> Curve:
    """20 GiB that are taken ever more slowly, and nearly all of them after so many hours."""
    return lambda seconds: round(20_000 + 20_000 * (1 - math.exp(-3 * seconds / 3600 / hours)))


@pytest.mark.parametrize(
    ("curve", "prior", "sensitivity", "told", "rose"),
    [
        (night(40), Prior(leaked=True), "balanced", True, True),
        (night(40), Prior(leaked=True), "sensitive", True, True),
        (night(40), Prior(leaked=True), "strict", False, True),
        (night(40), NOTHING_KNOWN, "balanced", False, True),
        (night(40), Prior(leaked=True, level_used=30_000 * MIB // PAGE_BYTES), "balanced", False, True),
        (night(8), NOTHING_KNOWN, "balanced", False, False),
        (lambda seconds: 20_000 + round(3000 * seconds / 86_400), Prior(leaked=True), "balanced", False, False),
    ],
)
def test_a_life_that_rises_as_those_before_did(
    curve: Curve, prior: Prior, sensitivity: Sensitivity, told: bool, rose: bool
) -> None:
    """LEAK-02: a leak that each night cuts short is told; no cache that is full by noon, and no little growth."""
    watched = detector(sensitivity)
    watched.use_prior(prior)
    words = words_of(watched, curve, 24 * HOUR)
    leaks = [one for one in words if LIVES_ROSE in one.growth.reasons]

    assert bool(leaks) is told
    assert watched.life().rose is rose
    for one in leaks:
        assert (one.growth.verdict, one.growth.evidence) == (Verdict.LEAKING, Evidence.BALANCED)
        assert one.growth.forecast_seconds is not None
        assert not one.growth.confirmed


@pytest.mark.parametrize(
    ("prior", "sensitivity", "curve", "begin", "until"),
    [
        (Prior(leaked=True), "balanced", leak(30, begin=20), 480, 600),
        (Prior(leaked=True), "sensitive", leak(30, begin=20), 480, 600),
        (Prior(leaked=True), "strict", leak(30, begin=20), None, 700),
        (NOTHING_KNOWN, "balanced", leak(30, begin=20), None, 700),
        # An earlier life has levelled off: it may do so again.
        (Prior(level_used=9, leaked=True), "balanced", leak(30, begin=20), None, 700),
        # A model is loaded for 5 min, and the requests after that fill a cache for two more.
        (Prior(leaked=True), "balanced", plateau(100, 30_000, begin=0), None, 3000),
        (Prior(leaked=True), "balanced", lambda at: min(20_000 + 100 * at, 50_000 + 20 * min(at, 420)), None, 3000),
        # It would be full in hours: there is time for the usual proof.
        (Prior(leaked=True), "balanced", leak(4, begin=20), None, 700),
    ],
)
def test_a_known_leaker_has_its_forecast_in_minutes(
    prior: Prior, sensitivity: Sensitivity, curve: Curve, begin: float | None, until: float
) -> None:
    """What leaked until its end in an earlier life is told by pace and room, past the time in which models load."""
    watched = detector(sensitivity)
    watched.use_prior(prior)
    words = words_of(watched, curve, until)
    told = next((one for one in words if one.growth.verdict is Verdict.LEAKING), None)

    if begin is None:
        assert told is None
        return
    assert told is not None
    assert begin <= told.seconds < until
    left = (80 * 1024 - curve(told.seconds)) * MIB
    assert told.growth.forecast_seconds == pytest.approx(left / (30 * MIB), rel=0.1)
    assert told.growth.evidence is Evidence.BALANCED
    assert told.growth.reasons == ("it rises evenly, and an earlier life of this service leaked until its end",)
    assert not watched.life().leaks


def test_the_pace_of_a_second_life_is_without_its_load() -> None:
    """A model that is loaded for 4 min makes no forecast of minutes for the leak that follows."""
    watched = detector()
    watched.use_prior(Prior(leaked=True))
    words = words_of(watched, lambda at: 15 * at + 100 * min(at, 240), 720)
    told = next(one.growth for one in words if one.growth.verdict is Verdict.LEAKING)

    assert told.slope is not None
    assert told.slope.value == pytest.approx(15 * MIB, rel=0.05)


@pytest.mark.parametrize(
    ("prior", "taken"), [(NOTHING_KNOWN, 0.5), (Prior(leaked=True, exhausted=True), 0.44), (Prior(replicas=1), 0.44)]
)
def test_more_than_one_witness(prior: Prior, taken: float) -> None:
    """A leak is confirmed by an earlier life, by a replica, or once half of what was free is gone in a day."""
    watched = detector()
    watched.use_prior(prior)
    changes = words_of(watched, leak(2), 9 * HOUR)
    confirmed = next(one.seconds for one in changes if one.growth.confirmed)

    room = 80 * 1024 - 20_000
    share = (leak(2)(confirmed) - 20_000) / room
    assert taken <= share < taken + 0.06
    assert all(one.growth.grade is Evidence.CONFIRMED for one in changes if one.growth.confirmed)


@pytest.mark.slow
def test_a_cache_of_a_third_is_never_confirmed() -> None:
    """LEAK-01: what takes a third of the free memory over three days, and stops, is told with one witness at most."""
    fill = plateau(20_000 / (72 * 3600), 20_000)
    changes = words_of(detector("sensitive"), fill, 120 * HOUR)

    assert not any(one.growth.confirmed for one in changes)
    assert changes[-1].growth.verdict is not Verdict.LEAKING


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
