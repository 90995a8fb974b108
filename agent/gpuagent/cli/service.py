"""`gpuagent service`: place this version on the machine as a service, go back to the one before, take it away."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

service_app = typer.Typer(no_args_is_help=True, help="Install, roll back or uninstall the systemd service.")


@service_app.command()
def install(
    context: typer.Context,
    root: Annotated[
        Path, typer.Option(help="Staging directory for packagers; nothing else is changed", metavar="FOLDER")
    ] = Path("/"),
    prefix: Annotated[
        Path,
        typer.Option(help="Prefix for unit, command, man page and completion; /usr for a package", metavar="FOLDER"),
    ] = Path("/usr/local"),
    start: Annotated[bool, typer.Option("--start/--no-start", help="Start the service now and at every boot")] = True,
) -> None:
    """Install this version as the systemd service of this machine, and start it.

    Installs the environment this command runs from, the unit, its user and directories, the command, the man page and
    completion for bash, zsh and fish. An existing configuration is kept. If this version rejects it or does not start,
    the previous version keeps running. Run it again to repair an installation.

    Exit status: 0 done, 1 failed.
    """
    from gpuagent.cli.manual import completion_scripts, manual
    from gpuagent.config.reference import starter
    from gpuagent.install.install import Installation, System
    from gpuagent.install.placing import Layout, Placed

    layout = Layout(root.resolve(), prefix)
    if not layout.staged:
        _need_root()
    # Of a package: the day of its source (https://reproducible-builds.org/specs/source-date-epoch/).
    made = datetime.fromtimestamp(float(os.environ.get("SOURCE_DATE_EPOCH") or time.time()), UTC).date()
    files = [
        *completion_scripts(prefix),
        Placed(prefix / "share/man/man1/gpuagent.1", manual(context.find_root().command, made)),
    ]
    installation = Installation(
        layout, System(), files, starter(), Path(sys.prefix), Path(sys.base_prefix), sys.executable
    )
    _tell(installation.run(start=start))


@service_app.command()
def rollback() -> None:
    """Switch back to the version that ran before the last installation. Running it twice returns to the current one.

    Exit status: 0 done, 1 failed.
    """
    from gpuagent.install.placing import InstallFault, Layout, Releases, check_not_packaged

    _need_root()
    try:
        check_not_packaged(Layout())
    except InstallFault as fault:
        typer.echo(fault, err=True)
        raise typer.Exit(1) from None
    previous = Releases(Layout()).previous
    if previous is None:
        typer.echo("No previous version is installed.", err=True)
        raise typer.Exit(1)
    done = subprocess.run([previous / "bin/gpuagent", "service", "install"], check=False)  # noqa: S603
    raise typer.Exit(1 if done.returncode else 0)


@service_app.command()
def uninstall(
    purge: Annotated[
        bool, typer.Option("--purge", help="Also remove the configuration, the state and the user")
    ] = False,
) -> None:
    """Stop and uninstall the service. Configuration and state are kept.

    Exit status: 0 done, 1 failed.
    """
    from gpuagent.install.install import uninstall as take_away

    _need_root()
    _tell(take_away(purge=purge))


def _need_root() -> None:
    if os.geteuid() != 0:
        typer.echo(f"This needs root: sudo {' '.join(['gpuagent', *sys.argv[1:]])}", err=True)
        raise typer.Exit(1)


def _tell(lines: Iterator[str]) -> None:
    from gpuagent.install.placing import InstallFault

    try:
        for line in lines:
            typer.echo(line)
    except (InstallFault, OSError) as error:
        typer.echo(error, err=True)
        raise typer.Exit(1) from None
