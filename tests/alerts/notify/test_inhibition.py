"""Lower tiers beside higher ones: suppressed where a route groups by labels, and in the table that is shipped."""

from __future__ import annotations

from typing import Any

import pytest

from gpuagent_alerts.alert import Alert
from gpuagent_alerts.notify.inhibition import inhibited_by_tier
from tests.alerts.messages import alert
from tests.alerts.notify.parts import Desk, route


def one(name: str, gpu: str = "0", **labels: Any) -> Alert:
    """An alert about a GPU."""
    return alert(name, gpu=gpu, uuid=f"GPU-{gpu}", **labels)


@pytest.mark.parametrize(
    ("firing", "about", "by"),
    [
        (one("GpuMemoryFull"), one("GpuMemoryHigh"), "GpuMemoryFull"),
        (one("GpuMemoryFull"), one("GpuMemoryExhaustionSoon", tier="minutes"), "GpuMemoryFull"),
        (one("GpuMemoryFull", "1"), one("GpuMemoryHigh"), ""),
        (one("GpuMemoryExhaustionSoon", tier="minutes"), one("GpuMemoryExhaustionSoon", tier="hours"),
         "GpuMemoryExhaustionSoon"),
        (one("GpuMemoryExhaustionSoon", tier="hours"), one("GpuMemoryExhaustionSoon", tier="minutes"), ""),
        (one("GpuProcessMemoryLeak", pid="7", evidence="strict"),
         one("GpuProcessMemoryLeak", pid="7", evidence="balanced"), "GpuProcessMemoryLeak"),
        (one("GpuProcessMemoryLeak", pid="7", evidence="strict"),
         one("GpuProcessMemoryLeak", pid="8", evidence="balanced"), ""),
        (one("GpuLost"), alert("GpuCountDropped"), "GpuLost"),
    ],
)  # fmt: skip
def test_what_outranks_what(firing: Alert, about: Alert, by: str) -> None:
    """More of the same thing suppresses less of it, and never the other way round."""
    assert inhibited_by_tier([firing])(about.labels) == by


def test_a_group_is_not_told_of_a_lower_tier() -> None:
    """What is new and says less is left out, and told if it goes on when the higher one has ended."""
    desk = Desk(routes=[route("hook", group_by=["uuid"])])
    assert desk.tick(one("GpuMemoryFull"), one("GpuMemoryHigh")) == ["hook: +GpuMemoryFull/0"]
    assert desk.tick(one("GpuMemoryHigh")) == ["hook: +GpuMemoryHigh/0 -GpuMemoryFull/0"]


def test_an_incident_has_all_that_fires() -> None:
    """Its one message says both: whoever reads it sees what led to what."""
    desk = Desk(routes=[route("hook")])
    assert desk.tick(one("GpuMemoryFull"), one("GpuMemoryHigh")) == ["hook: +GpuMemoryFull/0 +GpuMemoryHigh/0"]
