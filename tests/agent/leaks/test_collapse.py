"""Memory that goes within seconds: told before it is over, as growth and not as a leak."""

from __future__ import annotations

import pytest

from gpuagent.reading import GIB
from tests.agent.leaks.node import Node, node, run

PID = 5_000_000


def scenario(memory: str, age: str = "1h") -> str:
    """One process on one GPU of 80 GiB."""
    return f"""\
gpus:
  - model: h100
    memory: {{total: 80GiB, base_used: 400MiB}}
    processes:
      - {{name: serve, user: ml, pid: {PID}, age: {age}, memory: {memory}}}
"""


def soon(stage: Node) -> list[tuple[str, float]]:
    """Tiers of what was told, and when."""
    return [(told.alert.labels["tier"], told.seconds) for told in stage.alerts("GpuMemoryExhaustionSoon")]


@pytest.mark.parametrize("poll_seconds", [0.5, 1.0, 2.0])
def test_told_before_it_is_over(poll_seconds: float) -> None:
    """LEAK-04: 29 GiB free become 2.5 GiB in 9 s: told while memory is left, and named growth, not yet a leak."""
    memory = "{shape: ramp, start: 50.6GiB, rate: 2.944GiB, after: 600s, cap: 77.1GiB}"

    async def test() -> None:
        async with node(scenario(memory)) as stage:
            await stage.until(595, 5)
            while not soon(stage) and stage.seconds < 612:
                await stage.tick(poll_seconds)
            ((tier, seconds),) = soon(stage)
            assert (tier, stage.told[-1].alert.labels["severity"]) == ("seconds", "critical")
            assert 600 < seconds < 609
            assert 80 * GIB - stage.used_bytes() > 5 * GIB
            assert "growth and not yet a leak" in stage.told[-1].alert.annotations["description"]
            assert stage.alerts("GpuProcessMemoryLeak") == []

    run(test)


LOADS = {
    "at the start": ("{shape: plateau, start: 1GiB, level: 75GiB, over: 25s}", "0s"),
    "of a small model, later": ("{shape: steps, points: [[0, 4GiB], [600, 6GiB], [602, 9GiB], [604, 12GiB]]}", "1h"),
    "of what was there before": (
        "{shape: steps, points: [[0, 70GiB], [900, 10GiB], [1200, 30GiB], [1201, 50GiB], [1202, 70GiB]]}", "1h",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOADS)
def test_a_model_is_loaded(name: str) -> None:
    """LEAK-04: that is no collapse: at the start of a process, small, or where it was before."""
    memory, age = LOADS[name]

    async def test() -> None:
        async with node(scenario(memory, age)) as stage:
            await stage.until(1300, 1)
            assert soon(stage) == []

    run(test)
