"""`gpuagent kill`: the safe ladder of the rules, by hand.

Before they say yes, a person sees enough to recognize each process, and who else is on its GPU.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from gpuagent.cli.agent import Refused, Socket, tell
from gpuagent.cli.cells import clean, cut, width_of, wrap
from gpuagent.cli.remedy_requests import (
    EXIT_INTERRUPTED,
    Answer,
    Chosen,
    Request,
    Unidentified,
    attend,
    choose,
    fetch_identified,
    read_pid,
)
from gpuagent.core.identity import format_container
from gpuagent.core.units import format_bytes, format_duration
from gpuagent.core.wording import assessment_words

Document = dict[str, Any]

_MOST_OTHERS = 8
_LABEL = 11
_MOST_LINES = 4
_WORTH_A_LINE = frozenset({"leaking", "growing", "cached", "levelled off"})


def question(chosen: Sequence[Chosen], document: Document, width: int, *, restart_unit: bool = False) -> list[str]:
    """Return the lines above the question, each at most `width` cells."""
    rows = list(document.get("processes", ()))
    lines = []
    for each in chosen:
        lines.extend(card(each, rows, width, restart_unit=restart_unit))
    if document.get("stale"):
        lines.extend(wrap(f"STALE: read {format_duration(document.get('age_seconds') or 0.0)} ago.", width))
    lines.extend(others_on(chosen, rows, width, restart_unit=restart_unit))
    if document.get("agent", {}).get("dry_run"):
        lines.extend(wrap("remedies.dry_run holds for rules; this is by hand: it acts.", width))
    return lines


def card(chosen: Chosen, rows: Sequence[Document], width: int, *, restart_unit: bool = False) -> list[str]:
    """Return what tells this process from the others on the node, a fact a line."""
    row = chosen.first
    lines = [cut(f"pid {chosen.pid}: {_name(row)} of {_user(row)}", width)]
    for label, text in _facts(chosen, rows, restart_unit=restart_unit):
        pieces = _shortened(wrap(text, width - _LABEL))
        lines.extend(f"{label if not index else '':>{_LABEL - 1}} {piece}" for index, piece in enumerate(pieces))
    return lines


def others_on(
    chosen: Sequence[Chosen], rows: Sequence[Document], width: int, *, restart_unit: bool = False
) -> list[str]:
    """Return a line for each other process on the GPUs of the chosen ones, the largest first, at most eight.

    Those of a unit that is restarted end with it, on whichever GPU they are: all of them are shown.
    """
    units = {each.first.get("unit") for each in chosen if each.first.get("unit")} if restart_unit else set()
    chosen_pids = {each.pid for each in chosen}
    fall = [row for row in rows if row.get("unit") in units and row.get("pid") not in chosen_pids]
    rows = [row for row in rows if row not in fall]
    lines = [cut("In the same unit, and restarted with it:", width)] if fall else []
    lines += [_other(row, width, where=f"GPU {row.get('gpu')}  ") for row in fall]
    return [*lines, *_left_alone(chosen, rows, width)]


def _other(row: Document, width: int, *, where: str = "") -> str:
    return cut(f"  {where}pid {row.get('pid')}  {_user(row)}  {_memory(row)}  {_name(row)}", width)


def _left_alone(chosen: Sequence[Chosen], rows: Sequence[Document], width: int) -> list[str]:
    gpus = {row.get("gpu_uuid") for each in chosen for row in each.rows}
    pids = {each.pid for each in chosen}
    others = [row for row in rows if row.get("gpu_uuid") in gpus and row.get("pid") not in pids]
    names = ", ".join(str(index) for index in sorted({row.get("gpu", 0) for each in chosen for row in each.rows}))
    if not others:
        return [cut(f"Nothing else runs on GPU {names}.", width)]
    others.sort(key=lambda row: -(row.get("memory_used_bytes") or 0))
    lines = [cut(f"Also on GPU {names}, and left alone:", width)]
    for row in others[:_MOST_OTHERS]:
        where = f"GPU {row.get('gpu')}  " if len(gpus) > 1 else ""
        lines.append(_other(row, width, where=where))
    if len(others) > _MOST_OTHERS:
        lines.append(f"  and {len(others) - _MOST_OTHERS} more")
    return lines


def _facts(chosen: Chosen, rows: Sequence[Document], *, restart_unit: bool) -> Iterator[tuple[str, str]]:
    row = chosen.first
    yield "command", row.get("command") or "(not known)"
    if row.get("unit"):
        at_risk = ", which may fail without it, or be started again with all that runs there" if chosen.beside else ""
        yield "unit", f"{row['unit']}{', all of which is restarted' if restart_unit else at_risk}"
    if row.get("container_id"):
        name, short = row.get("container_name"), format_container(row["container_id"])
        yield "container", f"{name} ({short})" if name else short
    if row.get("slurm_job"):
        yield "job", f"Slurm {row['slurm_job']}"
    readable = [each for each in chosen.rows if not each.get("unreadable")]
    if readable:
        yield "holds", ", ".join(f"{_memory(each)} on GPU {each.get('gpu')}" for each in readable)
    for each in chosen.rows:
        if each.get("unreadable"):
            yield "held", f"{_memory(each)} at the last reading. {clean(each['unreadable'])}"
    age = row.get("age_seconds")
    yield "started", f"{format_duration(age)} ago" if age is not None else "at an unknown time"
    parent = next((each for each in rows if each.get("pid") == row.get("parent_pid")), None)
    if parent is not None:
        yield "parent", f"pid {parent['pid']} ({_name(parent)} of {_user(parent)}), which is on GPU {parent.get('gpu')}"
    if row.get("verdict") in _WORTH_A_LINE:
        yield "leak", assessment_words(row)
    for number, text in enumerate(chosen.end_lines):
        yield "" if number else "ends too", text


def _shortened(lines: list[str]) -> list[str]:
    """Shorten a command line, which may be of any length: its beginning and its end tell more than its middle."""
    if len(lines) <= _MOST_LINES:
        return lines
    return [*lines[: _MOST_LINES - 2], "...", lines[-1]]


def _name(row: Document) -> str:
    return clean(row.get("process") or "?")


def _user(row: Document) -> str:
    return clean(row.get("user") or "an unknown user")


def _memory(row: Document) -> str:
    held = row.get("memory_used_bytes")
    return format_bytes(held) if held is not None else "an unknown amount"


WAITS_SECONDS = {"terminate": 30.0, "kill": 60.0, "restart_unit": 60.0}
"""As the agent waits after each."""
_SHOWN = {"terminate": "SIGTERM", "kill": "SIGKILL", "restart_unit": "restart of its unit"}
_DONE = frozenset({"released", "resolved", "exited", "dry_run"})


def kill(
    pids: Annotated[
        list[int],
        typer.Argument(metavar="PID", parser=read_pid, help="The processes, as `gpuagent ps` shows them"),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and record, but send no signal")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Ignore the allow list. The never-list still applies.")
    ] = False,
    restart_unit: Annotated[bool, typer.Option("--restart-unit", help="Restart its systemd unit instead")] = False,
    gpu: Annotated[str, typer.Option("--gpu", help="GPU whose memory is watched, by index or UUID")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as a JSON document; a list for several processes")
    ] = False,
    socket: Socket = None,
) -> None:
    """End processes and wait until their GPU memory is free: SIGTERM, then SIGKILL after 30 s.

    Each process is shown, with the processes that would end with it, and you are asked once for all of them. The agent
    checks again before each signal, and refuses if a pid now belongs to another process, or the process now runs
    another program, as another user or on other GPUs. Several processes are ended at the same time.

    `remedies.allow` applies if it is set, unless --force is given. The never-list always applies, and a process that
    cannot be identified is never ended. A process on a GPU that can no longer be read (lost, hung) is ended only with
    --force, and nobody can see whether its memory came back. So is one process of a systemd unit, if it is not the main
    process: the unit may fail or be started again, and you are shown who else is in it. Pauses, rate limits, cool-downs
    and the circuit breaker apply to rules, not to you. What is done is recorded with your name, and counts toward the
    limits of rules: see `gpuagent remedies`.

    Each step is printed to standard error when it is taken. Ctrl-C stops watching; the agent continues.

    Exit status: 0 all memory is free again (or dry run), 1 not, 2 no terminal to ask for confirmation, 130 Ctrl-C.
    """
    asks = not (yes or dry_run)
    if asks and not sys.stdin.isatty():
        tell("No terminal to ask for confirmation: use --yes to confirm.")
        raise typer.Exit(2)
    document = fetch_identified(socket)
    chosen, missed = [], False
    for pid in dict.fromkeys(pids):
        try:
            chosen.append(choose(document, pid, gpu, with_unit=force and not restart_unit))
        except Unidentified as error:
            missed = True
            verdict = typer.echo if dry_run and not as_json else tell
            verdict(f"pid {pid}: {error}" if len(pids) > 1 else str(error))
    if restart_unit:
        chosen = _one_of_each_unit(chosen)
    if not chosen:
        raise typer.Exit(1)
    if asks:
        _ask(chosen, question(chosen, document, width_of(sys.stderr), restart_unit=restart_unit))
    else:
        _tell_who_ends_too(chosen)
    steps = ["restart_unit"] if restart_unit else ["terminate", "kill"]
    requests = [kill_request(each, steps, chosen, dry_run=dry_run, force=force, gpu=gpu) for each in chosen]
    answers = attend(
        requests,
        socket,
        [WAITS_SECONDS[step] for step in steps],
        _Report(requests, steps, as_json=as_json, dry_run=dry_run),
    )
    if as_json:
        _print_json(requests, answers)
    if missed or not all(_succeeded(each) for each in answers):
        raise typer.Exit(1)


def kill_request(
    one: Chosen,
    steps: Sequence[str],
    chosen: Sequence[Chosen] = (),
    *,
    dry_run: bool = False,
    force: bool = False,
    gpu: str = "",
) -> Request:
    """Return what asks the agent to take these steps with a process, of those that are `chosen` to end together."""
    body = {"dry_run": dry_run, "force": force, "steps": list(steps), "gpu": gpu}
    return Request(one.pid, f"/api/v1/processes/{one.pid}/kill", {**body, **one.identity, **_others(one, chosen)})


def _others(one: Chosen, chosen: Sequence[Chosen]) -> Document:
    """Return the part of a request that names those that are ended at the same time: they are judged together."""
    others = [[each.pid, each.first.get("start_ticks")] for each in chosen if each.pid != one.pid]
    return {"together": others} if others else {}


def _tell_who_ends_too(chosen: Sequence[Chosen]) -> None:
    for each in chosen:
        for line in each.end_lines:
            tell(f"Ending pid {each.pid} also ends {line}")


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
        tell("Nothing was done.")
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

    def __init__(self, requests: Sequence[Request], steps: Sequence[str], *, as_json: bool, dry_run: bool) -> None:
        """In a dry run why a request is refused is what was asked for, and no message."""
        self._tell = typer.echo if dry_run and not as_json else tell
        self._steps = steps
        self._named = len(requests) > 1
        self._as_json = as_json

    def __call__(self, request: Request, answer: Answer) -> None:
        if isinstance(answer, Refused):
            self._tell(f"pid {request.pid}: {answer}" if self._named else str(answer))
        elif not self._as_json:
            typer.echo(report(answer))
            for step in self._steps if answer["result"] == "dry_run" else ():
                if f"; {_SHOWN[step]} would be passed over" in str(answer.get("detail", "")):
                    continue
                wait = format_duration(WAITS_SECONDS[step])
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
