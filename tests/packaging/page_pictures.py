"""The pictures of the page: `python -m tests.packaging.page_pictures` runs agents on simulated nodes (two minutes)."""

from __future__ import annotations

import base64
import json
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.exporters.browser.chromium import Pipe, Tab, chromium
from tests.exporters.browser.chromium import tab as open_tab
from tests.integration.agent import Agent, running_agent
from tests.integration.waiting import until
from tests.packaging.pictures import HOSTNAME, IMAGES

_PATIENCE_SECONDS = 120.0
_RENAME = """((from, to) => {
  const walker = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_TEXT);
  while (walker.nextNode())
    walker.currentNode.data = walker.currentNode.data.replace(new RegExp(`\\\\b${from}\\\\b`, "g"), to);
})"""


class _Picture(NamedTuple):
    name: str
    width: int
    height: int
    dark: bool = False


class _Scene(NamedTuple):
    scenario: str
    speed: float
    shows: str
    """Words in a problem that is waited for; "" for two minutes of readings."""
    pictures: Sequence[_Picture]


SCENES = (
    _Scene(
        "leak", 60.0, "leaking memory", (_Picture("page-leak", 1440, 900), _Picture("page-phone", 390, 844, dark=True))
    ),
    _Scene("crowd", 10.0, "", (_Picture("page-crowd", 1440, 900),)),
    _Scene("lost-gpu", 30.0, "lost for", (_Picture("page-lost-gpu", 1440, 900, dark=True),)),
)


def _is_ready(agent: Agent, scene: _Scene) -> bool:
    status = agent.status()
    if not scene.shows:
        return bool(status["agent"]["uptime_seconds"] > 120)
    return any(scene.shows in problem["text"] for problem in status["problems"])


def draw(scene: _Scene, pipe: Pipe) -> None:
    """Run an agent, and keep what a browser shows of it."""
    with (
        tempfile.TemporaryDirectory(prefix="gpuagent-", dir="/tmp") as folder,
        running_agent(Path(folder), scene.scenario, speed=scene.speed) as agent,
    ):
        agent.wait_until_ready()
        until(lambda: _is_ready(agent, scene), f"{scene.scenario} is as it is to be shown", _PATIENCE_SECONDS)
        for picture in scene.pictures:
            _keep(picture, agent, pipe)


def _opened(tab: Tab, agent: Agent) -> bool:
    """Load the page; return whether its figures are fresh, which they seldom are where an hour lasts a minute."""
    tab.open(agent.url + "/")
    return bool(tab.run("!document.querySelector('#banners[data-old]')"))


def _keep(picture: _Picture, agent: Agent, pipe: Pipe) -> None:
    with open_tab(pipe) as tab:
        tab.size(picture.width, picture.height)
        tab.dark(dark=picture.dark)
        until(lambda: _opened(tab, agent), "the figures are fresh", _PATIENCE_SECONDS)
        tab.run(f"{_RENAME}({json.dumps(platform.node())}, {json.dumps(HOSTNAME)})")
        drawn = tab.call("Page.captureScreenshot", format="png")["data"]
        (IMAGES / f"{picture.name}.png").write_bytes(base64.b64decode(drawn))


def main() -> None:
    """Draw all of them."""
    with chromium() as pipe:
        for scene in SCENES:
            draw(scene, pipe)


if __name__ == "__main__":
    main()
