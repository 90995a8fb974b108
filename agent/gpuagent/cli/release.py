"""`gpuagent release`: ask an app to give its allocator's cache back."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from gpuagent.cli.attended import Request, attend
from gpuagent.cli.cells import clean
from gpuagent.cli.clients import ABSENT
from gpuagent.cli.control import Refused
from gpuagent.cli.identified import Unidentified, choose, fetch_identified, read_pid
from gpuagent.cli.kill import advice
from gpuagent.cli.source import Socket, tell
from gpuagent.core.units import format_bytes

_WAIT_SECONDS = 30.0
"""As long as the agent waits for the app."""
_NOT_DONE = frozenset({"refused", "failed", "interrupted"})


def release(
    pid: Annotated[int, typer.Argument(metavar="PID", parser=read_pid, help="The process, as `gpuagent ps` shows it")],
    collect: Annotated[
        bool, typer.Option("--collect", help="Run Python's garbage collector first: the app stands still for it")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Decide and record, but do not ask the app")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Ignore the allow list. The never-list still applies.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="What was before and after, as a JSON document")] = False,
    socket: Socket = None,
) -> None:
    """Ask an app with the embedded client to empty its cache, and say how much memory came back.

    Memory that tensors hold stays. The app needs `gpuagent-client`, and does it between requests, at most once a
    minute. It is a remedy: refused where there is doubt about the process or `remedies.allow` names others, and
    recorded with your name (see `gpuagent remedies`).

    Exit status: 0 done, 1 not done, 130 Ctrl-C.
    """
    try:
        chosen = choose(fetch_identified(socket), pid)
    except Unidentified as error:
        tell(str(error))
        raise typer.Exit(1) from None
    body = {"collect": collect, "dry_run": dry_run, "force": force, **chosen.identity}
    (answer,) = attend([Request(pid, f"/api/v1/clients/{pid}/release", body)], socket, [_WAIT_SECONDS])
    if isinstance(answer, Refused):
        tell(str(answer))
        raise typer.Exit(1)
    if as_json:
        typer.echo(json.dumps(answer, indent=1))
    elif (why := refusal(answer)) is not None:
        tell("\n".join([why, *advice(answer)]))
    else:
        typer.echo("\n".join(report(answer)))
    if answer.get("result") in _NOT_DONE:
        raise typer.Exit(1)


def refusal(answer: dict[str, Any]) -> str | None:
    """Why nothing was asked of the app, or nothing done by it; None if it was."""
    if answer.get("result") not in _NOT_DONE:
        return None
    if answer.get("reason") == "absent":
        return ABSENT.format(pid=answer["pid"])
    said = "the app did not do it" if answer["result"] == "failed" else "the agent did not ask the app"
    return f"{said}: {clean(answer.get('detail') or answer['result'])}"


def report(answer: dict[str, Any]) -> list[str]:
    """In words; what is not known is not said."""
    if answer.get("dry_run"):
        return ["dry run: the app would be asked, and was not"]
    returned, before, after = (
        answer.get(key) for key in ("returned_bytes", "reserved_before_bytes", "reserved_after_bytes")
    )
    took = f" in {answer['took_ms']:.0f} ms" if answer.get("took_ms") is not None else ""
    if before is not None and after is not None:
        gave = f"the allocator gave back {format_bytes(max(0, before - after))}{took}"
        lines = [f"{gave}: {format_bytes(before)} reserved before, {format_bytes(after)} now"]
    else:
        lines = [f"the app has emptied its cache{took}, and does not say what it held"]
    if returned is not None:
        change = "came back" if returned >= 0 else "more is used than before"
        lines.append(f"by the driver's count {format_bytes(abs(returned))} {change}")
    for device in answer.get("after") or ():
        if device.get("allocated_bytes") is not None:
            lines.append(
                f"GPU {device['gpu']}: tensors hold {format_bytes(device['allocated_bytes'])}, "
                f"cached {format_bytes(device['cached_bytes'] or 0)}"
            )
    return lines
