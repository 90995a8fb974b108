"""`gpuagent remedies`: what was done to give memory back, and letting it go on."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any

import typer

from gpuagent.ask import NoAgent, default_socket, fetch_document
from gpuagent.cli.cells import clean
from gpuagent.cli.control import ask_agent
from gpuagent.cli.source import EXIT_NO_DATA, Socket, Url, tell
from gpuagent.units import format_bytes, format_duration

remedies_app = typer.Typer(
    help="What was done to give memory back.", invoke_without_command=True, no_args_is_help=False
)


@remedies_app.callback()
def remedies(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="The agent's document")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The newest so many")] = 20,
    socket: Socket = None,
    url: Url = None,
) -> None:
    """Show what remedies did, to whom, on whose word, and whether the memory came back.

    Exit status: 0 the record could be read, 3 no agent answers.
    """
    if context.invoked_subcommand is not None:
        return
    try:
        document: Any = fetch_document(url or socket or default_socket(), "/api/v1/remedies", 10.0)
    except NoAgent as error:
        tell(f"no agent answers: {error}")
        raise typer.Exit(EXIT_NO_DATA) from None
    document["remedies"] = document["remedies"][-limit:]
    if as_json:
        typer.echo(json.dumps(document, indent=1))
        return
    if document["stopped"]:
        tell(f"remedies are stopped: {clean(document['stopped'])}; `gpuagent remedies reset` lets them go on")
    if not document["remedies"]:
        tell("nothing was done, and nothing was refused")
    for run in document["remedies"]:
        typer.echo("\n".join(lines(run)))


@remedies_app.command()
def reset(socket: Socket = None) -> None:
    """Let remedies go on after they have stopped themselves: once you have looked why they did not help."""
    ask_agent("POST", "/api/v1/remedies/reset", socket)
    typer.echo("remedies may act again")


def lines(run: dict[str, Any]) -> list[str]:
    """A run in words: who and why, the steps, and the end."""
    when = datetime.fromtimestamp(run["time_seconds"]).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    dry = "  (dry run)" if run.get("dry_run") else ""
    why = run.get("alertname") or f"asked for by {run.get('asked_by', '?')}"
    who = f"pid {run['pid']} ({clean(run['name'])}) on GPU {run['gpu']}"
    told = [f"{when}  {who}, {format_bytes(run['used_bytes'])}: {clean(why)}{dry}"]
    for step in run["steps"]:
        if step["kind"] == "intent":
            note = f"  ({clean(step['note'])})" if step.get("note") else ""
            told.append(f"    {clean(step['step'])}{note}")
        elif not step.get("ok", True):
            told.append(f"      failed: {clean(step.get('detail', ''))}")
    end = run.get("end")
    if end is None:
        return [*told, "    is under way"]
    freed = f", {format_bytes(end['released_bytes'])} came back" if end.get("released_bytes") is not None else ""
    took = f" in {format_duration(end['seconds'])}" if end.get("seconds") is not None else ""
    detail = f": {clean(end['detail'])}" if end.get("detail") else ""
    return [*told, f"    {str(end['result']).replace('_', ' ')}{freed}{took}{detail}"]
