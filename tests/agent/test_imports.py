"""What the two commands that matter do not load: memory of every node for months, and time of everybody who looks."""

from __future__ import annotations

import subprocess
import sys

import pytest

_NOT_IN_THE_AGENT = (
    "click",  # of uvicorn's own command line
    "httpx",  # 10 MiB, for receivers alone
    "rich.console",
    "gpuagent.cli.app",
    "gpuagent.top",
    "gpuagent_simulator",
    "textual",  # of `gpuagent top` alone
)
_NOT_IN_RECEIVERS = ("click", "pygments", "rich.console")
_NOT_IN_STATUS = (
    *_NOT_IN_THE_AGENT,
    "gpuagent.config.models",
    "asyncio",
    "gpuagent.service.assemble",
    "gpuagent_alerts",
    "gpuagent_exporters",
    "prometheus_client",
    "pynvml",
    "re2",
    "sqlite3",
    "starlette",
    "uvicorn",
    "yaml",
)
_RUN = "import gpuagent.cli.base, gpuagent.cli.run, gpuagent.service.assemble"
_STATUS = "import gpuagent.cli.base, gpuagent.cli.status"
_HELP = """\
import sys, gpuagent.cli
sys.argv = ["gpuagent", {!r}, "--help"]
try:
    gpuagent.cli.main()
except SystemExit:
    pass"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "unwanted"),
    [
        (_RUN, _NOT_IN_THE_AGENT),
        (f"{_RUN}, gpuagent_alerts.notify.receivers.registry", _NOT_IN_RECEIVERS),
        (_STATUS, _NOT_IN_STATUS),
        ("import gpuagent.cli.app", ("textual", "gpuagent.top")),
        (_HELP.format("run"), ("gpuagent.cli.app", "gpuagent.cli.status", "gpuagent.core.api_client")),
        (_HELP.format("status"), ("gpuagent.cli.app", "gpuagent.cli.run")),
    ],
    ids=["run", "receivers", "status", "all commands", "the command run", "the command status"],
)
def test_they_load_no_more_than_they_need(program: str, unwanted: tuple[str, ...]) -> None:
    """The name is that of what costs; an import that comes back by accident is seen here."""
    show = f"import sys\nprint('loaded:', *sorted({set(unwanted)!r} & set(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", f"{program}\n{show}"], capture_output=True, text=True, timeout=50, check=True
    )

    assert run.stdout.splitlines()[-1] == "loaded:"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["run", "--help"], ["status", "--help"], ["status", "--nope"], ["run", "more"]])
def test_a_command_alone_says_what_it_says_among_all(arguments: list[str]) -> None:
    """Help and faults, word for word: nobody can tell that the others were not loaded."""
    starts = ("from gpuagent.cli import main; main()", "from gpuagent.cli.app import app; app(prog_name='gpuagent')")
    alone, among_all = (
        subprocess.run(
            [sys.executable, "-c", start, *arguments], capture_output=True, text=True, timeout=50, check=False
        )
        for start in starts
    )

    assert (alone.returncode, alone.stdout, alone.stderr) == (among_all.returncode, among_all.stdout, among_all.stderr)
    assert "gpuagent" in alone.stdout + alone.stderr
