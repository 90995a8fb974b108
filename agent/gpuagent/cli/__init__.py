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
        from gpuagent.cli.base import new_app

        app = new_app()
        app.command()(command)
    app(prog_name="gpuagent")


def _alone(name: list[str]) -> Callable[..., None] | None:
    """A subcommand that is not to load the others: one must be small for as long as it runs, and the other quick."""
    if name == ["run"]:
        from gpuagent.cli.run import run

        return run
    if name == ["status"]:
        from gpuagent.cli.status import status

        return status
    return None
