"""`gpuagent run`, as far as its options alone decide."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from gpuagent.cli.run import run


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--simulate", "healthy", "--speed", "nan"], "must be a number"),
        (["--simulate", "healthy", "--speed", "0"], "not in the range"),
        (["--simulate", "healthy", "--bind", "trainer"], "is not KEY=PID"),
        (["--speed", "60"], "needs --simulate"),
        (["--bind", "trainer=1"], "needs --simulate"),
    ],
)
def test_options_that_cannot_be_meant(options: list[str], words: str) -> None:
    """Each is a usage error, before anything is opened: none is passed over, and none is a traceback."""
    app = typer.Typer()
    app.command()(run)
    result = CliRunner().invoke(app, options)

    assert result.exit_code == 2
    assert words in result.stderr
