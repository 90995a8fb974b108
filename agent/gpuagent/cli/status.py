"""`gpuagent status`: the node on one screen."""

from __future__ import annotations

import json
import shutil
import sys
import time
from typing import Annotated, Any

import typer

from gpuagent.cli.cells import Paint
from gpuagent.cli.screen import status_screen
from gpuagent.cli.source import EXIT_NO_DATA, Direct, NoData, Socket, Url, get_document

_CLEAR = "\x1b[H\x1b[J"
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_LEAST_SECONDS = 0.5


def status(
    as_json: Annotated[
        bool, typer.Option("--json", help="The whole document, bare numbers, units in key names")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Draw again at each reading, until Ctrl-C")] = False,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="No characters beyond ASCII")] = False,
    socket: Socket = None,
    url: Url = None,
    direct: Direct = False,
) -> None:
    """Show this node: problems first, then each GPU, then who holds the memory.

    Exit status: 0 something could be shown, 3 there is neither an agent nor a driver to ask.
    """
    if watch and not as_json:
        _watch(socket, url, direct=direct, ascii_only=ascii_only)
        return
    try:
        document = get_document(socket, url, direct=direct)
    except NoData as error:
        typer.echo(error, err=True)
        raise typer.Exit(EXIT_NO_DATA) from None
    if as_json:
        typer.echo(json.dumps(document, indent=1, ensure_ascii=False))
    else:
        _draw(document, Paint(ascii_only=_plain(ascii_only)))


def _watch(socket: Any, url: Any, *, direct: bool, ascii_only: bool) -> None:
    """On the alternate screen, so that Ctrl-C leaves the terminal as it was."""
    paint = Paint(ascii_only=_plain(ascii_only))
    terminal = sys.stdout.isatty()
    if terminal:
        sys.stdout.write(_ENTER)
    try:
        while True:
            seconds = 1.0
            try:
                document = get_document(socket, url, direct=direct)
                seconds = document["agent"]["poll_interval_seconds"]
                lines = status_screen(document, _width(), paint)
            except NoData as error:
                lines = [f"no data: {error}"]
            if terminal:
                lines = lines[: shutil.get_terminal_size().lines - 1]
            sys.stdout.write((_CLEAR if terminal else "") + "\n".join(lines) + "\n")
            sys.stdout.flush()
            time.sleep(max(seconds, _LEAST_SECONDS))
    except KeyboardInterrupt:
        pass
    finally:
        if terminal:
            sys.stdout.write(_LEAVE)
            sys.stdout.flush()


def _draw(document: Any, paint: Paint) -> None:
    typer.echo("\n".join(status_screen(document, _width(), paint)))


def _width() -> int:
    return shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else 80


def _plain(ascii_only: bool) -> bool:
    """A terminal that cannot show block characters gets none, asked for or not."""
    encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")
    return ascii_only or encoding != "utf8"
