"""`gpuagent doctor`: what works here, and what to do about the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

_MARKS = {"ok": "ok     ", "info": "info   ", "warning": "WARNING", "failure": "FAILURE"}


def doctor(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Configuration file to look at")] = None,
    simulate: Annotated[
        str | None, typer.Option(help="Examine a simulated node instead of this one", metavar="SCENARIO")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array instead of lines")] = False,
) -> None:
    """Look at configuration, driver, permissions, namespaces, sockets and clock; say what to do about what is missing.

    Exit status: 0 the agent can work here, 1 it cannot.
    """
    from gpuagent.doctor.examine import examine
    from gpuagent.doctor.finding import Level
    from gpuagent.node import NoSuchNode

    findings = []
    try:
        for finding in examine(config, simulate):
            findings.append(finding)
            if not as_json:
                typer.echo(f"{_MARKS[finding.level]}  {finding.subject}: {finding.text}")
                if finding.advice and finding.level is not Level.OK:
                    typer.echo(f"           -> {finding.advice}")
    except NoSuchNode as error:
        typer.echo(error, err=True)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps([finding._asdict() for finding in findings], indent=1))
    if any(finding.level is Level.FAILURE for finding in findings):
        raise typer.Exit(1)
