"""The animated picture of the README: `gpuagent top` over a leak that is found, explained and ended.

Run `python -m tests.packaging.top_story` (about two minutes) after a change of the screen. A real agent on a simulated
GPU measures, and really ends, a real process. No test compares the picture, as no two runs have the same figures.
"""

from __future__ import annotations

import asyncio
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape, quoteattr

from gpuagent.cli.agent import Source
from gpuagent.top.app import TopApp
from gpuagent.top.source import AgentSource
from tests.integration.agent import Agent, running_agent
from tests.integration.waiting import until
from tests.packaging.pictures import HOSTNAME, IMAGES, LEAK

_SIZE = (110, 30)
_SPEED = 30.0
_PATIENCE_SECONDS = 180.0
_SECONDS = 4.5
"""Time for which a frame is shown."""
_LINE, _CELL_TOP = 24.4, 1.5
_SVG = "{http://www.w3.org/2000/svg}"
_SERVER = """\
import ctypes, signal
ctypes.CDLL(None).prctl(15, b"embed-server", 0, 0, 0)
print("ready", flush=True)
signal.pause()
"""


class Frame(NamedTuple):
    """One moment: what is said of it, and the screen as textual exports it."""

    caption: str
    svg: str


@contextmanager
def _server(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that can be ended, with the name and the command line of a model server."""
    (folder / "embed").mkdir()
    (folder / "embed" / "server.py").write_text(_SERVER)
    folder.chmod(0o755)
    command = ["python3", "-m", "embed.server", "--port", "8090"]
    user = "nobody" if os.geteuid() == 0 else None
    python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable  # others may run it, too
    with subprocess.Popen(
        command, executable=python, cwd=folder, stdout=subprocess.PIPE, user=user, start_new_session=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def _scenario() -> str:
    """The scenario `leak`, whose leaking process is a real one."""
    made_up = r"(- name: embed-server\n)(?:        (?:user|command|cgroup|age): .*\n)+"
    return re.sub(made_up, r"\1        bind: leaker\n", LEAK.read_text(), count=1)


async def _record(agent: Agent, folder: Path, process: subprocess.Popen[bytes]) -> list[Frame]:
    """Press the keys of the story, and take a frame of each of its moments."""
    source = AgentSource(Source(agent.control_socket))
    source.hostname = HOSTNAME
    app = TopApp(source, folder / "top.json", polls=False)
    frames: list[Frame] = []
    async with app.run_test(size=_SIZE) as pilot:

        async def look(times: int = 1) -> None:
            for _ in range(times):
                app.take(await asyncio.to_thread(source.read))
                await pilot.pause(0.4)

        async def take(caption: str, *keys: str) -> None:
            await pilot.press(*keys)
            await app.workers.wait_for_complete()
            await pilot.pause(0.2)
            screen = app.export_screenshot(title="gpuagent top")
            frames.append(
                Frame(caption, re.sub(rf"\b{re.escape(platform.node())}\b&#160;GPU", f"{HOSTNAME}&#160;GPU", screen))
            )

        await look(8)
        await take("1  A leak is found: who, how fast, and when the GPU is full", "V")
        await take("2  Enter explains it: baseline, forecast, and what the verdict rests on", "enter")
        await take("3  K ends it: what is known, and a question first", "escape", "K")
        await pilot.press("y")
        await asyncio.to_thread(process.wait, 60)
        for thread in app.acting:
            await asyncio.to_thread(thread.join, 60)
        await take("4  The agent checks, ends it, and waits for the memory")
        await pilot.press("escape")
        await look(10)
        await take("5  The memory is back")
    return frames


def animated(frames: Sequence[Frame]) -> str:
    """Return one SVG that shows the frames one after the other; what several of them share is in it once.

    Where a person prefers no motion, the first frame stands.
    """
    parsed = [_lines_of(frame.svg) for frame in frames]
    view = ET.fromstring(frames[0].svg).attrib["viewBox"].split()
    width, height = float(view[2]), float(view[3])
    shown: dict[tuple[str, int, str], set[int]] = {}
    for number, lines in enumerate(parsed):
        for line, content in lines.items():
            shown.setdefault(("line", line, content), set()).add(number)
        caption = f'<text class="caption" x="{width / 2:g}" y="{height + 30:g}">{escape(frames[number].caption)}</text>'
        shown.setdefault(("caption", 0, caption), set()).add(number)
    groups = [
        f"<g{_class(frames_with)}>{content}</g>"
        for (_, _, content), frames_with in sorted(shown.items(), key=lambda one: one[0][:2])
    ]
    styles = "\n".join(_animation(each, len(frames)) for each in sorted({tuple(sorted(one)) for one in shown.values()}))
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height + 50:g}">
<title>gpuagent top: {escape("; ".join(frame.caption for frame in frames))}</title>
<style>
text {{ font-family: "Fira Code", ui-monospace, Menlo, Consolas, monospace; font-size: 20px; white-space: pre; }}
.caption {{ font: 600 23px system-ui, sans-serif; fill: #e6edf3; text-anchor: middle; }}
{styles}
@media (prefers-reduced-motion: reduce) {{ g {{ animation: none !important; }} }}
</style>
<rect width="{width:g}" height="{height + 50:g}" rx="10" fill="#0d1117"/>
<rect x="1" y="1" width="{width - 2:g}" height="{height - 2:g}" rx="8" fill="#14171a" stroke="#30363d"/>
<circle cx="26" cy="22" r="7" fill="#30363d"/><circle cx="48" cy="22" r="7" fill="#30363d"/>
<text x="{width / 2:g}" y="28" fill="#9aa4ae" text-anchor="middle">gpuagent top</text>
<g transform="translate(9, 41)">
{chr(10).join(groups[len(frames) :])}
</g>
{chr(10).join(groups[: len(frames)])}
</svg>
"""


def _class(frames: set[int]) -> str:
    return f' class="f{"".join(map(str, sorted(frames)))}"'


def _animation(frames: Sequence[int], count: int) -> str:
    """Return the style of what is in these frames."""
    if len(frames) == count:
        return ""
    name = f"f{''.join(map(str, frames))}"
    steps = " ".join(
        f"{100 * number / count:g}% {{ visibility: {'visible' if number in frames else 'hidden'}; }}"
        for number in range(count)
    )
    first = "visible" if 0 in frames else "hidden"
    return (
        f"@keyframes {name} {{ {steps} }}\n"
        f".{name} {{ visibility: {first}; animation: {name} {_SECONDS * count:g}s step-end infinite; }}"
    )


def _lines_of(svg: str) -> Mapping[int, str]:
    """Return the content of each line of an exported screen: backgrounds, then texts, with their colors."""
    root = ET.fromstring(svg)
    style = "".join(each.text or "" for each in root.iter(f"{_SVG}style"))
    looks = {
        name: (fill, "bold" in more)
        for name, fill, more in re.findall(r"\.(terminal-\d+-r\d+) \{ fill: (#\w+);?([^}]*)\}", style)
    }
    found: dict[int, list[str]] = {}
    for rect in root.iter(f"{_SVG}rect"):
        if rect.get("shape-rendering") == "crispEdges":
            place = {name: rect.attrib[name] for name in ("x", "y", "width", "height", "fill")}
            line = round((float(place["y"]) - _CELL_TOP) / _LINE)
            found.setdefault(line, []).append(f"<rect {_attributes(place)}/>")
    for text in root.iter(f"{_SVG}text"):
        if (look := looks.get(text.get("class", ""))) and (text.text or "").strip("\N{NO-BREAK SPACE} "):
            fill, is_bold = look
            place = {name: text.attrib[name] for name in ("x", "y", "textLength")} | {"fill": fill}
            bold = ' font-weight="bold"' if is_bold else ""
            line = int((float(place["y"]) - _CELL_TOP) / _LINE)
            found.setdefault(line, []).append(f"<text {_attributes(place)}{bold}>{escape(text.text or '')}</text>")
    return {line: "".join(parts) for line, parts in found.items()}


def _attributes(given: Mapping[str, str]) -> str:
    return " ".join(f"{name}={quoteattr(value)}" for name, value in given.items())


def main() -> None:
    """Run the agent and the process, play the story, and write the picture."""
    with tempfile.TemporaryDirectory(prefix="gpuagent-", dir="/tmp") as name:
        folder = Path(name)
        (folder / "node.yaml").write_text(_scenario())
        with (
            _server(folder) as process,
            running_agent(folder, folder / "node.yaml", speed=_SPEED, bind={"leaker": process.pid}) as agent,
        ):
            agent.wait_until_ready()
            until(lambda: _is_grave(agent.status()), "the leak fills the GPU in minutes", _PATIENCE_SECONDS)
            frames = asyncio.run(_record(agent, folder, process))
    (IMAGES / "top-story.svg").write_text(animated(frames))


def _is_grave(status: Any) -> bool:
    return any(one["verdict"] == "leaking" and (one["exhaustion_seconds"] or 1e9) < 900 for one in status["processes"])


if __name__ == "__main__":
    main()
