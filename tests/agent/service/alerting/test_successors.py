"""What is started in place of a leaker: its own memory decides about the end, and what is waited for is told."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuagent.core.growth import Evidence, Growth, GrowthState, MemoryKey, Range, Verdict
from gpuagent.core.matchers import parse_matcher
from gpuagent.core.snapshot import ProcessInfo, ProcessState, Snapshot
from gpuagent.core.units import GIB
from gpuagent_alerts.messages.briefing import WaitingIncident, find_waiting
from gpuagent_alerts.messages.snapshot_inputs import SnapshotFacts
from gpuagent_exporters.status.problems import find_problems
from tests.agent.service.alerting.stage import TICK_SECONDS, Stage
from tests.fakes.readings import gpu, process, snapshot

MINUTE, HOUR = 60.0, 3600.0
PACE = 40 * GIB / HOUR
"""Bytes a second by which the first process leaks: 0.17 GiB in a tick."""
LEAKING = Growth(
    Verdict.LEAKING, Evidence.BALANCED, Range(PACE, PACE, PACE), since_seconds=1.0, evidence_told=(Evidence.BALANCED,)
)
STEADY, LEARNING = Growth(Verdict.STEADY), Growth(Verdict.LEARNING)
UNIT, JOB = {"unit": "api.service"}, {"slurm_job": "77"}


class Story:
    """A node of two GPUs on which one owner's processes come, grow and go."""

    def __init__(self, path: Path, **owner: Any) -> None:
        self.stage = Stage(path / "state")
        self.owner = owner
        self._born: dict[int, ProcessInfo | None] = {}

    def seen(self, used_gib: float, growth: Growth, *pids: int, gpu_index: int = 0) -> Snapshot:
        """These processes, each with so much memory: of several, each on a GPU of its own."""
        processes = []
        for place, pid in enumerate(pids):
            started = self.stage.clock.wall() - 2 * MINUTE
            own = process(
                pid, gpu_index=gpu_index + place, used_gib=used_gib, process_group=pid, start_time_seconds=started,
                **self.owner,
            )  # fmt: skip
            processes.append(own._replace(info=self._born.setdefault(pid, own.info)))
        gpus = [gpu(index, used_gib=1.0 + used_gib * (0 <= index - gpu_index < len(pids))) for index in range(4)]
        said = {MemoryKey(f"GPU-{gpu_index + place:08d}", pid): growth for place, pid in enumerate(pids)}
        whole = {MemoryKey(key.gpu_uuid): growth for key in said if growth is LEAKING}
        return replace(snapshot(gpus, processes), growth=said | whole)

    def leak(self, *pids: int) -> None:
        """Let these leak until somebody is told, and end."""
        self.stage.show(self.seen(10.0, LEARNING, *pids), 30.0)
        self.stage.show(self.seen(12.0, LEAKING, *pids), 5 * MINUTE)
        assert self.news()[-1:] == ["began"]

    def leak_to_the_wall(self, pid: int) -> None:
        """Let it leak until the first GPU is full in minutes."""
        self.stage.show(self.seen(10.0, LEARNING, pid), 30.0)
        leaking, wall = self.seen(22.0, LEAKING, pid), replace(LEAKING, exhaustion=Range(300.0, 200.0, 400.0))
        self.stage.show(replace(leaking, growth={**leaking.growth, MemoryKey("GPU-00000000"): wall}), 5 * MINUTE)

    def pause(self, seconds: float) -> None:
        """Let nothing run."""
        self.stage.show(self.seen(0.0, LEARNING), seconds)

    def run(
        self,
        seconds: float,
        used_gib: Callable[[float], float],
        growth: Growth,
        pids: Sequence[int],
        gpu_index: int = 0,
    ) -> None:
        """Let these run, with memory by the seconds that passed."""
        passed = 0.0
        while passed < seconds:
            passed += TICK_SECONDS
            self.stage.show(self.seen(used_gib(passed), growth, *pids, gpu_index=gpu_index))

    def news(self) -> list[str]:
        """Every message so far."""
        return [one.news for one in self.stage.heard]

    def shown(self) -> list[WaitingIncident]:
        """What the surfaces show beside alerts."""
        stage = self.stage
        labels = {one.fingerprint: one.labels for one in stage.firing()}
        present = {one.fingerprint for one in stage.firing() if one.holds}
        kept = {one.fingerprint: one for one in stage.kept()}
        assert stage.briefings.snapshot is not None
        stirring = stage.notifier.about_to_fire(stage.pending(), SnapshotFacts(stage.briefings.snapshot))
        return find_waiting(stage.notifier, stage.briefings, present, stage.clock.wall(), labels, stirring, kept)

    def waiting(self) -> list[WaitingIncident]:
        """Those of which a restart is waited for, or a verdict on what was started."""
        return [one for one in self.shown() if one.for_restart]


