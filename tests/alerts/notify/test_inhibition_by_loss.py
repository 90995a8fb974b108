"""What follows from something worse is not told beside it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuagent_alerts.alert import Alert, Status
from gpuagent_alerts.notify.inhibition import inhibited_by_loss
from tests.alerts.messages import NOW
from tests.alerts.notify.parts import Desk


def firing(name: str, gpu: str = "") -> Alert:
    """An alert about a GPU, or about the whole node."""
    labels = {"gpu": gpu, "uuid": f"GPU-{gpu}"} if gpu else {}
    return Alert({"alertname": name, **labels}, {}, Status.FIRING, NOW)


NODE_BLIND, BLIND, LOST = firing("GpuMonitorBlind"), firing("GpuMonitorBlind", "0"), firing("GpuLost", "0")

UNLISTED = replace(BLIND, labels={**BLIND.labels, "scope": "processes"})
OF_PROCESS = replace(BLIND, labels={**BLIND.labels, "alertname": "GpuProcessMemoryLeak", "pid": "7"})


@pytest.mark.parametrize(
    ("sources", "alert", "by"),
    [
        ([NODE_BLIND], firing("GpuMemoryFull", "0"), "GpuMonitorBlind"),
        ([NODE_BLIND], firing("GpuMemoryFull", "7"), "GpuMonitorBlind"),
        ([NODE_BLIND], BLIND, "GpuMonitorBlind"),
        ([NODE_BLIND, LOST], firing("GpuMemoryFull", "0"), "GpuLost"),
        ([NODE_BLIND], NODE_BLIND, ""),
        ([NODE_BLIND], firing("GpuCountDropped"), ""),
        ([NODE_BLIND], firing("Watchdog"), ""),
        ([NODE_BLIND], LOST, ""),
        ([NODE_BLIND], firing("GpuXidCritical", "0"), ""),
        ([BLIND], firing("GpuMemoryFull", "0"), "GpuMonitorBlind"),
        ([BLIND], firing("GpuMemoryFull", "1"), ""),
        ([BLIND], BLIND, ""),
        ([LOST], BLIND, "GpuLost"),
        ([UNLISTED], firing("GpuMemoryFull", "0"), ""),
        ([UNLISTED], OF_PROCESS, "GpuMonitorBlind"),
        ([], firing("GpuMemoryFull", "0"), ""),
    ],
)
def test_who_mutes_whom(sources: list[Alert], alert: Alert, by: str) -> None:
    """A GPU's own trouble mutes what is about it, a blind node what is about any GPU; causes are told all the same."""
    assert inhibited_by_loss([*sources, alert])(alert.labels) == by


def test_a_blind_node_is_told_once() -> None:
    """One message for a driver that is away, however many GPUs have an alert; the rest is told when it is back."""
    desk = Desk()
    full = [firing("GpuMemoryFull", str(number)) for number in range(8)]
    blind = [firing("GpuMonitorBlind", str(number)) for number in range(8)]

    assert desk.tick(NODE_BLIND, *full, *blind) == ["hook: +GpuMonitorBlind/"]
    assert desk.tick(*full) == [*(f"hook: +GpuMemoryFull/{n}" for n in range(8)), "hook: -GpuMonitorBlind/"]
