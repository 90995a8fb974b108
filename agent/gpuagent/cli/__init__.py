"""The `gpuagent` command: a function per subcommand, registered in `app`."""

from __future__ import annotations

import sys
from collections.abc import Callable


def main() -> None:
    """Run the command of the installed script."""
    command = _alone(sys.argv[1:2])
    if command is None:
        from gpuagent.cli.app import app
    else:
        from gpuagent.cli.base import joined_help, new_app

        app = new_app()
        app.command(help=joined_help(command))(command)
    app(prog_name="gpuagent")


def _alone(name: list[str]) -> Callable[..., None] | None:
    """Return a subcommand that must not load the others: one stays small while it runs, another starts quickly."""
    if name == ["run"]:
        from gpuagent.cli.run import run

        return run
    if name == ["status"]:
        from gpuagent.cli.status import status

        return status
    return None
