"""The `gpuagent` command: one module per subcommand, registered in `app`."""

from __future__ import annotations


def main() -> None:
    """Entry point of the installed script."""
    from gpuagent.cli.app import app

    app(prog_name="gpuagent")