def rising(gib_per_hour: float, start: float = 3.0) -> Callable[[float], float]:
    """Memory that rises from its start, with the noise of an allocator."""
    return lambda passed: start + gib_per_hour * passed / HOUR + 0.3 * (passed % 60.0 == 0)


def flat(passed: float) -> float:
    """Memory that is loaded in two minutes, and is noisy then."""
    return min(3.0 + passed / 10.0, 15.0) + 0.3 * (passed % 60.0 == 0)


@pytest.mark.slow
@pytest.mark.parametrize(("gib_per_hour", "minutes"), [(12.0, 60.0), (40.0, 20.0), (140.0, 7.0)])
@pytest.mark.parametrize("verdict", [STEADY, LEARNING])
def test_while_a_successor_grows_nothing_is_resolved(
    tmp_path: Path, gib_per_hour: float, minutes: float, verdict: Growth
) -> None:
    """The detector's verdict on a young process is no proof; neither is the time that has passed."""
    story = Story(tmp_path, **UNIT)
    story.leak(100)
    story.pause(10.0)
    story.run(minutes * MINUTE, rising(gib_per_hour), verdict, [200])

    assert story.news() == ["began", "restarted"]
    (waiting,) = story.waiting()
    for line in (waiting.headline, story.stage.headlines()[-1]):
        assert line.startswith("WARNING node7 GPU 0: api.service was restarted once and runs as pid 200, with ")
        assert "and grows again: " in line
    began, again = (one.written_at or 0.0 for one in story.stage.messages)
    assert again - began == pytest.approx(10 * MINUTE, rel=0, abs=15.0), "5 min after its start: it may load a model"


@pytest.mark.parametrize("owner", [UNIT, JOB])
def test_a_successor_that_loads_a_model_and_is_flat_then(tmp_path: Path, owner: dict[str, Any]) -> None:
    """Its end is told once that was measured for some minutes, and says so."""
    story = Story(tmp_path, **owner)
    story.leak(100)
    story.run(4 * MINUTE, flat, STEADY, [200])
    assert story.news() == ["began"]
    story.run(4 * MINUTE, lambda _: 15.0, STEADY, [200])

    assert story.news() == ["began", "ended"]
    assert story.stage.headlines()[-1].endswith(
        "was restarted once and runs as pid 200, with 15.0 GiB, and has not grown for 3 min"
    )
    assert story.waiting() == []


def test_a_successor_that_grows_much_slower(tmp_path: Path) -> None:
    """It is waited for 15 min; the end says that it grows, and never that it is steady."""
    story = Story(tmp_path, **UNIT)
    story.leak(100)
    story.run(14 * MINUTE, rising(4.0), STEADY, [200])
    assert story.news() == ["began", "restarted"]
    story.run(5 * MINUTE, rising(4.0, start=3.0 + 4.0 * 14 / 60), STEADY, [200])

    assert story.news() == ["began", "restarted", "ended"]
    assert "and grows 4.0 GiB/h" in story.stage.headlines()[-1]


@pytest.mark.slow
def test_a_slow_leak_is_measured_for_as_long_as_it_needs_to_show(tmp_path: Path) -> None:
    """At 1 GiB/h three minutes are nothing: seven and a half are what an eighth of a GiB takes."""
    story = Story(tmp_path, **UNIT)
    slow = GIB / HOUR
    leaking = replace(LEAKING, slope=Range(slow, slow, slow))
    story.stage.show(story.seen(12.0, leaking, 100), 5 * MINUTE)
    story.run(HOUR, rising(1.0), STEADY, [200])

    assert story.news() == ["began", "restarted"]


