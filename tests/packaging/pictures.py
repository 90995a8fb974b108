"""The pictures of the README, drawn from what a real agent has answered.

`python -m tests.packaging.pictures record` runs an agent over the scenario `leak` until its detector is sure (about a
minute), and keeps the status and the message to Slack in `docs/images`; without `record` the pictures are drawn from
these again.
"""

from __future__ import annotations

import json
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from gpuagent.cli.cells import Paint
from gpuagent.cli.screen import status_screen
from tests.alerts.receivers.sink import Sink, sink
from tests.integration.agent import running_agent
from tests.integration.waiting import until
from tests.packaging.slack_picture import slack_svg

IMAGES = Path(__file__).parents[2] / "docs" / "images"
ALERT = "GpuProcessMemoryLeak"
HOSTNAME = "node7"
WIDTH = 100
_SPEED = 120.0
_PATIENCE_SECONDS = 180.0


def record() -> None:
    """Run an agent, and keep what it tells."""
    with sink() as slack, tempfile.TemporaryDirectory(prefix="gpuagent-", dir="/tmp") as folder:
        receivers = [{"name": "ops", "slack": {"url": f"{slack.url}/services/T0/B0/x"}}]
        routes = [{"match": [f'alertname="{ALERT}"'], "receivers": ["ops"]}]
        with running_agent(Path(folder), "leak", speed=_SPEED, receivers=receivers, routes=routes) as agent:
            body = until(lambda: _told(slack), "Slack is told of the leak", _PATIENCE_SECONDS)
            _keep("slack", json.loads(body))
            _keep("status", agent.status())


def _told(slack: Sink) -> bytes:
    return next((each.body for each in slack.processed if ALERT.encode() in each.body), b"")


def _keep(name: str, document: Any) -> None:
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    (IMAGES / f"{name}.json").write_text(re.sub(rf"\b{re.escape(platform.node())}\b", HOSTNAME, text))


def kept(name: str) -> Any:
    """What was recorded."""
    return json.loads((IMAGES / f"{name}.json").read_text())


def status_picture() -> str:
    """What `gpuagent status` draws of the recorded document, as rich draws a terminal."""
    lines = status_screen(kept("status"), WIDTH, Paint(color=True, ascii_only=False), HOSTNAME)
    with Path("/dev/null").open("w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True, color_system="standard")
        console.print(Text.from_ansi("\n".join(lines)))
        return console.export_svg(title="gpuagent status", theme=MONOKAI, unique_id="status") + "\n"


def slack_picture() -> str:
    """What Slack makes of the recorded message."""
    return slack_svg(kept("slack"))


PICTURES: Mapping[str, Callable[[], str]] = {"status.svg": status_picture, "slack.svg": slack_picture}


def main(words: list[str]) -> None:
    """Draw, after recording anew if that is wanted."""
    if words == ["record"]:
        record()
    for name, draw in PICTURES.items():
        (IMAGES / name).write_text(draw())


if __name__ == "__main__":
    main(sys.argv[1:])
