"""Asking the agent for what takes minutes: each step is told while it goes on, and Ctrl-C only stops looking."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from gpuagent.ask import NoAgent, default_socket, fetch_document
from gpuagent.cli.cells import clean
from gpuagent.cli.control import ask_agent
from gpuagent.cli.source import tell
from gpuagent.units import format_duration

Document = dict[str, Any]

_LOOK_EVERY_SECONDS = 1.0
_UNKNOWN_SECONDS = 120.0
"""Where the agent does not tell how long it looks and proves."""
_BEYOND_SECONDS = 30.0
"""For a busy machine and a slow disk."""
EXIT_INTERRUPTED = 130


def attend(pid: int, path: str, body: Document, socket: Path | None, waits_seconds: Sequence[float]) -> Document:
    """The agent's answer; what it does meanwhile goes to standard error.

    It is waited for as long as the steps themselves wait, with a fresh reading before each and the proof after the
    last. Ctrl-C ends the command with status 130: the agent goes on.
    """
    record = _Record(pid, socket)
    limit = record.longest_seconds(waits_seconds)
    answers: list[Document] = []
    ends: list[typer.Exit] = []

    def ask() -> None:
        try:
            answers.append(ask_agent("POST", path, socket, body, timeout_seconds=limit))
        except typer.Exit as end:  # it has said why
            ends.append(end)

    asking = threading.Thread(target=ask, name="the request", daemon=True)
    asking.start()
    try:
        while asking.is_alive():
            asking.join(_LOOK_EVERY_SECONDS)
            if asking.is_alive():
                record.tell_news()
    except KeyboardInterrupt:
        tell("no longer looking; the agent goes on with it: `gpuagent remedies` shows what comes of it")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if ends:
        raise ends[0]
    return answers[0]


class _Record:
    """What the agent has on record about a process, as far as it has not been told."""

    def __init__(self, pid: int, socket: Path | None) -> None:
        self._pid = pid
        self._socket = socket or default_socket()
        self._first = self._fetch()
        self._known = {run.get("id") for run in self._first.get("remedies", ())}
        self._told = 0

    def longest_seconds(self, waits_seconds: Sequence[float]) -> float:
        """What the steps can take by the agent's own waits."""
        look = float(self._first.get("look_seconds", _UNKNOWN_SECONDS))
        proof = float(self._first.get("proof_seconds", _UNKNOWN_SECONDS))
        return sum(waits_seconds) + look * (len(waits_seconds) + 2) + proof + _BEYOND_SECONDS

    def tell_news(self) -> None:
        """One line for each step that was begun since."""
        for run in self._fetch().get("remedies", ()):
            if run.get("id") in self._known or run.get("alertname"):
                continue
            intents = [step for step in run.get("steps", ()) if step.get("kind") == "intent"]
            waits = list(run.get("waits_seconds", ()))
            for number, step in enumerate(intents[self._told :], self._told):
                wait = f", up to {format_duration(waits[number])}" if number < len(waits) else ""
                note = f" ({clean(step['note'])})" if step.get("note") else ""
                what = "would be done, and waited for" if run.get("dry_run") else "waiting for its effect"
                tell(f"{clean(step['step'])}: {what}{wait}{note}")
            self._told = max(self._told, len(intents))

    def _fetch(self) -> Document:
        """{} where it cannot be had: the answer counts, this is for the eye."""
        try:
            found = fetch_document(self._socket, f"/api/v1/processes/{self._pid}/remedies")
        except NoAgent:
            return {}
        return found if isinstance(found, dict) else {}
