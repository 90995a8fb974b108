"""When the headline says that a memory will be full: what every other surface says of it at that moment."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuagent.core.growth import GrowthState, MemoryKey, Range, Verdict
from gpuagent.core.hardware import MigInstance
from gpuagent_alerts.alert import CauseKind
from tests.agent.service.alerting.test_briefing import LABELS, alert, brief
from tests.agent.service.alerting.test_headline import growing, ranks
from tests.fakes.readings import gpu, memory


@pytest.mark.parametrize("is_told", [False, True])
@pytest.mark.parametrize("instance", [-1, 1])
def test_a_full_memory_is_said_once_it_is_more_than_a_reading(instance: int, *, is_told: bool) -> None:
    """That the GPU is full is pending: the line has the forecast that every screen has, until the alert fires."""
    leaking = growing(12.0, Verdict.LEAKING, state=GrowthState.RISING, exhaustion=Range(540.0, 270.0, 810.0))
    labels = {**LABELS, "gpu_instance_id": str(instance)}
    leak = alert("GpuProcessMemoryLeak", {**labels, "pid": "100", "process": "rank", "user": "alice"})
    full = alert("GpuMemoryFull" if instance < 0 else "GpuInstanceMemoryFull", labels)
    seen = ranks(1, leaking)
    mig = (MigInstance("MIG-1", 1, 0, "1g.10gb", memory(9.9, 10.0)),) if instance >= 0 else ()
    used = 79.9 if instance < 0 else 30.0
    seen = replace(
        seen, gpus=(gpu(0, used_gib=used, total_gib=80.0, mig=mig),),
        processes=tuple(one._replace(gpu_instance_id=instance) for one in seen.processes),
        growth={MemoryKey("GPU-00000000", pid, instance): leaking for pid in (100, 0)},
    )  # fmt: skip
    told = brief(
        *[leak, full] if is_told else [leak], seen=seen, kind=CauseKind.PROCESS, labels={**labels, "pid": "100"}
    )
    assert told.headline.endswith("full now" if is_told else "leaking 12.0 GiB/h, full in 9 min")
    assert told.says_full is is_told


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(21_000.0, "full in 5 h 50 min"), (40_000.0, "full in about 6 to 17 h"), (4e5, "full in about 2 to 7 days")],
)
def test_a_forecast_of_more_than_six_hours_is_a_range(seconds: float, said: str) -> None:
    """A message tells what `status` and `ps` tell of the same GPU."""
    leaking = growing(3.0, Verdict.LEAKING, exhaustion=Range(seconds, seconds / 2, seconds * 1.5))
    leak = alert("GpuProcessMemoryLeak", {**LABELS, "pid": "100", "process": "rank", "user": "alice"})
    seen = ranks(1, leaking)
    seen = replace(seen, growth={**seen.growth, MemoryKey("GPU-00000000"): leaking})
    told = brief(leak, seen=seen, kind=CauseKind.PROCESS, labels={**LABELS, "pid": "100"})
    assert told.headline.endswith(f"leaking 3.0 GiB/h, {said}")
