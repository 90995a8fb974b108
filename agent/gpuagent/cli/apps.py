"""`gpuagent blame`, `release` and `attach`: what apps with the embedded client are asked for; `attach` brings it in."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from gpuagent.cli.agent import Refused, Socket, absent_text, answer_of_app, ask_agent, exit_where_refused, tell
from gpuagent.cli.cells import clean
from gpuagent.cli.kill import advice
from gpuagent.cli.pause import predict_pause
from gpuagent.cli.remedy_requests import (
    Chosen,
    Request,
    Unidentified,
    attend,
    choose,
    fetch_identified,
    read_pid,
)
from gpuagent.core.units import format_bytes, format_duration, parse_duration

_SHOWN = 5
_BEYOND_WINDOW_SECONDS = 150.0
"""What the agent gives a census and a recording beyond their window, and some more."""


DEFAULT_MAX_PAUSE = "1s"

Window = Annotated[str, typer.Option(metavar="DURATION", help="How long to watch it grow")]
Census = Annotated[
    bool, typer.Option(help="Find who holds tensors; the app forks twice for it, some 30 ms per GiB resident each")
]
Lines = Annotated[bool, typer.Option(help="Record which lines allocate GPU memory during the window")]
ShowKeys = Annotated[bool, typer.Option("--show-keys", help="Show dictionary keys, which may contain your users' data")]
MaxPause = Annotated[
    str, typer.Option(metavar="DURATION", help="Ask for no census that would pause the app for longer")
]
EverythingAsJson = Annotated[bool, typer.Option("--json", help="Print everything found as a JSON document")]
"""Options that `gpuagent blame` and `gpuagent attach` have in common."""


def blame(
    pid: Annotated[int, typer.Argument(help="The process, as `gpuagent ps` shows it")],
    window: Window = "60s",
    census: Census = True,
    lines: Lines = True,
    show_keys: ShowKeys = False,
    max_pause: MaxPause = DEFAULT_MAX_PAUSE,
    as_json: EverythingAsJson = False,
    socket: Socket = None,
) -> None:
    """Find the line of code that holds growing memory, in an app with gpuagent-client.

    The app must be under load meanwhile: only memory that grows within the window can be found. Exit status: 0 done,
    1 the app could not be asked, or refused.
    """
    args = blame_args(window, max_pause, census=census, lines=lines, show_keys=show_keys)
    print_blame(ask_blame(pid, args, socket), as_json=as_json)


def blame_args(window: str, max_pause: str, *, census: bool, lines: bool, show_keys: bool) -> dict[str, Any]:
    """Return what the agent is asked with. Raises typer.BadParameter."""
    args = {
        "window_seconds": read_duration(window, "--window"),
        "census": census,
        "lines": lines,
        "show_keys": show_keys,
    }
    if max_pause != DEFAULT_MAX_PAUSE:  # the app's own limit is the same, and an older agent knows of none
        args["max_pause_seconds"] = read_duration(max_pause, "--max-pause")
    return args


def read_duration(text: str, option: str) -> float:
    """Return the seconds that were typed. Raises typer.BadParameter."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def ask_blame(pid: int, args: dict[str, Any], socket: Path | None, *, absent_seconds: float = 0.0) -> dict[str, Any]:
    """Return the app's answer. Where there is none, the command ends with 1 and says why.

    An app that is not connected is waited for as long as `absent_seconds` says.
    """
    seconds = args["window_seconds"]
    if sys.stderr.isatty():
        tell(f"Watching process {pid} for {format_duration(seconds)}{predict_pause(pid) if args['census'] else ''} ...")
    timeout_seconds = blame_timeout_seconds(args)
    with exit_where_refused():
        return answer_of_app(pid, "blame", args, socket, timeout_seconds=timeout_seconds, absent_seconds=absent_seconds)


def blame_timeout_seconds(args: dict[str, Any]) -> float:
    """Return how long the answer to a question of blame may take."""
    looks: int = args["census"] + args["lines"]
    return looks * (float(args["window_seconds"]) + _BEYOND_WINDOW_SECONDS)


def print_blame(answer: dict[str, Any], *, as_json: bool) -> None:
    """Print the answer as a JSON document, or in words."""
    typer.echo(json.dumps(answer, indent=1) if as_json else "\n".join(report_blame(answer)))


