"""Which sensitivity holds for a process: the first override that matches, and an app only ever lowers its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from gpuagent.config.leaks import LeakOverride, OverrideMatch
from gpuagent.core.clock import ManualClock
from gpuagent.core.growth import Verdict
from gpuagent.core.identity import ProcessId
from gpuagent.core.snapshot import ClientReading, ProcessInfo, Snapshot
from gpuagent_alerts.leak.detector import MemoryLeakDetector
from gpuagent_alerts.leak.histories import CLIENT_BACK_SECONDS
from gpuagent_alerts.leak.overrides import Choice, choose, matches
from gpuagent_alerts.leak.sensor import LeakDetection
from gpuagent_alerts.leak.settings import DIALS, SENSITIVITIES, Dial
from gpuagent_alerts.store.database import Store
from tests.agent.config.loading import keys_of
from tests.fakes.detectors import FakeDetectors
from tests.fakes.readings import BOOT_ID, gpu, process, snapshot

CONTAINER: Final = "0123456789abcdef" * 4


def override(sensitivity: Dial, **match: str) -> LeakOverride:
    """Return one as the configuration gives it."""
    return LeakOverride(match=OverrideMatch(**match), sensitivity=sensitivity)


def info(pid: int = 7, **given: Any) -> ProcessInfo:
    """Return a process of a unit and a user of this machine."""
    known: dict[str, Any] = {
        "name": "whisper", "uid": 1000, "user": "alice", "unit": "whisper.service", "on_host": True,
        "proven_names": frozenset({"unit"}),
    }  # fmt: skip
    return ProcessInfo(ProcessId(BOOT_ID, pid, 1000), **{**known, **given})


def client(app: str, pid: int = 7, start: int = 1000) -> ClientReading:
    """Return an app that says what it is called."""
    return ClientReading(ProcessId(BOOT_ID, pid, start), app)


NAMES: Final = st.sampled_from(["a", "b"])
PROCESSES: Final = st.builds(
    info,
    name=NAMES,
    user=NAMES,
    unit=st.sampled_from(["a.service", "b.service", ""]),
    on_host=st.booleans(),
    container_id=st.sampled_from(["", CONTAINER]),
    proven_names=st.sets(st.sampled_from(["unit", "container"])).map(frozenset),
)
CLIENTS: Final = st.none() | st.builds(client, NAMES, start=st.sampled_from([1000, 2000]))
MATCHES: Final = st.builds(
    OverrideMatch,
    app=st.none() | NAMES,
    user=st.none() | NAMES,
    unit=st.none() | st.sampled_from(["a.service", "b.service"]),
    process_name=st.none() | NAMES,
    container=st.none() | st.sampled_from([CONTAINER, CONTAINER[:12], "web"]),
)
OVERRIDES: Final = st.lists(
    st.builds(lambda match, dial: LeakOverride(match=match, sensitivity=dial), MATCHES, st.sampled_from(DIALS)),
    max_size=6,
)


@given(OVERRIDES, st.sampled_from(SENSITIVITIES), PROCESSES, CLIENTS)
def test_the_first_that_matches(
    overrides: Sequence[LeakOverride], default: Any, process: ProcessInfo, told: ClientReading | None
) -> None:
    """Without a word of the app's, it is the first override that matches, else the node's."""
    plain = [each for each in overrides if each.match.app is None]
    first = next((place for place, each in enumerate(plain) if matches(each.match, process, told)), None)
    wanted = Choice(default) if first is None else Choice(plain[first].sensitivity, first)
    assert choose(plain, default, process, told) == wanted


@given(OVERRIDES, st.sampled_from(SENSITIVITIES), PROCESSES, CLIENTS)
def test_what_an_app_says_only_lowers(
    overrides: Sequence[LeakOverride], default: Any, process: ProcessInfo, told: ClientReading | None
) -> None:
    """Whatever name it gives itself, the sensitivity is never above what holds of a process that says nothing."""
    silent = choose(overrides, default, process, None)
    spoken = choose(overrides, default, process, told)
    assert DIALS.index(spoken.sensitivity) <= DIALS.index(silent.sensitivity)
    if told is None or told.id != process.id:
        assert spoken == silent


@given(MATCHES, PROCESSES, CLIENTS)
def test_all_keys_must_hold(match: OverrideMatch, process: ProcessInfo, told: ClientReading | None) -> None:
    """Each key by itself holds of whatever all of them hold of."""
    keys = keys_of(match)
    alone = [matches(OverrideMatch(**{key: str(value)}), process, told) for key, value in keys.items()]
    assert matches(match, process, told) is all(alone)


def test_names_that_prove_nothing() -> None:
    """A unit that a user may have chosen, a user in a container, and the client of another process match nothing."""
    assert matches(OverrideMatch(unit="whisper.service"), info(), None)
    assert not matches(OverrideMatch(unit="whisper.service"), info(proven_names=frozenset()), None)
    assert not matches(OverrideMatch(user="alice"), info(container_id=CONTAINER), None)
    assert not matches(OverrideMatch(app="a"), info(), client("a", start=2000))
    assert not matches(OverrideMatch(user="alice"), None, None)


class Agent:
    """The leak detector's part of an agent, over fake detectors."""

    def __init__(self, store: Store | None = None, now: float = 1000.0, *overrides: LeakOverride) -> None:
        self.clock = ManualClock(now)
        self.detectors = FakeDetectors()
        self.leaks = LeakDetection(
            "balanced", self.clock, store=store, boot_id=BOOT_ID, detector_type=self.detectors.type, overrides=overrides
        )
        self.leaks.open()
        self.clients: dict[int, ClientReading] = {}

    def tick(self, *pids: int, seconds: float = 1.0) -> Snapshot:
        """Return the snapshot after so long."""
        self.clock.advance(seconds)
        now = self.clock.now()
        rows = [replace_info(pid) for pid in pids]
        seen = snapshot([replace(gpu(), time_seconds=now)], rows, clock_seconds=now)
        return self.leaks.observe(replace(seen, clients=dict(self.clients)))

    def dials(self) -> dict[int, str]:
        """Return by what each process is judged; 0 is nobody's memory."""
        return {one.id.pid: one.detector.sensitivity for one in self.leaks.histories}


