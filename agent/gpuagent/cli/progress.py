"""Ask the agent for what takes minutes: each step is told while it goes on, and Ctrl-C only stops looking."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer

from gpuagent.cli.cells import clean
from gpuagent.cli.control import Refused, answer_of
from gpuagent.cli.source import tell
from gpuagent.core.api_client import AgentUnreachable, default_socket, fetch_document
from gpuagent.core.units import format_duration

Document = dict[str, Any]
Answer = Document | Refused

_LOOK_EVERY_SECONDS = 1.0
_UNKNOWN_SECONDS = 120.0
"""Where the agent does not tell how long it looks and proves."""
_BEYOND_SECONDS = 30.0
"""For a busy machine and a slow disk."""
_AT_A_TIME = 16
"""Requests that wait for their answers at once: each holds a connection, of which the agent has 64 by default."""
EXIT_INTERRUPTED = 130


class Request(NamedTuple):
    """What is asked of the agent about one process."""

    pid: int
    path: str
    body: Document


def _keep_silent(_: Request, __: Answer) -> None:
    """Report nothing: the caller reads the answers."""


def attend(
    requests: Sequence[Request],
    socket: Path | None,
    waits_seconds: Sequence[float],
    report: Callable[[Request, Answer], None] = _keep_silent,
) -> list[Answer]:
    """Return the agent's answer to each request, or why there is none; what it does meanwhile goes to standard error.

    The requests are sent in order, and none waits for the answer to another: that comes only when the memory is back.
    `report` is called with each answer as soon as it is there.
    Each is waited for as long as the steps themselves wait, with a fresh reading before each and the proof after the
    last. Ctrl-C ends the command with status 130: the agent goes on with what it was asked.
    """
    conversations = [_Conversation(each, socket, waits_seconds, named=len(requests) > 1) for each in requests]
    stopped = threading.Event()
    asking = threading.Thread(target=_ask_all, args=(conversations, stopped), name="the requests", daemon=True)
    asking.start()
    try:
        while asking.is_alive():
            asking.join(_LOOK_EVERY_SECONDS)
            for each in conversations:
                each.tell_news()
                each.report_once(report)
    except KeyboardInterrupt:
        stopped.set()
        tell("no longer looking; the agent goes on with it: `gpuagent remedies` shows what comes of it")
        if unasked := [str(each.request.pid) for each in conversations if not each.begun]:
            tell(f"not asked for yet, and left alone: pid {', '.join(unasked)}")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    for each in conversations:
        each.report_once(report)
    return [each.answer for each in conversations]


def _ask_all(conversations: Sequence[_Conversation], stopped: threading.Event) -> None:
    """Send all requests in order, a bounded number at a time, and wait for their answers."""
    room = threading.Semaphore(_AT_A_TIME)
    threads = []
    for each in conversations:
        room.acquire()
        if stopped.is_set():
            return
        each.begun = True
        thread = threading.Thread(target=each.ask, args=(room,), name=f"request for {each.request.pid}", daemon=True)
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()


class _Conversation:
    """One request: its answer, and what the agent has on record about the process as far as it has not been told."""

    def __init__(self, request: Request, socket: Path | None, waits_seconds: Sequence[float], *, named: bool) -> None:
        """`named`: each line begins with the pid, as there are several."""
        self.request = request
        self.begun = False
        self.answer: Answer = Refused("it was not asked for")
        self._socket = socket or default_socket()
        self._prefix = f"pid {request.pid}: " if named else ""
        first = self._fetch()
        self._limit_seconds = _longest_seconds(first, waits_seconds)
        self._known = {run.get("id") for run in first.get("remedies", ())}
        self._told = 0
        self._ended = False
        self._reported = False

    def ask(self, room: threading.Semaphore) -> None:
        """Send the request and keep what comes back."""
        try:
            self.answer = answer_of(
                "POST", self.request.path, self._socket, self.request.body, timeout_seconds=self._limit_seconds
            )
        except Refused as error:
            self.answer = error
        finally:
            self._ended = True
            room.release()

    def tell_news(self) -> None:
        """Tell each step that was begun since, in one line."""
        if not self.begun or self._ended:
            return
        for run in self._fetch().get("remedies", ()):
            if run.get("id") in self._known or run.get("alertname"):
                continue
            intents = [step for step in run.get("steps", ()) if step.get("kind") == "intent"]
            waits = list(run.get("waits_seconds", ()))
            for number, step in enumerate(intents[self._told :], self._told):
                wait = f", up to {format_duration(waits[number])}" if number < len(waits) else ""
                note = f" ({clean(step['note'])})" if step.get("note") else ""
                what = "would be done, and waited for" if run.get("dry_run") else "waiting for its effect"
                tell(f"{self._prefix}{clean(step['step'])}: {what}{wait}{note}")
            self._told = max(self._told, len(intents))

    def report_once(self, report: Callable[[Request, Answer], None]) -> None:
        """Hand the answer on, when it is there and was not handed on before."""
        if self._ended and not self._reported:
            self._reported = True
            report(self.request, self.answer)

    def _fetch(self) -> Document:
        """Return {} where it cannot be had: the answer counts, this is for the eye."""
        try:
            found = fetch_document(self._socket, f"/api/v1/processes/{self.request.pid}/remedies")
        except AgentUnreachable:
            return {}
        return found if isinstance(found, dict) else {}


def _longest_seconds(record: Document, waits_seconds: Sequence[float]) -> float:
    """Return what the steps can take by the agent's own waits."""
    look = float(record.get("look_seconds", _UNKNOWN_SECONDS))
    proof = float(record.get("proof_seconds", _UNKNOWN_SECONDS))
    return sum(waits_seconds) + look * (len(waits_seconds) + 2) + proof + _BEYOND_SECONDS
