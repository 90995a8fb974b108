"""The `gpuagent` command: a function per subcommand, registered in `app`; here is what `gpuagent` itself takes.

Apart from `app`, so that `run` and `status` load no other command.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from gpuagent import __version__


def main() -> None:
    """Run the command of the installed script."""
    command = _alone(sys.argv[1:2])
    if command is None:
        from gpuagent.cli.app import app
    else:
        app = new_app()
        app.command()(command)
    app(prog_name="gpuagent")


def _alone(name: list[str]) -> Callable[..., None] | None:
    """Return a subcommand that loads no others: `run` must stay small for as long as it runs, `status` be quick."""
    if name == ["run"]:
        from gpuagent.cli.run import run

        return run
    if name == ["status"]:
        from gpuagent.cli.status import status

        return status
    return None


def new_app() -> typer.Typer:
    """Return the command without its subcommands, to hang them below."""
    app = typer.Typer(
        help="GPU memory on this node: who holds it, how much is left, and what is wrong.",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    return app


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
