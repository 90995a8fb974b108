"""What has to be seen, in this order; a step that is not seen in its time fails the demo."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from gpuagent.core.units import format_bytes, format_duration
from gpuagent.demo.stage import SPEED, Stage

LEAK = "GpuProcessMemoryLeak"
_POLL_SECONDS = 0.2
_PROGRESS_SECONDS = 5.0

T = TypeVar("T")
Say = Callable[[str], None]


class NotSeen(Exception):
    """A step that did not come; the text says which."""


def tell(stage: Stage, say: Say) -> None:
    """Tell the whole story. Raise NotSeen."""
    leaker = stage.children["leaker"]
    for name, child in stage.children.items():
        say(f"pid {child.pid} ({name}) is a real process; its GPU memory is simulated, {SPEED:.0f}x as fast as life")
    say(f"look around meanwhile:  {_program()} status --socket {stage.socket}")
    say("  and so with ps, alerts and remedies in the place of status")
    _wait(stage, say, "the agent's first reading", 30, lambda: _processes(stage))
    alert = _wait(stage, say, "the leak", 60, lambda: _firing(stage, leaker.pid), shows=_growth)
    say(f"leak found: {alert['annotations']['summary']}")
    say(f"  why: {alert['annotations'].get('reasons', '')}")
    headline = _wait(stage, say, "the webhook", 20, lambda: stage.receiver.headline(leaker.pid))
    say(f"webhook delivered to {stage.receiver.url}: {headline}")
    step = _wait(stage, say, "SIGTERM", 40, lambda: _step(stage, leaker.pid, "SIGTERM"))
    say(f"{step['step']} sent to pid {leaker.pid}: the intent was on record before")
    if (status := leaker.wait(20)) != -15:
        raise NotSeen(f"the leaker ended with status {status}, not by SIGTERM")
    run = _wait(stage, say, "the memory's return", 30, lambda: _end(stage, leaker.pid))
    if run["result"] != "released":
        raise NotSeen(f"the remedy came to {run['result']}: {run['detail']}")
    say(f"released: {format_bytes(run['released_bytes'])} came back in {format_duration(run['seconds'])} of the story")
    _wait(stage, say, "the resolved message", 40, lambda: stage.receiver.told(LEAK, "resolved", leaker.pid))
    say("resolved: the receiver was told that it is over")
    _untouched(stage, say)


def _program() -> str:
    """Return the command that runs this very program in another terminal: `make demo` puts nothing on the PATH."""
    beside = Path(sys.executable).with_name("gpuagent")
    return "gpuagent" if shutil.which("gpuagent") or not beside.exists() else str(beside)


def _untouched(stage: Stage, say: Say) -> None:
    """Show that healthy processes were neither called leaks nor touched."""
    held = {process["pid"]: process["memory_used_bytes"] for process in _processes(stage) or ()}
    for name in ("server", "trainer"):
        child = stage.children[name]
        if child.poll() is not None or child.pid not in held:
            raise NotSeen(f"the healthy {name} (pid {child.pid}) is gone")
        for status in ("firing", "resolved"):
            if stage.receiver.told(LEAK, status, child.pid):
                raise NotSeen(f"the healthy {name} was called a leak")
        say(f"untouched: {name} (pid {child.pid}) goes on with {format_bytes(held[child.pid])}")


def _wait(
    stage: Stage, say: Say, what: str, seconds: float, look: Callable[[], T | None],
    shows: Callable[[Stage], str] | None = None,
) -> T:  # fmt: skip
    """Until `look` finds something; a line now and then says that it goes on."""
    began = time.monotonic()
    progress = began + _PROGRESS_SECONDS
    while (now := time.monotonic()) < began + seconds:
        found = look()
        if found:
            return found
        if stage.agent.poll() is not None:
            raise NotSeen(f"the agent ended with status {stage.agent.returncode}")
        if now >= progress:
            progress = now + _PROGRESS_SECONDS
            say(f"  waiting for {what} ({now - began:.0f} s){shows(stage) if shows else ''}")
        time.sleep(_POLL_SECONDS)
    raise NotSeen(f"{what} was not seen in {seconds:.0f} s")


def _processes(stage: Stage) -> list[dict[str, Any]] | None:
    document = stage.ask("/api/v1/processes")
    return document.get("processes") if document else None


def _growth(stage: Stage) -> str:
    """Describe what the leaking process holds, and what the detector says of it."""
    for process in _processes(stage) or ():
        if process["pid"] == stage.children["leaker"].pid and process.get("memory_used_bytes") is not None:
            verdict = process.get("verdict") or "no verdict yet"
            return f": {format_bytes(process['memory_used_bytes'])}, {verdict}"
    return ""


def _firing(stage: Stage, pid: int) -> dict[str, Any] | None:
    document = stage.ask("/api/v1/alerts")
    for alert in document["alerts"] if document else ():
        if alert["name"] == LEAK and alert["state"] == "firing" and alert["labels"].get("pid") == str(pid):
            found: dict[str, Any] = alert
            return found
    return None


def _runs(stage: Stage, pid: int) -> list[dict[str, Any]]:
    document = stage.ask("/api/v1/remedies")
    return [run for run in document["remedies"] if run["pid"] == pid] if document else []


def _step(stage: Stage, pid: int, step: str) -> dict[str, Any] | None:
    for run in _runs(stage, pid):
        for each in run["steps"]:
            if each["kind"] == "result" and each["step"] == step and each["ok"]:
                found: dict[str, Any] = each
                return found
    return None


def _end(stage: Stage, pid: int) -> dict[str, Any] | None:
    for run in _runs(stage, pid):
        if run.get("end") and run["end"]["result"] != "refused":
            found: dict[str, Any] = run["end"]
            return found
    return None
