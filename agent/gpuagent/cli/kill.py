"""`gpuagent kill`: the safe ladder of the rules, by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gpuagent.ask import NoAgent, default_socket, fetch_document
from gpuagent.cli.attended import attend
from gpuagent.cli.cells import clean
from gpuagent.cli.source import Socket, tell
from gpuagent.units import format_bytes, format_duration

_WAITS_SECONDS = {"terminate": 30.0, "kill": 60.0, "restart_unit": 60.0}
"""As the agent waits after each."""
_DONE = frozenset({"released", "resolved", "exited", "dry_run"})


def kill(
    pid: Annotated[int, typer.Argument(help="The process, as `gpuagent ps` shows it")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Decide and record, but do nothing")] = False,
    force: Annotated[bool, typer.Option("--force", help="Whoever it is, if not on the never-list")] = False,
    restart_unit: Annotated[
        bool, typer.Option("--restart-unit", help="Have systemd restart the unit that runs it, instead")
    ] = False,
    gpu: Annotated[str, typer.Option("--gpu", help="Watch the memory of this GPU: an index or a UUID")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="What became of it, as a JSON document")] = False,
    socket: Socket = None,
) -> None:
    """End a process and see its memory come back: SIGTERM, after 30 s SIGKILL, the same checks before each as by rule.

    It is refused for what `remedies.allow` does not name, unless forced; for what is on the never-list; and wherever
    there is doubt about who it is. What is done is recorded with your name: see `gpuagent remedies`.

    Each step is told on standard error when it is taken. Ctrl-C stops looking, not the agent.

    Exit status: 0 the memory is back (or it was a dry run), 1 not, 2 nobody was there to be asked, 130 Ctrl-C.
    """
    if not (yes or dry_run):
        _confirm(pid, socket)
    steps = ["restart_unit"] if restart_unit else ["terminate", "kill"]
    body = {"dry_run": dry_run, "force": force, "steps": steps, "gpu": gpu}
    waits_seconds = [_WAITS_SECONDS[step] for step in steps]
    answer = attend(pid, f"/api/v1/processes/{pid}/kill", body, socket, waits_seconds)
    typer.echo(json.dumps(answer, indent=1) if as_json else report(answer))
    if answer.get("result") not in _DONE:
        raise typer.Exit(1)


def report(answer: dict[str, Any]) -> str:
    """One line for people."""
    who = f"pid {answer['pid']} ({clean(answer['name'])}) on GPU {answer['gpu']}"
    words = str(answer["result"]).replace("_", " ")
    freed, seconds = answer.get("released_bytes"), answer.get("seconds")
    if freed is not None:
        words += f", {format_bytes(freed)} came back"
    if seconds is not None:
        words += f" in {format_duration(seconds)}"
    detail = f": {clean(answer['detail'])}" if answer.get("detail") else ""
    return f"{who}: {words}{detail}"


def _confirm(pid: int, socket: Path | None) -> None:
    """Show who it is, and ask. Without a terminal nobody can say yes."""
    if not sys.stdin.isatty():
        tell("there is no terminal to ask on: say --yes if you mean it")
        raise typer.Exit(2)
    try:
        document: Any = fetch_document(socket or default_socket(), "/api/v1/processes")
    except NoAgent as error:
        tell(f"no agent answers: {error}")
        raise typer.Exit(1) from None
    for process in document.get("processes", ()):
        if process.get("pid") == pid:
            held = process.get("memory_used_bytes")
            size = format_bytes(held) if held is not None else "an unknown amount"
            tell(f"pid {pid}: {clean(process.get('process') or '?')} of {clean(process.get('user') or '?')}, {size}")
    typer.confirm("End it?", abort=True, err=True)