@pytest.mark.slow
def test_ranks_are_looked_at_each_and_added_up(tmp_path: Path) -> None:
    """Each rank grows by less than a quarter of what the job leaked, all together by as much."""
    story = Story(tmp_path, **JOB)
    story.leak(100, 101, 102, 103)
    story.pause(15.0)
    story.run(20 * MINUTE, rising(15.0), STEADY, [200, 201, 202, 203])
    assert story.news() == ["began", "restarted"]
    (waiting,) = story.waiting()
    assert "Slurm job 77 was restarted once and runs as 4 processes, with " in waiting.headline
    story.run(6 * MINUTE, lambda _: 8.0, STEADY, [200, 201, 202, 203])

    assert story.news() == ["began", "restarted", "ended"]
    assert story.stage.headlines()[-1].endswith(
        "Slurm job 77 was restarted once and runs as 4 processes, with 32.0 GiB together, and has not grown for 3 min"
    )


def test_a_job_that_moves_to_another_gpu_is_one_incident(tmp_path: Path) -> None:
    """The successor on GPU 1 holds back the end of what happened on GPU 0, and goes on under the same key.

    Once it grows, all that is said is of GPU 1: who looks at the other finds it healthy.
    """
    story = Story(tmp_path, **JOB)
    story.leak(100)
    story.run(MINUTE, rising(40.0), STEADY, [200], gpu_index=1)
    (waiting,) = story.waiting()
    assert waiting.headline.startswith("WARNING node7 GPU 0: ")
    assert " on GPU 1, for " in waiting.headline
    story.run(10 * MINUTE, rising(40.0), STEADY, [200], gpu_index=1)
    (waiting,) = story.waiting()
    assert (waiting.headline[:20], waiting.subject.gpu) == ("WARNING node7 GPU 1:", 1)
    assert story.news() == ["began", "restarted"]
    assert re.fullmatch(
        r"WARNING node7 GPU 1: Slurm job 77 was restarted once and runs as pid 200, with [\d.]+ GiB, "
        r"and grows again: [\d.]+ GiB/h",
        story.stage.headlines()[-1],
    )
    told = story.stage.messages[-1].incident
    assert told is not None
    assert told.labels["uuid"] == "GPU-00000001"
    assert (told.briefing.next_command, [one.pid for one in told.briefing.holders]) == ("gpuagent ps --gpu 1", [200])
    assert told.briefing.links["runbook"].endswith("/GpuProcessMemoryLeak.md")
    story.stage.show(story.seen(15.0, LEAKING, 200, gpu_index=1), 5 * MINUTE)
    assert len(story.stage.keys()) == 1
    story.pause(10 * MINUTE)
    assert story.stage.headlines()[-1].startswith("RESOLVED node7 GPUs 0, 1: ")


def test_one_restart_is_counted_once(tmp_path: Path) -> None:
    """Also where its end was told, and the same successor begins to leak after that."""
    story = Story(tmp_path, **JOB)
    story.leak(100, 101)
    story.run(10 * MINUTE, lambda _: 8.0, STEADY, [200, 201])
    assert story.news() == ["began", "ended"]
    story.stage.show(story.seen(15.0, LEAKING, 200, 201), 5 * MINUTE)

    assert story.news()[:3] == ["began", "ended", "began"]
    assert len(story.stage.keys()) == 1
    assert story.stage.headlines()[-1].endswith("Slurm job 77 was restarted once and grows again")


def test_what_is_waited_for_is_a_problem_with_the_same_words(tmp_path: Path) -> None:
    """While nothing of it is true: `check` and `status` warn, by the incident's own line."""
    story = Story(tmp_path, **UNIT)
    story.leak(100)
    story.pause(45.0)
    (waiting,) = story.waiting()
    assert waiting.headline == (
        "WARNING node7 GPU 0: python3 (alice, pid 100) left the GPU 30 s ago: waiting to see whether it is started "
        "again"
    )
    counted = story.seen(10.0, LEARNING, 100)
    dead = replace(
        counted, processes=tuple(one._replace(state=ProcessState.DEAD, info=None) for one in counted.processes)
    )
    story.stage.show(dead, 15.0)
    (waiting,) = story.waiting()
    assert " ended 45 s ago and still holds 10.0 GiB: waiting to see" in waiting.headline
    seen = story.seen(3.0, LEARNING, 200)
    story.stage.show(seen, 45.0)
    (waiting,) = story.waiting()
    words = (
        "api.service was restarted once and runs as pid 200, with 3.0 GiB, for 2 min 45 s: waiting to see whether it "
        "grows again"
    )
    assert waiting.headline == f"WARNING node7 GPU 0: {words}"
    shown = replace(seen, clock_seconds=0.0, measured_seconds=0.0)
    (problem,) = find_problems(shown, 0.0, firing=[waiting.subject])
    assert (str(problem.severity), problem.gpu, problem.text) == ("warning", 0, words)


