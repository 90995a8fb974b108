"""`gpuagent kill`: the safe ladder of the rules, by hand."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from gpuagent.cli.attended import EXIT_INTERRUPTED, Answer, Request, attend
from gpuagent.cli.cells import clean, width_of
from gpuagent.cli.control import Refused
from gpuagent.cli.identified import Chosen, Unidentified, choose, fetch_identified, read_pid
from gpuagent.cli.kill_prompt import question
from gpuagent.cli.source import Socket, tell
from gpuagent.core.units import format_bytes, format_duration

_WAITS_SECONDS = {"terminate": 30.0, "kill": 60.0, "restart_unit": 60.0}
"""As the agent waits after each."""
_SHOWN = {"terminate": "SIGTERM", "kill": "SIGKILL", "restart_unit": "restart of its unit"}
_DONE = frozenset({"released", "resolved", "exited", "dry_run"})


def kill(
    pids: Annotated[
        list[int],
        typer.Argument(metavar="PID", parser=read_pid, help="The processes, as `gpuagent ps` shows them"),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Decide and record, but do nothing")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Ignore the allow list. The never-list still applies.")
    ] = False,
    restart_unit: Annotated[
        bool, typer.Option("--restart-unit", help="Have systemd restart the unit that runs it, instead")
    ] = False,
    gpu: Annotated[str, typer.Option("--gpu", help="Watch the memory of this GPU: an index or a UUID")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="What became of it, as a JSON document; of several, as a list of them")
    ] = False,
    socket: Socket = None,
) -> None:
    """End processes and see their memory come back: SIGTERM, after 30 s SIGKILL, the same checks before each.

    You are shown each process, and whom the kernel ends with it, and asked once about all of them. What is ended is
    what you were shown: if a pid belongs to another process by then, or the process runs another program or is
    elsewhere, the agent refuses. None waits until the memory of another has come back.

    Without `remedies.allow` your word is enough; an allow list that is given is kept to, unless forced. The never-list,
    and any doubt about who the process is, stand in every case. Pauses, limits per hour and day, cool-downs and the
    breaker bound rules, not you. What is done is recorded with your name, and counts for the rules that come after it:
    see `gpuagent remedies`.

    Each step is told on standard error when it is taken. Ctrl-C stops looking, not the agent.

    Exit status: 0 the memory of all is back (or it was a dry run), 1 not, 2 nobody was there to be asked, 130 Ctrl-C.
    """
    asks = not (yes or dry_run)
    if asks and not sys.stdin.isatty():
        tell("there is no terminal to ask on: say --yes if you mean it")
        raise typer.Exit(2)
    document = fetch_identified(socket)
    chosen, missed = [], False
    for pid in dict.fromkeys(pids):
        try:
            chosen.append(choose(document, pid, gpu))
        except Unidentified as error:
            missed = True
            tell(str(error))
    if restart_unit:
        chosen = _one_of_each_unit(chosen)
    if not chosen:
        raise typer.Exit(1)
    if asks:
        _ask(chosen, question(chosen, document, width_of(sys.stderr), restart_unit=restart_unit))
    else:
        _tell_who_ends_too(chosen)
    steps = ["restart_unit"] if restart_unit else ["terminate", "kill"]
    requests = [
        Request(
            each.pid, f"/api/v1/processes/{each.pid}/kill",
            {"dry_run": dry_run, "force": force, "steps": steps, "gpu": gpu, **each.identity},
        )
        for each in chosen
    ]  # fmt: skip
    answers = attend(
        requests, socket, [_WAITS_SECONDS[step] for step in steps], _Report(requests, steps, as_json=as_json)
    )
    if as_json:
        _print_json(requests, answers)
    if missed or not all(_succeeded(each) for each in answers):
        raise typer.Exit(1)


def _tell_who_ends_too(chosen: Sequence[Chosen]) -> None:
    for each in chosen:
        for line in each.end_lines:
            tell(f"the end of pid {each.pid} also ends {line}")


def _ask(chosen: Sequence[Chosen], lines: Sequence[str]) -> None:
    """Return after a yes. Anything else ends the command: with 1, and with 130 after Ctrl-C."""
    for line in lines:
        tell(line)
    try:
        confirmed = typer.confirm("End it?" if len(chosen) == 1 else f"End all {len(chosen)} of them?", err=True)
    except typer.Abort as abort:
        tell("")
        interrupted = isinstance(abort.__context__, KeyboardInterrupt)
        raise typer.Exit(EXIT_INTERRUPTED if interrupted else 1) from None
    if not confirmed:
        tell("nothing was done")
        raise typer.Exit(1)


def report(answer: dict[str, Any]) -> str:
    """Return one line for people, and one for each way out of a refusal."""
    who = f"pid {answer['pid']} ({clean(answer['name'])}) on GPU {answer['gpu']}"
    words = str(answer["result"]).replace("_", " ")
    freed, seconds = answer.get("released_bytes"), answer.get("seconds")
    if freed is not None:
        words += f", {format_bytes(freed)} came back"
    if seconds is not None:
        words += f" in {format_duration(seconds)}"
    detail = f": {clean(answer['detail'])}" if answer.get("detail") else ""
    return "\n".join([f"{who}: {words}{detail}", *advice(answer)])


def advice(answer: dict[str, Any]) -> list[str]:
    """Return what the agent says would lift a refusal, a line each."""
    return [f"  what to do: {clean(each)}" for each in answer.get("advice") or ()]


class _Report:
    """Prints each answer when it comes; as JSON they are printed together in the end."""

    def __init__(self, requests: Sequence[Request], steps: Sequence[str], *, as_json: bool) -> None:
        self._steps = steps
        self._named = len(requests) > 1
        self._as_json = as_json

    def __call__(self, request: Request, answer: Answer) -> None:
        if isinstance(answer, Refused):
            tell(f"pid {request.pid}: {answer}" if self._named else str(answer))
        elif not self._as_json:
            typer.echo(report(answer))
            for step in self._steps if answer["result"] == "dry_run" else ():
                if f"; {_SHOWN[step]} would be passed over" in str(answer.get("detail", "")):
                    continue
                wait = format_duration(_WAITS_SECONDS[step])
                typer.echo(f"  would be done: {_SHOWN[step]}, and waited for, up to {wait}")


def _one_of_each_unit(chosen: Sequence[Chosen]) -> list[Chosen]:
    """Return one process of each unit: a restart ends all that a unit runs, and is wanted once."""
    kept: dict[str, Chosen] = {}
    for each in chosen:
        unit = each.first.get("unit") or f"pid {each.pid}"
        if unit in kept:
            tell(f"pid {each.pid} is restarted with pid {kept[unit].pid}: both are of {clean(unit)}")
        kept.setdefault(unit, each)
    return list(kept.values())


def _print_json(requests: Sequence[Request], answers: Sequence[Answer]) -> None:
    documents = [
        {"pid": request.pid, "error": str(answer)} if isinstance(answer, Refused) else answer
        for request, answer in zip(requests, answers, strict=True)
    ]
    if len(documents) > 1:
        typer.echo(json.dumps(documents, indent=1))
    elif not isinstance(answers[0], Refused):
        typer.echo(json.dumps(documents[0], indent=1))


def _succeeded(answer: Answer) -> bool:
    return not isinstance(answer, Refused) and answer.get("result") in _DONE
