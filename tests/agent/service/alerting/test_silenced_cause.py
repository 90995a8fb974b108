"""A silence of a process holds for all that is told under its name, and for nobody else's growth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.core.growth import Evidence, Growth, GrowthState, MemoryKey, Range, Verdict
from gpuagent.core.matchers import parse_matcher
from gpuagent.core.snapshot import Snapshot
from gpuagent_alerts.messages.snapshot_inputs import silenced_processes, subjects_of
from gpuagent_exporters.status.problems import find_problems
from tests.agent.service.alerting.stage import Stage, grown, leaking
from tests.fakes.readings import NOW, gpu, process, snapshot

MINUTE = 60.0
EMB, OTHER = 200, 100


def node(used_gib: float, *growing: int, full_in: float | None = None) -> Snapshot:
    """Two services on one GPU of 24 GiB, of which some leak."""
    processes = [
        process(EMB, name="emb", user="emb", unit="emb.service", process_group=EMB),
        process(OTHER, name="other", user="bob", unit="other.service", process_group=OTHER),
    ]
    seen = snapshot([gpu(0, used_gib=used_gib)], processes)
    for pid in growing:
        seen = grown(seen, pid, leaking(Evidence.BALANCED, full_in=full_in))
    return seen


def silence(stage: Stage, matcher: str) -> str:
    """Silence what matches for a day, and return the silence's id."""
    return stage.silences.add([parse_matcher(matcher)], 86_400.0, comment="", creator="alice").id


@pytest.mark.parametrize("matcher", ['unit="emb.service"', 'user="emb"', f'pid="{EMB}"', 'process=~"em.*"'])
def test_what_a_silenced_process_does_to_its_gpu_is_silenced(tmp_path: Path, matcher: str) -> None:
    """The forecast is not told under its headline; all of it is once the silence has ended."""
    stage = Stage(tmp_path / "state")
    name = silence(stage, matcher)
    stage.show(node(18, EMB, full_in=20 * MINUTE), 10 * MINUTE)
    assert len(stage.firing()) > 2
    assert stage.heard == []
    assert all(stage.notifier.is_silenced(one) for one in stage.firing() if one.labels["severity"] != "none")

    stage.silences.expire(name)
    stage.show(node(18, EMB, full_in=20 * MINUTE), MINUTE)
    assert [one.news for one in stage.heard] == ["began"]
    assert "leaking" in stage.headlines()[0]


@pytest.mark.slow
def test_a_gpu_that_a_silenced_process_has_filled_is_told(tmp_path: Path) -> None:
    """Nobody else gets memory there any more: who silenced the process has not silenced that."""
    stage = Stage(tmp_path / "state")
    silence(stage, 'unit="emb.service"')
    stage.show(node(18, EMB, full_in=20 * MINUTE), 10 * MINUTE)
    stage.show(node(23.8, EMB), 10 * MINUTE)
    assert [one.news for one in stage.heard] == ["began"]
    assert "memory is full" in stage.headlines()[0]


@pytest.mark.slow
def test_a_neighbor_that_grows_beside_a_silenced_process_is_told(tmp_path: Path) -> None:
    """With the forecast that both have, and that is full: a silence of another does not hide it."""
    stage = Stage(tmp_path / "state")
    silence(stage, 'unit="emb.service"')
    stage.show(node(18, EMB, full_in=20 * MINUTE), 10 * MINUTE)
    assert stage.heard == []
    stage.show(node(20, EMB, OTHER, full_in=10 * MINUTE), 10 * MINUTE)

    assert "critical" in {one.severity for one in stage.heard}
    assert all("other (bob" in line for line in stage.headlines())


@pytest.mark.slow
@pytest.mark.parametrize("matcher", ["incident=KEY", 'user="emb"', "gpu=0"])
def test_what_is_silenced_is_no_problem_of_the_node(tmp_path: Path, matcher: str) -> None:
    """`status` and `check` leave out the verdict and the forecast of a silenced leak, and tell of one beside it."""
    stage = Stage(tmp_path / "state")
    alone, both = node(18, EMB, full_in=20 * MINUTE), node(20, EMB, OTHER, full_in=10 * MINUTE)
    stage.show(alone, 10 * MINUTE)

    def told(seen: Snapshot) -> set[tuple[str, int | None]]:
        firing = tuple(subjects_of(stage.engine, stage.notifier.silencing, seen))
        quiet = silenced_processes(seen, stage.notifier.is_process_silenced)
        found = find_problems(seen, NOW, firing=firing, silenced_processes=quiet)
        return {(one.kind, one.pid) for one in found if one.severity != "info"}

    assert ("leak", EMB) in told(alone)
    silence(stage, matcher.replace("KEY", stage.heard[0].key))
    assert told(alone) == set()
    beside = set() if matcher == "gpu=0" else {("leak", OTHER)}
    assert told(both) == beside, "no alert fires yet of the other"
    stage.show(both, 10 * MINUTE)
    assert told(both) == beside


def test_growth_of_a_silenced_process_is_no_problem_before_its_alert(tmp_path: Path) -> None:
    """What a neighbor does to their GPU makes nothing critical of it; an alert on it that is not silenced would."""
    stage = Stage(tmp_path / "state")
    silence(stage, 'user="emb"')
    stage.show(node(18, OTHER, full_in=20 * MINUTE), 10 * MINUTE)
    both = node(19, OTHER, EMB, full_in=15 * MINUTE)
    grows = Growth(Verdict.GROWING, slope=Range(1e6, 1e6, 1e6), state=GrowthState.RISING)
    both = replace(both, growth={**both.growth, MemoryKey("GPU-00000000", EMB): grows})
    firing = tuple(subjects_of(stage.engine, stage.notifier.silencing, both))
    quiet = silenced_processes(both, stage.notifier.is_process_silenced)
    assert quiet == {(0, EMB)}

    def told(quiet: frozenset[tuple[int, int]]) -> set[int | None]:
        found = find_problems(both, NOW, firing=firing, silenced_processes=quiet)
        return {one.pid for one in found if one.severity == "critical"}

    assert told(frozenset()) == {EMB, OTHER}
    assert told(quiet) == {OTHER}