def test_unread_gpus_prove_no_end(tmp_path: Path) -> None:
    """A successor that is not seen as the driver refuses the list may run."""
    story = Story(tmp_path, **UNIT)
    story.leak(100)
    story.run(5 * MINUTE, rising(40.0), STEADY, [200])
    seen = story.seen(6.0, STEADY)
    hidden = replace(seen, gpus=tuple(replace(one, processes_known=False) for one in seen.gpus))
    story.stage.show(hidden, 20 * MINUTE)

    assert story.news() == ["began"]


def test_the_end_names_the_process_that_ended_last(tmp_path: Path) -> None:
    """Also where less than it held came back, and the end of the first one is the more certain."""
    story = Story(tmp_path, **UNIT)
    story.leak(100)
    story.run(5 * MINUTE, rising(40.0), STEADY, [200])
    story.stage.show(story.seen(12.0, LEAKING, 200), 5 * MINUTE)
    left = story.seen(0.0, LEARNING)
    story.stage.show(replace(left, gpus=(gpu(0, used_gib=6.0), *left.gpus[1:])), 20 * MINUTE)

    assert story.news()[-1] == "ended"
    assert "python3 (alice, pid 200) was leaking memory: the process ended" in story.stage.headlines()[-1]
    assert story.stage.headlines()[-1].endswith("api.service was restarted once and does not run now")


def test_the_end_of_a_restarted_group_counts_those_that_ran_last(tmp_path: Path) -> None:
    """Four ranks, a restart, four ranks: the end is that of the last four, and no GPU is counted twice."""
    story = Story(tmp_path, **JOB)
    story.leak(100, 101, 102, 103)
    story.run(5 * MINUTE, rising(40.0), STEADY, [200, 201, 202, 203])
    story.stage.show(story.seen(12.0, LEAKING, 200, 201, 202, 203), 5 * MINUTE)
    story.pause(20 * MINUTE)

    assert story.news()[-1] == "ended"
    assert re.sub(r" \(\d\d:\d\d UTC\)", "", story.stage.headlines()[-1]) == (
        "RESOLVED node7 GPUs 0, 1, 2, 3: Slurm job 77 (4 ranks, alice) was leaking memory: all 4 processes ended; "
        "48.0 GiB came back; Slurm job 77 was restarted once and does not run now"
    )