def report_blame(answer: dict[str, Any]) -> list[str]:
    """Return the verdict first, then what it rests on."""
    found = [clean(answer["verdict"]) or "Nothing was found that holds growing memory."]
    if answer["groups"]:
        found += ["", "held by"]
        found += [line for group in answer["groups"][:_SHOWN] for line in _group(group)]
    if answer["lines"]:
        found += ["", "allocated at"]
        found += [_line(line) for line in answer["lines"][:_SHOWN]]
    if answer["notes"]:
        found += ["", *(f"note: {clean(note)}" for note in answer["notes"])]
    if answer["stall_seconds"] is not None:
        found += ["", f"The app was paused for {answer['stall_seconds'] * 1000:.0f} ms"]
    return found


def _group(group: dict[str, Any]) -> Iterator[str]:
    length = group["container_length"]
    what = clean(group["container"] or group["path"] or group["key"] or group["kind"] or "something without a name")
    size = f" of {length} items" if length is not None else ""
    kind = f" ({clean(group['kind'])}{size})" if group["kind"] else ""
    yield f"  {_size(group):>20}  {_count(group['count'])} tensors  {what}{kind}{_where(group)}"
    made = {key: group.get(f"allocated_{key}") for key in ("file", "line", "function")}
    if made["file"]:
        yield f"  {'':20}  allocated {_where(made).strip()}"
    cause, remedy = clean(group["cause"]), clean(group["remedy"])
    if cause or remedy:
        yield f"  {'':20}  {': '.join(text for text in (cause, remedy) if text)}"


def _line(line: dict[str, Any]) -> str:
    return f"  {_size(line):>20}  {_count(line['count'])} allocations{_where(line)}"


def _size(row: dict[str, Any]) -> str:
    """Return what has come, else what there is."""
    growth, size = row.get("growth_bytes"), row.get("bytes")
    if growth is not None:
        return f"{'+' if growth >= 0 else '-'}{format_bytes(abs(growth))}"
    return "?" if size is None else format_bytes(abs(size))


def _count(count: int | None) -> str:
    return "?" if count is None else str(count)


def _where(row: dict[str, Any]) -> str:
    if not row["file"]:
        return ""
    place = clean(row["file"]) + (f":{row['line']}" if row["line"] is not None else "")
    return f"  at {place}" + (f" in {clean(row['function'])}" if row["function"] else "")


RELEASE_WAIT_SECONDS = 30.0
"""As long as the agent waits for the app."""
_WORTH_A_DOUBT_BYTES = 64 * 1024**2
"""Below that the process may have taken as much for something else meanwhile."""
_NOT_DONE = frozenset({"refused", "failed", "interrupted"})


def release(
    pid: Annotated[int, typer.Argument(metavar="PID", parser=read_pid, help="The process, as `gpuagent ps` shows it")],
    collect: Annotated[
        bool, typer.Option("--collect", help="Run Python's garbage collector first; the app pauses for it")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and record, but do not ask the app")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Ignore the allow list. The never-list still applies.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the figures before and after as a JSON document")
    ] = False,
    socket: Socket = None,
) -> None:
    """Ask an app with gpuagent-client to release its cached GPU memory, and show how much was freed.

    Memory held by tensors stays. The app does it between requests, at most once a minute. This is a remedy: it is
    refused if the process cannot be identified, or if `remedies.allow` is set and does not list it, and it is recorded
    with your name (see `gpuagent remedies`).

    Exit status: 0 done, 1 not done, or the driver did not see what the app says that it gave back; 130 Ctrl-C.
    """
    try:
        chosen = choose(fetch_identified(socket), pid)
    except Unidentified as error:
        tell(str(error))
        raise typer.Exit(1) from None
    request = release_request(chosen, collect=collect, dry_run=dry_run, force=force)
    (answer,) = attend([request], socket, [RELEASE_WAIT_SECONDS])
    if isinstance(answer, Refused):
        tell(str(answer))
        raise typer.Exit(1)
    if as_json:
        typer.echo(json.dumps(answer, indent=1))
    elif (why := refusal(answer, socket)) is not None:
        tell("\n".join([why, *advice(answer)]))
    else:
        typer.echo("\n".join(report_release(answer)))
    if answer.get("result") in _NOT_DONE or claims_too_much(answer):
        raise typer.Exit(1)


def release_request(chosen: Chosen, *, collect: bool = False, dry_run: bool = False, force: bool = False) -> Request:
    """Return what asks the agent to have an app give its cached memory back."""
    body = {"collect": collect, "dry_run": dry_run, "force": force, **chosen.identity}
    return Request(chosen.pid, f"/api/v1/clients/{chosen.pid}/release", body)


