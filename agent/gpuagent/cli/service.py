"""`gpuagent service`: place this version on the machine as a service, go back to the one before, take it away."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

service_app = typer.Typer(no_args_is_help=True, help="Install the service on this machine, go back, or take it away.")


@service_app.command()
def install(
    root: Annotated[
        Path, typer.Option(help="A packager's staging folder: nothing but it is touched", metavar="FOLDER")
    ] = Path("/"),
    prefix: Annotated[
        Path, typer.Option(help="Where unit, command, manual and completion go; /usr for a package", metavar="FOLDER")
    ] = Path("/usr/local"),
    start: Annotated[bool, typer.Option("--start/--no-start", help="Start it, and at every boot")] = True,
) -> None:
    """Make the environment that this command is run from the service of this machine, and start it.

    Places the unit, its user and directories, the command, this manual and completion for bash, zsh and fish. A
    configuration that is there stays. Where this version does not take it, or does not start, the version before
    goes on serving. Run it again to repair an installation.

    Exit status: 0 done, 1 not done, and why.
    """
    from gpuagent.cli.app import app
    from gpuagent.cli.completion_scripts import completion_scripts
    from gpuagent.cli.manual import manual
    from gpuagent.config.starter import starter
    from gpuagent.install.install import Installation
    from gpuagent.install.layout import Layout
    from gpuagent.install.placing import Placed
    from gpuagent.install.system import System

    layout = Layout(root.resolve(), prefix)
    if not layout.staged:
        _need_root()
    files = [
        *completion_scripts(prefix),
        Placed(prefix / "share/man/man1/gpuagent.1", manual(app, datetime.now(UTC).date())),
    ]
    installation = Installation(
        layout, System(), files, starter(), Path(sys.prefix), Path(sys.base_prefix), sys.executable
    )
    _tell(installation.run(start=start))


@service_app.command()
def rollback() -> None:
    """Go back to the version that served before the last installation; done again, it goes forth again.

    Exit status: 0 done, 1 not done, and why.
    """
    from gpuagent.install.layout import Layout
    from gpuagent.install.placing import Releases

    _need_root()
    previous = Releases(Layout()).previous
    if previous is None:
        typer.echo("there is no version before this one to go back to", err=True)
        raise typer.Exit(1)
    done = subprocess.run([previous / "bin/gpuagent", "service", "install"], check=False)  # noqa: S603
    raise typer.Exit(1 if done.returncode else 0)


@service_app.command()
def uninstall(
    purge: Annotated[bool, typer.Option("--purge", help="The configuration, the state and the user, too")] = False,
) -> None:
    """Stop the service and take it away. Its configuration and state stay, for the next installation.

    Exit status: 0 done, 1 not done, and why.
    """
    from gpuagent.install.install import uninstall as take_away

    _need_root()
    _tell(take_away(purge=purge))


def _need_root() -> None:
    if os.geteuid() != 0:
        typer.echo(f"this needs root: sudo {' '.join(['gpuagent', *sys.argv[1:]])}", err=True)
        raise typer.Exit(1)


def _tell(lines: Iterator[str]) -> None:
    from gpuagent.install.layout import InstallFault

    try:
        for line in lines:
            typer.echo(line)
    except (InstallFault, OSError) as error:
        typer.echo(error, err=True)
        raise typer.Exit(1) from None
