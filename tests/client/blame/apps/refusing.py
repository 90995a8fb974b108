"""Prints the answers of an app with torch that is not to be looked into: capturing, stopping, on the CPU."""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import json
import sys

import torch

from gpuagent_client import blame


class App:
    """In one of these moods."""

    thread_id = 0

    def __init__(self, *, capturing: bool = False, stopping: bool = False) -> None:
        self._capturing = capturing
        self._stopping = stopping

    def requests_served(self) -> int | None:
        return None

    def is_capturing(self) -> bool:
        return self._capturing

    def wait(self, seconds: float) -> bool:
        return self._stopping


kept = torch.ones(1)
args = {"window_seconds": 1}
answers = {
    "capturing": blame.run("census", args, 60.0, App(capturing=True)),
    "stopping": blame.run("census", args, 60.0, App(stopping=True)),
    "lines": blame.run("lines", args, 60.0, App()),
    "deadline": blame.run("census", args, 1.0, App()),
}
sys.stdout.write(json.dumps(answers))
