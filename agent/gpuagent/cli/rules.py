"""`gpuagent rules`: check Prometheus rule files, and run their unit tests.

Whatever loads YAML and the engine is imported inside the commands, so that others start fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gpuagent_alerts.rules.model import RuleGroup

EXIT_FAULTY = 1

rules_app = typer.Typer(no_args_is_help=True, help="Check Prometheus rule files, or run their unit tests.")

_Files = Annotated[list[Path], typer.Argument(help="One or more files.", show_default=False)]


@rules_app.command()
def check(files: _Files) -> None:
    """Check rule files as the agent would load them: what passes here also loads in Prometheus 2.42.

    Exit status: 0 no fault, 1 faults (on standard error). A metric that the agent does not have is a note, no fault; so
    is a rule that is no reason to act: it alerts, and no ladder disrupts a process because of it.
    """
    from gpuagent.alerting.rules import rules_without_grounds, unknown_metrics
    from gpuagent_alerts.rules.file import load_rule_file
    from gpuagent_alerts.rules.model import RuleFileError

    failed = False
    loaded: list[RuleGroup] = []
    for file in files:
        try:
            groups = load_rule_file(file)
        except RuleFileError as error:
            failed = True
            typer.echo(error, err=True)
            continue
        loaded += groups
        count = sum(len(group.rules) for group in groups)
        typer.echo(f"{file}: ok, {count} {'rule' if count == 1 else 'rules'}")
    for note in (*unknown_metrics(loaded), *rules_without_grounds(loaded)):
        typer.echo(f"note: {note}", err=True)
    if failed:
        raise typer.Exit(EXIT_FAULTY)


@rules_app.command()
def test(files: _Files) -> None:
    """Run unit tests in promtool's format, with promtool's verdicts.

    Exit status: 0 all passed, 1 something failed, or could not be read.
    """
    from gpuagent_alerts.rules.unit_test import run_unit_tests

    failed = False
    for file in files:
        typer.echo(f"Unit Testing:  {file}")
        verdict = run_unit_tests(file)
        for warning in verdict.warnings:
            typer.echo(warning, err=True)
        if verdict.passed:
            typer.echo("  SUCCESS")
        else:
            failed = True
            typer.echo("  FAILED:", err=True)
            for problem in verdict.problems:
                typer.echo(problem, err=True)
        typer.echo()
    if failed:
        raise typer.Exit(EXIT_FAULTY)
