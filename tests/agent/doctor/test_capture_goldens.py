"""Each capture of a machine, replayed: metrics, status document and problems are what they were, and meant.

A file put into tests/data/captures is a test. For its golden file, and after a change that is meant:
`GPUAGENT_UPDATE_GOLDEN=1 python -m pytest tests/agent/doctor/test_capture_goldens.py`, then read the difference.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuagent.config.models import Config
from gpuagent.core.clock import ManualClock
from gpuagent.service.view import View
from tests.fakes.golden import assert_golden
from tests.fakes.rig import rig

FOLDER = Path(__file__).parents[2] / "data" / "captures"
LABELS = re.compile(r'(?:,?(?:uuid|process|user)="[^"]*")')
LINK = re.compile(r',?link="(\d+)"')
OWN = ("gpuagent_collector_", "gpuagent_build_", "gpuagent_simulated", "gpuagent_tick", "gpuagent_snapshot_")
NOT_SHOWN = frozenset({"uuid", "gpu_uuid", "process_state", "memory_used_history_bytes", "history_interval_seconds"})
TEN_YEARS = 3e8


def series(text: str) -> Iterator[str]:
    """Samples without comments, and one line for all links that answer the same."""
    links: dict[tuple[str, str], list[int]] = {}
    for line in text.splitlines():
        if line.startswith(("#", *OWN)):
            continue
        name, value = LABELS.sub("", line).rsplit(" ", 1)
        link = LINK.search(name)
        links.setdefault((LINK.sub("", name), value), []).extend([int(link[1])] if link else [])
    for (name, value), numbers in links.items():
        which = f" links {min(numbers)} to {max(numbers)}, {len(numbers)} in all" if numbers else ""
        yield f"{name} {value}{which}"


def facts(title: str, document: Mapping[str, Any]) -> Iterator[str]:
    """What is known, a line each: what is null or empty is left out."""
    yield title
    for key, value in document.items():
        if value not in (None, "", [], False) and key not in NOT_SHOWN:
            yield f"  {key}: {value}"


def report(status: Mapping[str, Any], metrics: str) -> Iterator[str]:
    """The golden file."""
    problems: Sequence[Mapping[str, Any]] = status["problems"]
    yield "# problems" if problems else "# no problems"
    for problem in problems:
        yield f"{problem['severity']} {problem['kind']}: {problem['text']}"
        yield f"  -> {problem['advice']}"
    yield "# status"
    yield from facts("node", status["node"])
    for gpu in status["gpus"]:
        yield from facts(f"gpu {gpu['index']}", gpu)
    for process in status["processes"]:
        yield from facts(f"process {process['pid']}", process)
    yield "# metrics"
    yield from series(metrics)


async def replay(path: Path) -> str:
    """What the agent says of a captured machine, after the first pass."""
    async with rig(str(path), clock=ManualClock(now=TEN_YEARS)) as stage:
        view = View(Config(), stage.clock, "node")
        await stage.tick(0, slow=True)
        view.update(await stage.tick(0.25, slow=True))
        text = view.metrics(openmetrics=False).decode().partition("# HELP process_")[0]
        return "\n".join(report(view.status(), text)) + "\n"


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.yaml")))
def test_captured_machine(name: str) -> None:
    """What the agent says of this machine is what it said before."""
    assert_golden(f"captures/{name}.txt", asyncio.run(replay(FOLDER / f"{name}.yaml")))