def refusal(answer: dict[str, Any], socket: Path | None = None) -> str | None:
    """Return why nothing was asked of the app, or nothing done by it; None if it was."""
    if answer.get("result") not in _NOT_DONE:
        return None
    if answer.get("reason") == "absent":
        return absent_text(answer["pid"], socket)
    said = "The app did not do it" if answer["result"] == "failed" else "The agent did not ask the app"
    return f"{said}: {clean(answer.get('detail') or answer['result'])}"


def claims_too_much(answer: dict[str, Any]) -> bool:
    """Return whether the app says that it gave back much more than the driver saw come back."""
    returned, before, after = (
        answer.get(key) for key in ("returned_bytes", "reserved_before_bytes", "reserved_after_bytes")
    )
    if returned is None or before is None or after is None:
        return False
    return bool(before - after > max(_WORTH_A_DOUBT_BYTES, 2 * returned))


def report_release(answer: dict[str, Any]) -> list[str]:
    """In words; what is not known is not said, and where the driver disagrees its count comes first."""
    if answer.get("dry_run"):
        return ["Dry run: the app would have been asked."]
    returned, before, after = (
        answer.get(key) for key in ("returned_bytes", "reserved_before_bytes", "reserved_after_bytes")
    )
    took = f" in {answer['took_ms']:.0f} ms" if answer.get("took_ms") is not None else ""
    if before is not None and after is not None:
        by = "the app says that its" if claims_too_much(answer) else "the"
        gave = f"{by} allocator gave back {format_bytes(max(0, before - after))}{took}"
        lines = [f"{gave}: {format_bytes(before)} reserved before, {format_bytes(after)} now"]
    else:
        lines = [f"the app has emptied its cache{took}, and does not say what it held"]
    if returned is not None:
        change = "came back" if returned >= 0 else "more is used than before"
        seen = f"by the driver's count {format_bytes(abs(returned))} {change}"
        lines = [f"not released: {seen}", *lines] if claims_too_much(answer) else [*lines, seen]
    for device in answer.get("after") or ():
        if device.get("allocated_bytes") is not None:
            lines.append(
                f"GPU {device['gpu']}: tensors hold {format_bytes(device['allocated_bytes'])}, "
                f"cached {format_bytes(device['cached_bytes'] or 0)}"
            )
    return lines


_CONNECT_SECONDS = 15.0
"""The client connects within a second; an agent under load takes longer to list it."""


def attach(
    pid: Annotated[int, typer.Argument(metavar="PID", parser=read_pid, help="The process, as `gpuagent ps` shows it")],
    window: Window = "60s",
    wait: Annotated[
        str, typer.Option(metavar="DURATION", help="How long to wait for the main thread to run Python code")
    ] = "30s",
    census: Census = True,
    lines: Lines = True,
    show_keys: ShowKeys = False,
    max_pause: MaxPause = DEFAULT_MAX_PAUSE,
    client: Annotated[
        Path | None, typer.Option("--client", help="Directory that contains gpuagent_client, else the agent's own")
    ] = None,
    as_json: EverythingAsJson = False,
    socket: Socket = None,
) -> None:
    """Find the line of code that holds growing memory, in a running app without gpuagent-client (Python 3.14).

    Loads the client into the process, asks as `gpuagent blame` does, and removes it again. Run it as the user who owns
    the process, or as root. The app's code and files are not changed.

    Exit status: 0 done, 1 the process cannot be attached to, the configuration forbids it, or the app refused.
    """
    from gpuagent.attach.attachment import attached, describe, find_client  # only where it is needed
    from gpuagent.attach.target import NotAttachable

    args = blame_args(window, max_pause, census=census, lines=lines, show_keys=show_keys)
    wait_seconds = read_duration(wait, "--wait")
    # Without an agent nothing could be asked: then the app stays as it is.
    if not ask_agent("GET", "/api/v1/clients", socket).get("attach", True):  # an older agent has no such key
        tell("The configuration of this node forbids attaching (`clients.attach`). An app that starts with the client")
        tell("can be asked by `gpuagent blame`: see `gpuagent-client enable`.")
        raise typer.Exit(1)
    try:
        directory = find_client() if client is None else str(client.resolve())
        with attached(pid, client_directory=directory, safe_point_seconds=wait_seconds) as attachment:
            try:
                answer = ask_blame(pid, args, socket, absent_seconds=_CONNECT_SECONDS)
            except BaseException:
                tell(f"Removing the client from process {pid} ...")
                raise
    except NotAttachable as error:
        tell(str(error))
        raise typer.Exit(1) from None
    print_blame(answer, as_json=as_json)
    if attachment.own or attachment.left is None or attachment.left.threads or attachment.left.modules:
        tell(f"Process {pid}: {describe(attachment.left)}.")
