"""How often further restarts of one leaker are told."""

from __future__ import annotations

import pytest

from gpuagent_alerts.notify.succession import Restarts
from gpuagent_alerts.notify.told_subjects import next_restart_news_at
from gpuagent_alerts.notify.urgency import CALM, CRITICAL, Urgency, UrgencyStage

FILLS = Urgency(CRITICAL, UrgencyStage.FILLING)


@pytest.mark.parametrize(
    ("count", "current", "minutes"), [(1, FILLS, 10), (2, FILLS, 20), (3, FILLS, 30), (90, FILLS, 30), (1, CALM, 30)]
)
def test_a_loop_of_crashes_is_told_ever_less_often(count: int, current: Urgency, minutes: int) -> None:
    """What fills the memory in minutes again and again sends no page every ten minutes all night."""
    assert next_restart_news_at(1000.0, Restarts(count, since=600.0), current) == 1000.0 + 60 * minutes
