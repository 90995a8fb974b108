"""The end of an incident is one document: what a message says, its alerts, and what the node keeps of it agree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuagent.core.growth import Evidence
from gpuagent.core.snapshot import ProcessState, Reconciliation, Snapshot
from gpuagent.core.units import GIB
from tests.agent.service.alerting.stage import Stage, grown, leaking
from tests.fakes.readings import gpu, process, snapshot

MINUTE = 60.0
EMPTY = snapshot([gpu(0, used_gib=1.0)], [])
BOTH = (Evidence.BALANCED, Evidence.STRICT)


def leak(used_gib: float, *evidence: Evidence, full_in: float | None = None) -> Snapshot:
    """One process that leaks."""
    seen = snapshot([gpu(0, used_gib=used_gib + 0.5)], [process(used_gib=used_gib)])
    return grown(seen, 4242, leaking(*evidence, full_in=full_in))


def to_the_wall(stage: Stage) -> None:
    """From the first evidence to a full GPU."""
    stage.show(leak(10, Evidence.BALANCED), 5 * MINUTE)
    stage.show(leak(21, *BOTH, full_in=20 * MINUTE), 10 * MINUTE)
    stage.show(leak(23.4, *BOTH, full_in=1.0), 10 * MINUTE)


def ends(stage: Stage) -> None:
    """The leaker ends with all its memory."""
    to_the_wall(stage)
    stage.show(EMPTY, 30 * MINUTE)


def dies(stage: Stage) -> None:
    """The leaker ends, and the driver keeps its memory for a while."""
    to_the_wall(stage)
    who = process(used_gib=23.4)
    dead = who._replace(state=ProcessState.DEAD, former=who.info, info=None)
    held = gpu(0, used_gib=23.9, reconciliation=Reconciliation(0, int(23.4 * GIB), 0))
    stage.show(snapshot([held], [dead]), 20 * MINUTE)
    stage.show(EMPTY, 30 * MINUTE)


def is_replaced(stage: Stage) -> None:
    """The leaker ends, and another process takes its memory at once."""
    to_the_wall(stage)
    stage.show(snapshot([gpu(0, used_gib=20.0)], [process(9, used_gib=19.0, name="other")]), 30 * MINUTE)


def flaps(stage: Stage) -> None:
    """It leaks again within half an hour, so that its end is told later than it was."""
    for _ in range(3):
        ends(stage)


def is_missed(stage: Stage) -> None:
    """The agent is down while the leaker ends."""
    to_the_wall(stage)
    stage.kill()
    stage.show(EMPTY, 30 * MINUTE)


@pytest.mark.slow
@pytest.mark.parametrize("story", [ends, dies, is_replaced, flaps, is_missed])
def test_what_is_told_and_what_is_kept_of_an_end_agree(tmp_path: Path, story: Callable[[Stage], None]) -> None:
    """The message's headline is the record's; it has the reason of one of its alerts, and the last of their times."""
    stage = Stage(tmp_path / "state")
    story(stage)
    stage.show(EMPTY, 60 * MINUTE)

    last = stage.messages[-1]
    assert last.incident is not None
    assert last.incident.news == "ended"
    records = [one for one in stage.notifier.incidents.values() if one.key == last.incident.key]
    assert [one.headline for one in records] == [last.incident.briefing.headline]
    said = last.incident.briefing.end_reason
    heads = [one.end_reason.partition(";")[0] for one in last.alerts]
    assert any(said.startswith(head) for head in heads if head)
    assert records[0].ends_at == pytest.approx(last.incident.ends_at or 0.0, abs=30.0)
    stage.kill()
    kept = [one for one in stage.notifier.incidents.values() if one.key == last.incident.key]
    assert [one.headline for one in kept] == [last.incident.briefing.headline]
