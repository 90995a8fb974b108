"""`gpuagent remedies`: what was done to give memory back, and letting it go on."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from gpuagent.cli.agent import EXIT_NO_DATA, Socket, Url, ask_agent, tell
from gpuagent.cli.alert_screen import simulated_lines
from gpuagent.cli.cells import clean, width_of, wrap
from gpuagent.core.api_client import AgentUnreachable, default_socket, fetch_document
from gpuagent.core.units import format_bytes, format_duration

_NARROWEST = 40

remedies_app = typer.Typer(invoke_without_command=True, no_args_is_help=False)


@remedies_app.callback()
def remedies(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print the agent's JSON document")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many to show, newest last")] = 20,
    socket: Socket = None,
    url: Url = None,
) -> None:
    """Show past remedies: which process, who asked for it, and whether memory was freed.

    Exit status: 0 shown, 3 the agent does not answer.
    """
    if context.invoked_subcommand is not None:
        return
    try:
        document: Any = fetch_document(url or socket or default_socket(), "/api/v1/remedies", 10.0)
    except AgentUnreachable as error:
        tell(f"Cannot reach the agent: {error}. Is it running?")
        raise typer.Exit(EXIT_NO_DATA) from None
    document["remedies"] = document["remedies"][-limit:]
    if as_json:
        typer.echo(json.dumps(document, indent=1))
        return
    width = max(_NARROWEST, width_of(sys.stdout))
    for line in simulated_lines(document, width):
        tell(line)
    _tell_standing(document)
    for each in document.get("withheld", ()):  # an older agent does not tell
        typer.echo("\n".join(withheld_lines(each, width)))
    if not document["remedies"]:
        withheld = document.get("withheld")
        tell("No remedy was run, for the reasons above." if withheld else "No remedy was run or refused.")
    for run in document["remedies"]:
        typer.echo("\n".join(lines(run, width)))


def _tell_standing(document: dict[str, Any]) -> None:
    """Tell why rules act on nobody, or leave somebody alone."""
    if document.get("off"):
        tell(f"Remedies are off: {clean(document['off'])}")
    if document["stopped"]:
        tell(f"Remedies are stopped: {stopped_words(document)}. To resume them: gpuagent remedies reset")
    for limit in document.get("limits", ()):  # an older agent sets none
        tell(clean(_limit_words(limit)))
    if left_alone := document.get("left_alone"):  # an older agent does not tell
        tell(
            f"Rules leave the processes of {clean(', '.join(left_alone))} alone: the last actions on them gave no"
            " memory back. To resume: gpuagent remedies reset"
        )


@remedies_app.command()
def stop(socket: Socket = None) -> None:
    """Stop all remedies of rules now: none begins, and those running take no further step.

    This lasts until `gpuagent remedies reset`, across restarts too. Steps already taken (a signal that was sent) are
    not undone. `gpuagent kill` still works.

    Exit status: 0 stopped, 1 the agent does not answer, or the stop could not be recorded and ends with a restart.
    """
    answer = ask_agent("POST", "/api/v1/remedies/stop", socket)
    typer.echo("Remedies are stopped. To resume them: gpuagent remedies reset")
    if not answer.get("recorded"):
        why = clean(answer.get("message") or "unknown reason")
        tell(f"The stop could not be recorded, so a restart of the agent would end it: {why}")
        raise typer.Exit(1)


@remedies_app.command()
def lift(socket: Socket = None) -> None:
    """Lift the GPU memory limits that this agent has set. Those of others stay.

    A ladder may set one again while its alert goes on: `gpuagent remedies stop` keeps it from that.

    Exit status: 0 lifted, or there were none; 1 one could not be lifted, the agent does not answer, or cannot reach
    who sets limits.
    """
    answer = ask_agent("POST", "/api/v1/remedies/lift", socket)
    lifted, failed = answer.get("lifted", []), answer.get("failed", [])
    for each in lifted:
        typer.echo(clean(each))
    for each in failed:
        tell(clean(each))
    if failed:
        raise typer.Exit(1)
    if not lifted:
        typer.echo("No memory limit was set by a remedy.")


@remedies_app.command()
def reset(socket: Socket = None) -> None:
    """Resume remedies after `gpuagent remedies stop`, or after they stopped by themselves. Find out why first."""
    ask_agent("POST", "/api/v1/remedies/reset", socket)
    typer.echo("Remedies may act again.")


def _limit_words(limit: dict[str, Any]) -> str:
    """Return a memory limit that is set, or may be, in words."""
    when = datetime.fromtimestamp(limit["set_seconds"], UTC)
    state = "is limited" if limit["is_set"] else "may be limited (the driver has not confirmed it)"
    way_out = "gpuagent remedies lift" if limit["is_own"] else "ask the agent that has set it (docs/remedies.md)"
    return (
        f"{limit['cgroup']} {state} to {format_bytes(limit['hard_bytes'])} on {limit['gpu_uuid']} since"
        f" {when:%Y-%m-%d %H:%M} UTC (remedy on pid {limit['pid']}). To lift it: {way_out}"
    )


def withheld_lines(withheld: dict[str, Any], width: int) -> list[str]:
    """Return in words why nothing is done about an alert that fires."""
    when = datetime.fromtimestamp(withheld["since_seconds"]).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    labels = withheld.get("labels", {})
    place = f" on GPU {clean(labels['gpu'])}" if labels.get("gpu") else ""
    reason = f": {clean(withheld['reason'])}" if withheld.get("reason") else ""
    return [
        *_indented(f"{when}  {clean(withheld['alertname'])}{place} fires", width, 0),
        *_indented(f"nothing is done{reason}", width, 4),
    ]


def stopped_words(document: dict[str, Any]) -> str:
    """Return why remedies are stopped; where a person has done it, who and when."""
    by, seconds = document.get("stopped_by"), document.get("stopped_seconds")
    if not by:
        return clean(document["stopped"])
    when = f" on {datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC" if seconds is not None else ""
    return f"{clean(by)} has stopped them{when}"


def lines(run: dict[str, Any], width: int) -> list[str]:
    """Return a run in words: who and why, the steps, and the end."""
    when = datetime.fromtimestamp(run["time_seconds"]).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    why = run.get("alertname") or f"asked for by {run.get('asked_by', '?')}"
    who = f"pid {run['pid']} ({clean(run['name'])}) on GPU {run['gpu']}, {format_bytes(run['used_bytes'])}"
    others = [str(pid) for pid in run.get("members", ()) if pid != run["pid"]]
    told = _indented(f"{when}  {who}", width, 0)
    told += _indented(f"{'dry run, ' if run.get('dry_run') else ''}{clean(why)}", width, 2)
    if others:
        told += _indented(f"with it: pid {', '.join(others)}", width, 2)
    ended = dict.fromkeys(each for step in run.get("steps", ()) for each in step.get("ends_with_it") or ())
    if ended:
        told += _indented(f"the kernel ends with it: {clean(', '.join(ended))}", width, 2)
    for step in run["steps"]:
        if step["kind"] == "intent":
            note = f"  ({clean(step['note'])})" if step.get("note") else ""
            told += _indented(f"{clean(step['step'])}{note}", width, 4)
        elif step.get("detail"):
            failed = "" if step.get("ok", True) else "failed: "
            told += _indented(f"{failed}{clean(step['detail'])}", width, 6)
    end = run.get("end")
    if end is None:
        return [*told, "    is under way"]
    freed = f", {format_bytes(end['released_bytes'])} came back" if (end.get("released_bytes") or 0) > 0 else ""
    took = f" in {format_duration(end['seconds'])}" if freed and end.get("seconds") is not None else ""
    if end["result"] == "dry_run" and end.get("detail"):  # which says so
        return [*told, *_indented(clean(end["detail"]), width, 4)]
    detail = f": {clean(end['detail'])}" if end.get("detail") else ""
    return [*told, *_indented(f"{str(end['result']).replace('_', ' ')}{freed}{took}{detail}", width, 4)]


def _indented(text: str, width: int, indent: int) -> list[str]:
    return [" " * indent + line for line in wrap(text, width - indent)]
