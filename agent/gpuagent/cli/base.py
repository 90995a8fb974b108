"""The command without its subcommands: what `gpuagent` itself takes.

Apart from `app`, so that `run` and `status` load no other command.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated

import typer

from gpuagent import __version__


def new_app() -> typer.Typer:
    """Return the command without its subcommands, to hang them below."""
    app = typer.Typer(
        help="GPU memory on this node: who holds it, how much is left, and what is wrong.",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    return app


def joined_help(command: Callable[..., None]) -> str:
    """Return a command's docstring with each paragraph on one line, for typer to wrap as the terminal is wide."""
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    return "\n\n".join(one if "\n " in one else one.replace("\n", " ") for one in paragraphs)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gpuagent {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit")
    ] = False,
) -> None:
    """Options of the command as a whole."""
