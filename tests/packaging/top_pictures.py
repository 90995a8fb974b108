"""Pictures of `gpuagent top`, drawn by textual over real agents on simulated nodes.

Run `python -m tests.packaging.top_pictures` (about three minutes) after a change of the screen; names as arguments
draw only these. They are for people to look at: no test compares them, as no two runs have the same figures.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpuagent.cli.agent import Source
from gpuagent.top.app import TopApp
from gpuagent.top.source import AgentSource
from tests.integration.agent import Agent, running_agent
from tests.integration.waiting import until
from tests.packaging.pictures import HOSTNAME, IMAGES

_PATIENCE_SECONDS = 180.0
_READINGS = 10
_BETWEEN_SECONDS = 0.5


class Picture(NamedTuple):
    """One picture: how large, and which keys are pressed before it is taken."""

    name: str
    columns: int = 120
    lines: int = 36
    keys: Sequence[str] = ()


class Node(NamedTuple):
    """A scenario, how much faster than real time it runs, and what it must tell before it is drawn."""

    scenario: str
    speed: float
    pictures: Sequence[Picture]
    ready: Callable[[Any], bool]


def _has(kind: str) -> Callable[[Any], bool]:
    return lambda status: any(problem["kind"] == kind for problem in status["problems"])


def _judged(status: Any) -> bool:
    return bool(status["processes"]) and all(one["verdict"] not in {None, "learning"} for one in status["processes"])


NODES = (
    Node("healthy", 60, [Picture("healthy")], _judged),
    Node(
        "leak",
        20,
        [
            Picture("leak", keys=["V"]),
            Picture("detail", 120, 44, ["V", "enter"]),
            Picture("kill", keys=["V", "K"]),
            Picture("60-columns", 60, 24, ["V"]),
        ],
        _has("leak"),
    ),
    Node("full", 60, [Picture("wall")], _has("memory_full")),
    Node("lost-gpu", 60, [Picture("lost-gpu")], _has("gpu_lost")),
    Node("crowd", 1, [Picture("crowd", 160, 45, ["t", "t", "t", "t"])], lambda status: len(status["processes"]) == 512),
    Node("no-gpus", 1, [Picture("no-gpu", 100, 16)], _has("no_gpu")),
    Node("unified-memory", 60, [Picture("unified-memory", 100, 30)], _judged),
)


async def _draw(agent: Agent, picture: Picture, folder: Path) -> None:
    """Take one picture of the screen over a running agent."""
    source = AgentSource(Source(agent.control_socket))
    source.hostname = HOSTNAME
    app = TopApp(source, folder / f"{picture.name}.json", polls=False)
    async with app.run_test(size=(picture.columns, picture.lines)) as pilot:
        for _ in range(_READINGS):
            app.take(await asyncio.to_thread(source.read))
            await pilot.pause(_BETWEEN_SECONDS)
        await pilot.press(*picture.keys)
        await app.workers.wait_for_complete()
        await pilot.pause()
        svg = app.export_screenshot(title="gpuagent top")
    (IMAGES / f"top-{picture.name}.svg").write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")


def main(names: Sequence[str]) -> None:
    """Run an agent for each node, and draw its pictures."""
    for node in NODES:
        pictures = [picture for picture in node.pictures if not names or picture.name in names]
        if not pictures:
            continue
        with (
            tempfile.TemporaryDirectory(prefix="gpuagent-", dir="/tmp") as folder,
            running_agent(Path(folder), node.scenario, speed=node.speed) as agent,
        ):
            agent.wait_until_ready()
            until(lambda: node.ready(agent.status()), f"{node.scenario} tells of it", _PATIENCE_SECONDS)  # noqa: B023
            for picture in pictures:
                asyncio.run(_draw(agent, picture, Path(folder)))


if __name__ == "__main__":
    main(sys.argv[1:])
