"""Requests that act on a process: which process is meant, and how it goes on until the agent has answered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer

from gpuagent.cli.agent import Refused, answer_of, tell
from gpuagent.cli.cells import clean
from gpuagent.core.api_client import AgentUnreachable, default_socket, fetch_document
from gpuagent.core.identity import SHOWN_FIELDS
from gpuagent.core.units import format_duration
from gpuagent.core.wording import NOT_ON_LAST_LIST

Document = dict[str, Any]

_PATH = "/api/v1/processes/identified"


def read_pid(text: str) -> int:
    """Return the number that was typed: ASCII digits alone, as `ps` prints them. Raises typer.BadParameter."""
    if not (text.isascii() and text.isdigit()):
        raise typer.BadParameter(f"{text!r} is not a pid")
    return int(text)


read_pid.__name__ = "pid"  # which `--help` prints as the type of the argument


class Unidentified(Exception):
    """Nothing can be asked about this pid, and why."""


class Chosen(NamedTuple):
    """A process that a person named, with the row of each GPU it is on; the first is the one that is acted on."""

    pid: int
    rows: Sequence[Document]
    beside: Sequence[Document] = ()
    """Those that end where its unit does, if it is ended by a signal alone."""

    @property
    def first(self) -> Document:
        """The row of the GPU whose memory is watched."""
        return self.rows[0]

    @property
    def identity(self) -> Document:
        """The part of a request that tells this process from every other one."""
        shown = [[each.get("pid"), each.get("start_ticks")] for each in self.ends_with_it]
        identity = {name: self.first.get(name) for name in SHOWN_FIELDS}
        return identity | ({"ends_with_it": shown} if shown else {})

    @property
    def ends_with_it(self) -> Sequence[Document]:
        """Those that end, or are hung up, together with it, as far as they can be seen."""
        own = self.first.get("ends_with_it") or ()
        known = {self.pid, *(each.get("pid") for each in own)}
        return [*own, *(each for each in self.beside if each.get("pid") not in known)]

    @property
    def end_lines(self) -> list[str]:
        """A line for each of them; the person who asks has to see them all."""
        if self.first.get("ends_with_it", ()) is None:
            return ["whom its end would end as well cannot be told"]
        return [_member(each) for each in self.ends_with_it]


def _member(row: Document) -> str:
    why = f", {clean(row['why'])}" if row.get("why") else ""
    text = f"pid {row.get('pid')} ({clean(row.get('process') or '?')} of {clean(row.get('user') or '?')}{why})"
    return f"{'' if row.get('certain', True) else 'perhaps '}{text}{'' if row.get('belongs') else ', not of its own'}"


def read_own_namespace() -> int:
    """Return the inode of this command's pid namespace; 0 where /proc does not tell."""
    from gpuagent.procfs.machine import own_namespace  # all of procfs: only where it is needed

    return own_namespace()


def fetch_identified(socket: Path | None, own: Callable[[], int] = read_own_namespace) -> Document:
    """Return the agent's document. End the command with 1 where there is none, or where its pids are not ours."""
    try:
        return identified_processes(socket, own)
    except Refused as error:
        tell(str(error))
        raise typer.Exit(1) from None


def identified_processes(socket: Path | None, own: Callable[[], int] = read_own_namespace) -> Document:
    """Return the agent's document. Raises Refused where there is none, or where its pids are not ours."""
    try:
        document: Any = fetch_document(socket or default_socket(), _PATH)
    except AgentUnreachable as error:
        raise Refused(f"Cannot reach the agent: {error}. Is it running?") from None
    if why := namespace_refusal((document.get("agent") or {}).get("pid_namespace"), own()):
        raise Refused(why)
    return document if isinstance(document, dict) else {}


def namespace_refusal(agents: int | None, own: int) -> str:
    """Return why a pid that is typed here may be another process for the agent; "" if it means the same."""
    if agents and agents == own:
        return ""
    if agents and own:
        return (
            "This shell is in another pid namespace than the agent, where the same pid is another process. "
            "Run the command on the host, where the agent runs."
        )
    return "The pid namespace of the agent or of this shell is unknown: the same pid may be another process there."


def choose(document: Document, pid: int, gpu: str = "", *, with_unit: bool = False) -> Chosen:
    """Return the process with this pid, on this GPU (an index or a UUID; "" for the readable one where it holds most).

    `with_unit` counts those that end where its unit does. Raises Unidentified.
    """
    rows = [row for row in document.get("processes", ()) if row.get("pid") == pid]
    there = [row for row in rows if gpu in {"", str(row.get("gpu")), row.get("gpu_uuid")}]
    if not there:
        blind = [
            str(each.get("text"))
            for each in document.get("unreadable") or ()
            if gpu in {"", str(each.get("gpu")), each.get("gpu_uuid")}
        ]
        if blind:
            text = f"whether pid {pid} is on a GPU is not known: {'; '.join(blind)}; {NOT_ON_LAST_LIST}"
            raise Unidentified(clean(text))
        place = f"GPU {gpu}" if gpu else "a GPU"
        raise Unidentified(f"no process with pid {pid} is on {place}; `gpuagent ps` shows who is")
    there.sort(key=lambda row: (bool(row.get("unreadable")), -(row.get("memory_used_bytes") or 0)))
    if why := there[0].get("why_not"):
        raise Unidentified(clean(why))
    if not all(there[0].get(name) for name in SHOWN_FIELDS if name != "pid_namespace"):
        text = "cannot be identified well enough to act on it: end it with what started it"
        raise Unidentified(f"pid {pid} is on a GPU, but {text}")
    unit = there[0].get("unit_at_risk") if with_unit else ""
    units = document.get("units_at_risk") or ()
    beside = next((each.get("ends_with_it") or () for each in units if unit and each.get("unit") == unit), ())
    return Chosen(pid, [*there, *(row for row in rows if row not in there)], beside)


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
    say: Callable[[str], None] = tell,
) -> list[Answer]:
    """Return the agent's answer to each request, or why there is none; `say` is told what it does meanwhile.

    The requests are sent in order, and none waits for the answer to another: that comes only when the memory is back.
    `report` is called with each answer as soon as it is there.
    Each is waited for as long as the steps themselves wait, with a fresh reading before each and the proof after the
    last. Ctrl-C ends the command with status 130: the agent goes on with what it was asked.
    """
    conversations = [_Conversation(each, socket, waits_seconds, say, named=len(requests) > 1) for each in requests]
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
        tell("Stopped watching; the agent continues. `gpuagent remedies` shows the result.")
        if unasked := [str(each.request.pid) for each in conversations if not each.begun]:
            tell(f"Not requested yet, and left alone: pid {', '.join(unasked)}")
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

    def __init__(
        self,
        request: Request,
        socket: Path | None,
        waits_seconds: Sequence[float],
        say: Callable[[str], None],
        *,
        named: bool,
    ) -> None:
        """`say` is told the news. `named`: each line begins with the pid, as there are several."""
        self._say = say
        self.request = request
        self.begun = False
        self.answer: Answer = Refused("It was not requested.")
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
                what = "dry run, would wait for its effect" if run.get("dry_run") else "waiting for its effect"
                self._say(f"{self._prefix}{clean(step['step'])}: {what}{wait}{note}")
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