A, B = "a" * 64, "b" * 64


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"container_id": A, "unit": f"docker-{A}.scope"}, {"container_id": B, "unit": f"docker-{B}.scope"}),
        ({"container_id": A, "container_name": "rec"}, {"container_id": B, "container_name": "rec"}),
        ({"container_id": A, "container_name": "sad_turing"}, {"container_id": B, "container_name": "happy_bell"}),
        (
            {"container_id": A, "pod_uid": "1", "pod": "api-7d9f8c6b5d-x2kqz", "namespace": "prod"},
            {"container_id": B, "pod_uid": "2", "pod": "api-7d9f8c6b5d-qqwwz", "namespace": "prod"},
        ),
        ({"unit": "run-u12.service"}, {"unit": "run-u15.service"}),
    ],
    ids=["docker", "named", "made-up names", "pod", "systemd-run"],
)
def test_what_is_created_anew_under_another_id_is_a_successor(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any]
) -> None:
    """Known by user and command line, and by the container's name where it has one: no end while it runs and grows."""
    story = Story(tmp_path, **first)
    story.leak(100)
    story.pause(15.0)
    story.owner = second
    story.run(10 * MINUTE, rising(40.0), STEADY, [200])
    assert story.news() == ["began", "restarted"]
    (waiting,) = story.waiting()
    assert " was restarted once and runs as pid 200, with " in waiting.headline
    assert A[:12] not in waiting.headline
    story.stage.show(story.seen(15.0, LEAKING, 200), 5 * MINUTE)

    assert story.news() == ["began", "restarted"]
    assert len(story.stage.keys()) == 1
    (last,) = story.stage.headlines()[1:]
    assert " was restarted once and runs as pid 200, with " in last
    assert " and grows again: " in last
    assert all(one not in last for one in (A[:12], B[:12], "run-u"))
    told = story.stage.messages[-1].incident
    assert told is not None
    assert "pid" not in told.labels, "that is of a process which has ended"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"container_id": A, "container_name": "rec"}, {"container_id": B, "container_name": "search"}),
        (
            {"container_id": A, "pod": "api-7d9f8c6b5d-x2kqz", "namespace": "prod"},
            {"container_id": B, "pod": "batch-7d9f8c6b5d-x2kqz", "namespace": "prod"},
        ),
        ({"container_id": A, "user": "alice"}, {"container_id": B, "user": "bob", "uid": 1001}),
        ({"container_id": A}, {"container_id": B, "command": "python3 serve.py"}),
        ({"unit": "a.service"}, {"unit": "b.service"}),
    ],
    ids=["name", "pod", "user", "command", "unit"],
)
def test_what_is_another_ones_is_no_successor(tmp_path: Path, first: dict[str, Any], second: dict[str, Any]) -> None:
    """It holds no end back, whether or not it grows."""
    story = Story(tmp_path, **first)
    story.leak(100)
    story.pause(15.0)
    story.owner = second
    story.run(5 * MINUTE, rising(40.0), STEADY, [200])

    assert story.news() == ["began", "ended"]
    assert "200" not in story.stage.headlines()[-1]


def test_a_replica_that_ran_beside_is_no_successor(tmp_path: Path) -> None:
    """Two containers of one image: what was there all along was not started in place of the one that ended."""
    story = Story(tmp_path, container_id=A)
    story.stage.show(story.seen(10.0, LEARNING, 100), 30.0)
    beside = story.seen(3.0, STEADY, 200, gpu_index=1).processes[0]
    info = beside.info
    assert info is not None
    beside = beside._replace(info=replace(info, container_id=B))
    leaking = story.seen(12.0, LEAKING, 100)
    story.stage.show(replace(leaking, processes=(*leaking.processes, beside)), 5 * MINUTE)
    ended = story.seen(0.0, LEARNING)
    story.stage.show(replace(ended, processes=(beside,)), 5 * MINUTE)
    assert story.news() == ["began", "ended"]
    grows = {MemoryKey("GPU-00000001", 200): LEAKING, MemoryKey("GPU-00000001"): LEAKING}
    story.stage.show(replace(ended, processes=(beside,), growth=grows), 5 * MINUTE)

    assert story.news() == ["began", "ended", "began"]
    assert len(story.stage.keys()) == 2
    assert "restarted" not in story.stage.headlines()[-1]


@pytest.mark.parametrize("grows", [True, False])
def test_a_rolling_update_is_one_incident(tmp_path: Path, grows: bool) -> None:
    """A container that is started a minute before the leaker ends replaces it: no end while it grows."""
    story = Story(tmp_path, container_id=A)
    story.stage.show(story.seen(10.0, LEARNING, 100), 30.0)
    leaking = story.seen(12.0, LEAKING, 100)
    story.stage.show(leaking, 10 * MINUTE)
    story.owner = {"container_id": B}
    beside = story.seen(3.0, LEARNING, 200, gpu_index=0).processes[0]
    story.stage.show(replace(leaking, processes=(*leaking.processes, beside)), MINUTE)
    story.run(15 * MINUTE, rising(40.0) if grows else lambda _: 5.0, STEADY, [200])

    assert story.news() == ["began", "restarted" if grows else "ended"]
    assert len(story.stage.keys()) == 1
    assert " was restarted once and " in story.stage.headlines()[-1]


