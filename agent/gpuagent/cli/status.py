"""`gpuagent status`: the node on one screen."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from typing import Annotated, TextIO

import typer

from gpuagent.cli.cells import Paint, width_of, wrap
from gpuagent.cli.screen import status_screen
from gpuagent.cli.source import EXIT_NO_DATA, Direct, NoData, Socket, Source, Url, get_document, tell

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

    Exit status: 0 something could be shown, 3 there is neither an agent nor a driver to ask. Problems of the GPUs do
    not change it: `gpuagent check` is for that.
    """
    source = Source(socket, url, direct)
    if watch and not as_json:
        draw_again(source, sys.stdout, ascii_only=ascii_only)
        return
    try:
        document = get_document(source)
    except NoData as error:
        tell(str(error))
        raise typer.Exit(EXIT_NO_DATA) from None
    if as_json:
        typer.echo(json.dumps(document, indent=1))
    else:
        paint = Paint.for_stream(sys.stdout, ascii_only=ascii_only)
        typer.echo("\n".join(status_screen(document, width_of(sys.stdout), paint, source.hostname)))


def draw_again(
    source: Source, stream: TextIO, *, ascii_only: bool = False, wait: Callable[[float], None] = time.sleep
) -> None:
    """Screen after screen until Ctrl-C: on the alternate screen, so that the terminal is left as it was.

    When the data ends, that is drawn, never the last figures. `wait` is between two screens.
    """
    paint = Paint.for_stream(stream, ascii_only=ascii_only)
    terminal = stream.isatty()
    stream.write(_ENTER if terminal else "")
    try:
        while True:
            lines, seconds = _screen(source, paint, width_of(stream))
            if terminal:
                lines = lines[: shutil.get_terminal_size().lines - 1]
            stream.write((_CLEAR if terminal else "") + "\n".join(lines) + "\n")
            stream.flush()
            wait(max(seconds, _LEAST_SECONDS))
    except KeyboardInterrupt:
        pass
    finally:
        stream.write(_LEAVE if terminal else "")
        stream.flush()


def _screen(source: Source, paint: Paint, width: int) -> tuple[list[str], float]:
    """What to draw, and for how long."""
    notes: list[str] = []
    try:
        document = get_document(source, note=notes.append)
    except NoData as error:
        return [paint.text(line) for line in wrap(f"no data: {error}", width)], 1.0
    lines = [paint.text(line) for note in notes for line in wrap(note, width)]
    lines += status_screen(document, width, paint, source.hostname)
    return lines, document["agent"]["poll_interval_seconds"] or 1.0
