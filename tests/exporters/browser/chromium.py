"""Headless Chromium, driven over its own pipe: DevTools messages with a NUL after each, so no websocket is needed.

https://chromium.googlesource.com/chromium/src/+/main/content/public/common/content_switches.cc (remote-debugging-pipe)
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 45.0
"""A browser starts slowly on a machine that has other things to do."""

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--no-first-run", "--mute-audio",
    "--remote-debugging-pipe",
)  # fmt: skip


@dataclass
class Pipe:
    """Commands and their answers; events are kept for whoever looks."""

    reading: int
    writing: int
    events: list[dict[str, Any]] = field(default_factory=list)
    _number: int = 0
    _received: bytes = b""

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Have the browser do something. Raises AssertionError with its words if it cannot."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self.writing, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            answer = self._next(deadline, method)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _next(self, deadline: float, method: str) -> dict[str, Any]:
        while b"\0" not in self._received:
            with selectors.DefaultSelector() as selector:
                selector.register(self.reading, selectors.EVENT_READ)
                ready = selector.select(max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser has not answered: {method}"
            piece = os.read(self.reading, 1 << 20)
            assert piece, f"the browser has ended: {method}"
            self._received += piece
        message, _, self._received = self._received.partition(b"\0")
        decoded: dict[str, Any] = json.loads(message)
        return decoded


@dataclass
class Tab:
    """One page."""

    pipe: Pipe
    session: str

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.pipe.call(method, self.session, **parameters)

    def open(self, url: str) -> None:
        """Go there, and wait until the page's script has brought it up to date once."""
        answer = self.call("Page.navigate", url=url)
        assert "errorText" not in answer, answer
        self.until("document.documentElement?.dataset.updates >= 1")

    def run(self, script: str) -> Any:
        """The value of an expression, which may be a promise."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait in the page, frame by frame, until an expression is true."""
        limit = int(PATIENCE_SECONDS * 1000 * 0.8)
        script = (
            f"new Promise((done) => {{ const end = Date.now() + {limit}; const look = () => "
            f"({condition}) ? done('') : Date.now() > end ? done(document.body?.innerText || 'nothing') "
            ": setTimeout(look, 20); look(); })"
        )
        seen = self.run(script)
        assert seen == "", f"never came true: {condition}; the page says: {seen}"

    def wait_for(self, event: str) -> None:
        """Wait until the browser has told of an event; for a page that runs no script."""
        end = time.monotonic() + PATIENCE_SECONDS
        while all(each.get("method") != event for each in self.pipe.events):
            assert time.monotonic() < end, f"{event} never came"
            self.call("Page.getFrameTree")

    def refresh(self) -> None:
        """What the script does when the tab is looked at again: no waiting for the next turn."""
        updates = self.run("Number(document.documentElement.dataset.updates)")
        self.run("document.dispatchEvent(new Event('visibilitychange')), 0")
        self.until(f"document.documentElement.dataset.updates > {updates}")

    @property
    def text(self) -> str:
        """What a reader sees."""
        text: str = self.run("document.body.innerText")
        return text

    def press(self, key: str, code: int) -> None:
        """One key, as from a keyboard."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def size(self, width: int, height: int = 900) -> None:
        """As on a screen of this many CSS pixels; narrow ones are phones."""
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def dark(self, *, dark: bool) -> None:
        """What the person prefers."""
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    @property
    def complaints(self) -> Sequence[str]:
        """What the browser says of the page: broken scripts, and whatever the policy has forbidden."""
        self.run("0")  # all events up to now have come
        return [text for event in self.pipe.events if (text := _complaint(event))]


@contextmanager
def chromium() -> Iterator[Pipe]:
    """A browser without a window, and without a past."""
    program = shutil.which("chromium")
    assert program is not None
    to_browser, writing = os.pipe()
    reading, from_browser = os.pipe()
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [*_renumbered(to_browser, from_browser), program, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": profile, "TZ": "UTC"},
        )
        os.close(to_browser)
        os.close(from_browser)
        try:
            yield Pipe(reading, writing)
        finally:
            os.close(writing)  # the browser ends when nobody is there
            os.close(reading)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _renumbered(to_browser: int, from_browser: int) -> Sequence[str]:
    """What starts a program with these descriptors as 3 and 4, which is where Chromium reads and writes."""
    script = "import os, sys; os.dup2({}, 3); os.dup2({}, 4); os.execvp(sys.argv[1], sys.argv[1:])"
    return sys.executable, "-c", script.format(to_browser, from_browser)


@contextmanager
def tab(pipe: Pipe) -> Iterator[Tab]:
    """A page of its own."""
    target = pipe.call("Target.createTarget", url="about:blank")["targetId"]
    session = pipe.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    opened = Tab(pipe, session)
    for domain in ("Page", "Runtime", "Log", "Network"):
        opened.call(f"{domain}.enable")
    pipe.events.clear()
    opened.size(1280)
    try:
        yield opened
    finally:
        pipe.call("Target.closeTarget", targetId=target)


def axe(opened: Tab) -> list[str]:
    """What axe-core (https://github.com/dequelabs/axe-core) finds wrong, by WCAG 2.2 AA and its own best practices."""
    opened.call("Page.setBypassCSP", enabled=True)
    opened.run(Path(__file__).with_name("axe.min.js").read_text(encoding="utf-8") + ";0")
    found: list[Mapping[str, Any]] = opened.run("axe.run().then((result) => result.violations)")
    return [f"{rule['id']}: {node['target']} {node['failureSummary']}" for rule in found for node in rule["nodes"]]


def _complaint(event: Mapping[str, Any]) -> str:
    method, told = event.get("method"), event.get("params", {})
    if method == "Runtime.exceptionThrown":
        return str(told["exceptionDetails"])
    if method == "Log.entryAdded" and told["entry"]["level"] in {"error", "warning"}:
        return str(told["entry"]["text"])
    if method == "Runtime.consoleAPICalled" and told["type"] in {"error", "warning", "assert"}:
        return str(told["args"])
    return ""
