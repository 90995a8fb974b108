"""How grave it is that what was started in place of a leaker grows again, and who is told of that."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuagent.core.matchers import parse_matcher
from tests.agent.service.alerting.test_successors import HOUR, LEAKING, LEARNING, MINUTE, STEADY, UNIT, Story, rising


def test_what_grows_again_with_hours_left_is_a_warning(tmp_path: Path) -> None:
    """It was critical until its memory came back: what was started again fills it in hours, and a warning follows."""
    story = Story(tmp_path, **UNIT)
    story.leak_to_the_wall(100)
    assert story.stage.heard[-1].severity == "critical"
    story.pause(30.0)
    story.run(20 * MINUTE, lambda seconds: 2.0 + 12.0 * seconds / HOUR, STEADY, [200])

    assert [(one.news, one.severity) for one in story.stage.heard][-1] == ("restarted", "warning")
    (waiting,) = story.waiting()
    assert waiting.subject.severity == "warning"


@pytest.mark.parametrize("of_incident", [True, False], ids=["its incident", "its unit"])
def test_what_is_silenced_is_not_told_as_it_grows_again(tmp_path: Path, *, of_incident: bool) -> None:
    """A silence holds for what was started in place of a leaker, though nothing of it fires: the screens say so."""
    story = Story(tmp_path, **UNIT)
    stage = story.stage
    stage.show(story.seen(10.0, LEARNING, 100), 30.0)
    stage.show(story.seen(22.5, LEAKING, 100), 5 * MINUTE)
    assert {one.news for one in stage.heard} >= {"began"}
    (key,) = stage.keys()
    name = "incident" if of_incident else "unit"
    matcher = parse_matcher(f'{name}="{key if of_incident else UNIT["unit"]}"')
    stage.silences.add([matcher], 6 * HOUR, comment="known", creator="alice")
    before = len(stage.heard)
    story.pause(30.0)
    story.run(12 * MINUTE, rising(40.0), STEADY, [200])

    assert len(stage.heard) == before
    (record,) = (one for one in stage.notifier.incidents.values() if one.key == key)
    assert record.ends_at is None
    labels = {each.fingerprint: each.labels for each in stage.firing()} | {
        each: alert.labels for each, alert in record.ended.items()
    }
    assert stage.notifier.is_incident_silenced(record, labels)
