"""`gpuagent release`: ask an app to give its allocator's cache back."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from gpuagent.cli.clients import ask_app
from gpuagent.cli.source import Socket
from gpuagent.units import format_bytes

_TIMEOUT_SECONDS = 60.0
"""The app's 30 s, the time until the driver shows it, and some more."""


def release(
    pid: Annotated[int, typer.Argument(help="The process, as `gpuagent ps` shows it")],
    collect: Annotated[
        bool, typer.Option("--collect", help="Run Python's garbage collector first: the app stands still for it")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="What was before and after, as a JSON document")] = False,
    socket: Socket = None,
) -> None:
    """Ask an app with the embedded client to empty its cache, and say how much memory came back.

    Memory that tensors hold stays. The app needs `gpuagent-client`, and does it between requests, at most once a
    minute. Exit status: 0 done, 1 not done.
    """
    answer = ask_app(pid, "release", {"collect": collect}, socket, timeout_seconds=_TIMEOUT_SECONDS)
    typer.echo(json.dumps(answer, indent=1) if as_json else "\n".join(report(answer)))


def report(answer: dict[str, Any]) -> list[str]:
    """In words; what is not known is not said."""
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
