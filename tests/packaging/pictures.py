"""The pictures of the README, drawn from what a real agent has answered.

XX
(about two minutes), and keeps the status and the messages to Slack in `docs/images`; without `record` the pictures are
drawn from these again.
"""

from __future__ import annotations

import json
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from gpuagent.cli.cells import Paint
from gpuagent.cli.status import status_screen
from gpuagent.core.plot.drawing import to_svg
from gpuagent.core.plot.evidence import plot_of_evidence
from gpuagent.core.plot.memory_plot import draw
from tests.alerts.notify.receivers.sink import Sink, sink
from tests.integration.agent import Agent, running_agent
from tests.integration.waiting import until
from tests.packaging.slack_picture import slack_svg

IMAGES = Path(__file__).parents[2] / "docs" / "images"
LEAK = Path(__file__).parents[2] / "simulator" / "gpuagent_simulator" / "scenarios" / "leak.yaml"
HOSTNAME = "node7"
WIDTH = 100
_SPEED = 60.0
_ENDS = "37m"
"""The leaking process: when its detector is sure, and before the GPU is full."""
_PATIENCE_SECONDS = 180.0


def record() -> None:
    """Run agents, and keep what they tell: of a leak, of its end, and of a lost GPU."""
    with tempfile.TemporaryDirectory(prefix="gpuagent-", dir="/tmp") as folder:
        ending = Path(folder) / "ending.yaml"
        ending.write_text(LEAK.read_text().replace("age: 20m", f"age: 20m\n        until: {_ENDS}", 1))
        with _told_by(Path(folder), ending) as (agent, slack):
            _keep("slack", _message(slack, "embed-server", "full in"))
            status = until(lambda: _leaking(agent), "the detector is sure", _PATIENCE_SECONDS)
            _keep("status", status)
            _keep("leak-explained", _explained(agent, status))
            _keep("slack-end", _message(slack, "RESOLVED", " ended; "))
    with (
        tempfile.TemporaryDirectory(prefix="gpuagent-", dir="/tmp") as folder,
        _told_by(Path(folder), "lost-gpu") as at,
    ):
        _keep("slack-lost", _message(at[1], "the GPU is lost"))


def _leaking(agent: Agent) -> Any:
    """The status, once it tells of a leak."""
    status = agent.status()
    return status if any(problem["kind"] == "leak" for problem in status["problems"]) else None


def _explained(agent: Agent, status: Any) -> Any:
    """The evidence on the process that leaks."""
    leaker = next(one for one in status["processes"] if one["verdict"] == "leaking")
    return json.loads(agent.get(f"/api/v1/leaks/{leaker['pid']}").body)


@contextmanager
def _told_by(folder: Path, scenario: str | Path) -> Iterator[tuple[Agent, Sink]]:
    """An agent over a scenario, and the channel that it tells."""
    with sink() as slack:
        receivers = [{"name": "ops", "slack": {"url": f"{slack.url}/services/T0/B0/x"}}]
        with running_agent(folder, scenario, speed=_SPEED, receivers=receivers) as agent:
            yield agent, slack


def _message(slack: Sink, *words: str) -> Any:
    """The first message whose push text has these words."""

    def look() -> Any:
        texts = (json.loads(each.body) for each in slack.processed)
        return next((one for one in texts if all(word in one["text"] for word in words)), None)

    return until(look, f"Slack is told: {words}", _PATIENCE_SECONDS)


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


SLACK = ("slack", "slack-end", "slack-lost")
"""Messages that are kept."""
PICTURES: Mapping[str, Callable[[], str]] = {
    "status.svg": status_picture,
    "leak-explained.svg": lambda: to_svg(draw([plot_of_evidence(kept("leak-explained"))])),
    **{f"{name}.svg": (lambda name=name: slack_svg(kept(name))) for name in SLACK},  # type: ignore[misc]
}


def main(words: list[str]) -> None:
    """Draw, after recording anew if that is wanted."""
    if words == ["record"]:
        record()
    for name, picture in PICTURES.items():
        (IMAGES / name).write_text(picture())


if __name__ == "__main__":
    main(sys.argv[1:])
