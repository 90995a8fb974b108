"""The `gpuagent` command: one module per subcommand, registered in `app`."""

from __future__ import annotations


def main() -> None:
    """Entry point of the installed script."""
    from gpuagent.cli.app import app  # noqa: PLC0415  `import gpuagent.cli.x` must not load every command

    app(prog_name="gpuagent")
