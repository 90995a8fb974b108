"""`gpuagent config`: look at the configuration, and check one before it is used.

What loads pydantic and YAML is imported inside the commands, so that others start fast.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gpuagent.config.models import Config

EXIT_FAULTY = 1
EXIT_UNREADABLE = 2

config_app = typer.Typer(no_args_is_help=True, help="Check the configuration file, or show what is in force.")

_FileOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="By default /etc/gpuagent/gpuagent.yaml."),
]


@config_app.command()
def check(
    file: Annotated[Path | None, typer.Argument(help="The file to check.")] = None,
    config: _FileOption = None,
) -> None:
    """Check a configuration file and name every fault in it, with its line; then the files that it names.

    Exit status: 0 no fault, 1 faults (on standard error), 2 the file cannot be read.
    """
    from gpuagent.config.directories import DEFAULT_PATH

    path = file or config
    _check_beside(_load(path), path or DEFAULT_PATH)
    defaults = path is None and not DEFAULT_PATH.exists()
    note = " (there is no such file: the defaults are used)" if defaults else ""
    typer.echo(f"{path or DEFAULT_PATH}: ok{note}")


@config_app.command()
def show(
    config: _FileOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of YAML.")] = False,
) -> None:
    """Show the configuration that would be in force: the file and the defaults, secrets hidden.

    Exit status: 0 shown, 1 faults in the file (on standard error), 2 it cannot be read.
    """
    from gpuagent.config.render import effective, to_yaml

    loaded = _load(config)
    text = json.dumps(effective(loaded), indent=2) + "\n" if as_json else to_yaml(loaded)
    typer.echo(text, nl=False)


def _check_beside(config: Config, path: Path) -> None:
    """The files that it names. Rules that can never fire, or be a reason to act, are notes."""
    from gpuagent.doctor.beside import look_beside

    found = look_beside(config, path)
    for note in found.notes:
        typer.echo(f"note: {note}", err=True)
    for fault in found.faults:
        typer.echo(fault, err=True)
    if found.faults:
        raise typer.Exit(EXIT_FAULTY)


def _load(path: Path | None) -> Config:
    from gpuagent.config.faults import ConfigError, ConfigUnreadableError
    from gpuagent.config.load import load_config

    try:
        return load_config(path, is_root=os.geteuid() == 0)
    except ConfigError as error:
        typer.echo(error, err=True)
        unreadable = isinstance(error, ConfigUnreadableError)
        raise typer.Exit(EXIT_UNREADABLE if unreadable else EXIT_FAULTY) from None
