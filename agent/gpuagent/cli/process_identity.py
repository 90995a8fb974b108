"""Processes on GPUs as the agent identifies them, for commands that act on one: the pid alone names no process.

A pid is a number of the pid namespace of whoever typed it, and of one moment: what a command sends is what the agent
showed of the process, and the agent refuses any other that has the number by then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer

from gpuagent.cli.cells import clean
from gpuagent.cli.source import tell
from gpuagent.core.api_client import AgentUnreachable, default_socket, fetch_document
from gpuagent.core.identity import SHOWN_FIELDS
from gpuagent.core.wording import NOT_ON_LAST_LIST

Document = dict[str, Any]

_PATH = "/api/v1/processes/identified"


def read_pid(text: str) -> int:
    """Return the number that was typed: ASCII digits alone, as `ps` prints them. Raises typer.BadParameter."""
    if not (text.isascii() and text.isdigit()):
        raise typer.BadParameter(f"{text!r} is no pid: a pid is digits, 0 to 9")
    return int(text)


class Unidentified(Exception):
    """Nothing can be asked about this pid, and why."""


class Chosen(NamedTuple):
    """A process that a person named, with the row of each GPU it is on; the first is the one that is acted on."""

    pid: int
    rows: Sequence[Document]

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
        return self.first.get("ends_with_it") or ()

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
        document: Any = fetch_document(socket or default_socket(), _PATH)
    except AgentUnreachable as error:
        tell(f"no agent answers: {error}")
        raise typer.Exit(1) from None
    if why := namespace_refusal((document.get("agent") or {}).get("pid_namespace"), own()):
        tell(why)
        raise typer.Exit(1)
    return document if isinstance(document, dict) else {}


def namespace_refusal(agents: int | None, own: int) -> str:
    """Return why a pid that is typed here may be another process for the agent; "" if it means the same."""
    if agents and agents == own:
        return ""
    if agents and own:
        return (
            "this shell is in another pid namespace than the agent: the same pid is another process there."
            " Give the command where the agent runs, on the host"
        )
    return "the agent or /proc here does not tell the pid namespace: the same pid may be another process there"


def choose(document: Document, pid: int, gpu: str = "") -> Chosen:
    """Return the process with this pid, on this GPU (an index or a UUID; "" for the readable one where it holds most).

    Raises Unidentified.
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
        text = "too little is known of it to act on it: end it with what started it"
        raise Unidentified(f"pid {pid} is on a GPU, but {text}")
    return Chosen(pid, [*there, *(row for row in rows if row not in there)])