def replace_info(pid: int) -> Any:
    """Return a process on the GPU, of a user and a unit of its own."""
    row = process(pid)
    assert row.info is not None
    return row._replace(info=replace(
        row.info, user=f"user{pid}", unit=f"app{pid}.service", on_host=True, proven_names=frozenset({"unit"}),
    ))  # fmt: skip


def test_from_its_first_reading_on() -> None:
    """A process is judged by its override at once; the others, and nobody's memory, as the node is."""
    agent = Agent(None, 1000.0, override("off", unit="app7.service"), override("sensitive", user="user8"))
    agent.tick(7, 8, 9)
    assert agent.dials() == {0: "balanced", 7: "off", 8: "sensitive", 9: "balanced"}


def test_a_reload_keeps_histories() -> None:
    """The same detectors go on, each by its new sensitivity at the next tick; without overrides as the node is."""
    agent = Agent()
    agent.tick(7, 8)
    made = list(agent.detectors.made)
    agent.leaks.use("strict", (override("off", unit="app7.service"),))
    agent.tick(7, 8)
    assert agent.dials() == {0: "strict", 7: "off", 8: "strict"}
    agent.leaks.use("sensitive")
    assert agent.dials() == {0: "sensitive", 7: "sensitive", 8: "sensitive"}
    agent.tick(7, 8)
    assert agent.detectors.made == made
    assert [len(one.readings) for one in made] == [3, 3, 3]


def test_an_app_that_connects_later() -> None:
    """Its name counts within the time of a sweep, for its own process alone; so does its end."""
    agent = Agent(None, 1000.0, override("off", app="thumbs"))
    agent.tick(7, 8)
    row = replace_info(7)
    agent.clients[7] = ClientReading(row.info.id, "thumbs")
    for _ in range(16):
        agent.tick(7, 8)
    assert agent.dials() == {0: "balanced", 7: "off", 8: "balanced"}
    agent.clients.clear()
    for _ in range(16):
        agent.tick(7, 8)
    assert agent.dials()[7] == "balanced"


def test_a_restart_waits_for_the_app() -> None:
    """After a restart an app needs a moment to connect: until then its process stays as little sensitive as it was."""
    store = Store(None)
    before = Agent(store, 1000.0, override("off", app="thumbs"))
    before.clients[7] = ClientReading(replace_info(7).info.id, "thumbs")
    before.tick(7)
    assert before.dials()[7] == "off"
    asyncio.run(before.leaks.close())
    after = Agent(store, 1100.0, override("off", app="thumbs"))
    after.detectors.resumed_dial = "off"
    after.tick(7)
    assert after.dials()[7] == "off"
    for _ in range(6):
        after.tick(7, seconds=CLIENT_BACK_SECONDS / 4)
    assert after.dials()[7] == "balanced"


def test_off_is_never_a_leak_and_goes_on_being_watched() -> None:
    """The same growth: leaking at balanced; at off it grows, with its pace and forecast, and nothing more."""
    total = 80 * 2**30
    judged = {dial: MemoryLeakDetector(total_bytes=total, started_seconds=0.0, sensitivity=dial) for dial in DIALS}
    said = {}
    for second in range(0, 7200, 5):
        used = 10 * 2**30 + second * 8 * 2**20
        said = {dial: one.update(float(second), used, total - used) for dial, one in judged.items()}
    assert {dial: growth.verdict for dial, growth in said.items()} == {
        "off": Verdict.GROWING, "strict": Verdict.LEAKING, "balanced": Verdict.LEAKING, "sensitive": Verdict.LEAKING,
    }  # fmt: skip
    assert said["off"].forecast_seconds == said["strict"].forecast_seconds
    judged["off"].use("strict")
    told = [judged["off"].update(7200.0 + second, used, total - used) for second in range(16)]
    assert told[-1].verdict is Verdict.LEAKING