def test_one_pace_and_one_severity_of_what_grows_again(tmp_path: Path) -> None:
    """The detector has one pace for a process on every surface; the problem is as severe as the incident."""
    story = Story(tmp_path, **UNIT)
    story.leak_to_the_wall(100)
    story.pause(30.0)
    slope = 35 * GIB / HOUR
    young = Growth(Verdict.LEARNING, slope=Range(slope, slope, slope))
    story.run(8 * MINUTE, rising(40.0), young, [200])

    (waiting,) = story.waiting()
    assert waiting.headline.startswith("CRITICAL ")
    assert waiting.subject.severity == "critical"
    assert waiting.headline.endswith("and grows again: 35.0 GiB/h")


def problems(story: Story, seen: Snapshot) -> list[tuple[str, str]]:
    """Severity and text of each problem of a node that looks like this."""
    shown = replace(seen, clock_seconds=0.0, measured_seconds=0.0)
    found = find_problems(shown, 0.0, firing=[one.subject for one in story.shown()])
    return [(str(one.severity), one.text) for one in found]


def test_what_grows_again_is_listed_once(tmp_path: Path) -> None:
    """By its incident, with the pace and the forecast; growth of another process beside it is listed as ever."""
    story = Story(tmp_path, **UNIT)
    story.leak(100)
    slope = 35 * GIB / HOUR
    growing = Growth(
        Verdict.GROWING, slope=Range(slope, slope, slope), exhaustion=Range(8160.0, 4080.0, 12_240.0),
        state=GrowthState.RISING,
    )  # fmt: skip
    story.run(8 * MINUTE, rising(40.0), Growth(Verdict.LEARNING, slope=growing.slope), [200])
    other = process(9, used_gib=4.0, name="other", user="bob", uid=7)
    seen = story.seen(9.0, growing, 200)
    growth = {**seen.growth, MemoryKey("GPU-00000000"): growing, MemoryKey("GPU-00000000", 9): growing}
    seen = replace(seen, processes=(*seen.processes, other), growth=growth)
    story.stage.show(seen, TICK_SECONDS)
    texts = [(severity, text.partition(";")[0]) for severity, text in problems(story, seen)]
    runs = (
        "api.service was restarted once and runs as pid 200, with 9.0 GiB, for 10 min 15 s"  # as old as the process is
    )
    assert texts == [
        ("warning", f"{runs}, and grows again: 35.0 GiB/h, full in 2 h 16 min"),
        ("info", "other (pid 9) is growing, 35.0 GiB/h, full in 2 h 16 min"),
    ]


@pytest.mark.parametrize("restarts", [False, True])
def test_an_incident_that_goes_on_is_listed_until_it_is_over(tmp_path: Path, restarts: bool) -> None:
    """While its end is only kept nothing is wrong, and a screen says so instead of nothing."""
    story = Story(tmp_path, **UNIT)
    story.leak(100)
    other = process(9, used_gib=8.0, name="other", user="bob", uid=7, command="other")
    empty = story.seen(0.0, LEARNING)
    rest = replace(empty, gpus=(gpu(0, used_gib=9.0), *empty.gpus[1:]), processes=(other,))
    story.stage.show(rest, 2 * MINUTE)
    if restarts:
        story.stage.kill()
        story.stage.show(rest, 15.0)
    assert story.news() == ["began"]
    ((severity, words),) = problems(story, rest)
    assert severity == "info"
    assert re.fullmatch(
        r"python3 \(alice, pid 100\) was leaking memory: the process ended; it held 12.0 GiB, and 9.0 GiB is in use "
        r"now \(over at [\d:]+ UTC if that lasts\)", words,
    )  # fmt: skip
    story.stage.show(rest, 20 * MINUTE)

    assert story.news() == ["began", "ended"]
    assert problems(story, rest) == []


@pytest.mark.parametrize(
    ("matcher", "is_shown"),
    [('alertname="GpuProcessMemoryLeak"', True), ('unit="api.service"', False), ('gpu="0"', False)],
)
def test_an_incident_is_silenced_when_all_of_its_alerts_are(tmp_path: Path, matcher: str, is_shown: bool) -> None:
    """A silence that takes one alert of it leaves a problem of the rest, which somebody was told of."""
    story = Story(tmp_path, **UNIT)
    story.leak_to_the_wall(100)
    story.stage.silences.add([parse_matcher(matcher)], HOUR, comment="", creator="eve")
    story.pause(30.0)

    assert bool(problems(story, story.seen(0.0, LEARNING))) == is_shown
