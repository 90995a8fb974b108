"""The whole `/metrics` of three shipped scenarios, to the letter: a change of it is seen in review, and meant.

After a change that is meant: `GPUAGENT_UPDATE_GOLDEN=1 python -m pytest tests/exporters/test_golden.py`.
"""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest

from gpuagent.config.models import Config
from gpuagent.service.view import View
from tests.fakes.rig import rig

FOLDER = Path(__file__).parents[1] / "golden"
UPDATE = os.environ.get("GPUAGENT_UPDATE_GOLDEN") == "1"
MASKS = (
    (re.compile(r"^(gpuagent_collector_duration_seconds\{.*\}) .*$", re.MULTILINE), r"\1 <duration>"),
    (re.compile(r'^gpuagent_build_info\{version=".*"\}', re.MULTILINE), 'gpuagent_build_info{version="<version>"}'),
)


async def metrics(scenario: str) -> str:
    """What is served after two ticks, 15 s apart, the second with a slow collection."""
    async with rig(scenario) as stage:
        view = View(Config(), stage.clock, scenario)
        await stage.tick()
        view.update(await stage.tick(15, slow=True))
        text = view.metrics(openmetrics=False).decode()
    node, _, own = text.partition("# HELP process_")  # the agent's own process is another each time
    assert own
    for pattern, mask in MASKS:
        node, found = pattern.subn(mask, node)
        assert found
    return node


@pytest.mark.parametrize("scenario", ["healthy", "mig", "lost-gpu"])
def test_golden(scenario: str) -> None:
    """EXP-09: names, help, labels and values of a whole node are what they were."""
    path = FOLDER / f"metrics-{scenario}.txt"
    text = asyncio.run(metrics(scenario))
    if UPDATE:
        path.write_text(text, encoding="utf-8")

    right = path.read_text(encoding="utf-8").splitlines()
    assert text.splitlines() == right, "if that is meant: GPUAGENT_UPDATE_GOLDEN=1, then read the difference"
