"""Whether memory limits can be set, as the doctor says it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuagent.config.models import Config
from gpuagent.core.snapshot import Snapshot
from gpuagent.doctor.finding import Level
from gpuagent.doctor.memory_limits import memory_limits
from tests.alerts.remedies.staging import read
from tests.fakes.snapshots import full_snapshot

LIMIT = {"match": ['alertname="GpuProcessMemoryLeak"'], "steps": [{"limit": {}}]}


def node(driver: str) -> Snapshot:
    """A node of such a driver."""
    made = full_snapshot()
    return replace(made, gpus=(replace(made.gpus[0], mig=()),), node=replace(made.node, driver_version=driver))


@pytest.mark.parametrize(
    ("driver", "refusal", "wanted", "level", "text"),
    [
        ("615.36.01", "", True, Level.OK, "driver 615.36.01 keeps them for cgroups, and the agent may set them"),
        ("580.95.05", "", True, Level.WARNING, "driver 580.95.05 keeps no memory limits for cgroups"),
        ("580.95.05", "", False, Level.INFO, "driver 580.95.05 keeps no memory limits for cgroups"),
        ("615.36.01", "no helper", True, Level.WARNING, "no helper"),
        ("620.1", "no helper", False, Level.INFO, "no helper"),
        ("none", "", False, Level.INFO, "driver none keeps no memory limits"),
    ],
)
def test_what_keeps_them_off(driver: str, refusal: str, wanted: bool, level: Level, text: str) -> None:
    """A driver, the machine or a missing helper: a warning where a ladder needs limits, else worth knowing."""
    config = read({"remedies": {"ladders": [LIMIT]}}) if wanted else Config()
    (found,) = memory_limits(config, node(driver), lambda: refusal)
    assert (found.level, found.subject) == (level, "memory limits")
    assert text in found.text


def test_without_a_gpu() -> None:
    """Where there is no GPU nothing is said."""
    assert list(memory_limits(Config(), replace(full_snapshot(), gpus=()), lambda: "no")) == []
