"""`gpuagent config` and `gpuagent rules`: what the files of this node say, checked, shown and read anew."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuagent.cli.agent import Socket, ask_agent
from gpuagent.cli.cells import clean

if TYPE_CHECKING:
    from gpuagent.config.models import Config
    from gpuagent_alerts.rules.model import RuleGroup


EXIT_FAULTY = 1
EXIT_UNREADABLE = 2

config_app = typer.Typer(no_args_is_help=True, help="Check, show or reload the configuration.")

_FileOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="Configuration file; default: /etc/gpuagent/gpuagent.yaml"),
]


@config_app.command()
def check(
    file: Annotated[Path | None, typer.Argument(help="File to check")] = None,
    config: _FileOption = None,
) -> None:
    """Check a configuration file and the files it names: every error with its line.

    Rules that can never fire, ladders that can never act and users that do not exist here are notes, not errors.

    Exit status: 0 valid, 1 errors (on standard error), 2 the file cannot be read.
    """
    from gpuagent.config.load import DEFAULT_PATH

    path = file or config
    _check_beside(_load(path), path or DEFAULT_PATH)
    defaults = path is None and not DEFAULT_PATH.exists()
    note = " (no such file: the defaults apply)" if defaults else ""
    typer.echo(f"{path or DEFAULT_PATH}: ok{note}")


@config_app.command()
def show(
    config: _FileOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of YAML")] = False,
) -> None:
    """Show the effective configuration: the file and the defaults, with secrets hidden.

    Exit status: 0 shown, 1 errors in the file (on standard error), 2 it cannot be read.
    """
    from gpuagent.config.reference import effective, to_yaml

    loaded = _load(config)
    text = json.dumps(effective(loaded), indent=2) + "\n" if as_json else to_yaml(loaded)
    typer.echo(text, nl=False)


def _check_beside(config: Config, path: Path) -> None:
    """Check the files that the configuration names. Rules that never fire and ladders that never act are notes."""
    from gpuagent.doctor.service import examine_config

    found = examine_config(config, path)
    for note in found.notes:
        typer.echo(f"note: {note}", err=True)
    for fault in found.faults:
        typer.echo(fault, err=True)
    if found.faults:
        raise typer.Exit(EXIT_FAULTY)


def _load(path: Path | None) -> Config:
    from gpuagent.config.load import ConfigError, ConfigUnreadableError, load_config

    try:
        return load_config(path, is_root=os.geteuid() == 0)
    except ConfigError as error:
        typer.echo(error, err=True)
        unreadable = isinstance(error, ConfigUnreadableError)
        raise typer.Exit(EXIT_UNREADABLE if unreadable else EXIT_FAULTY) from None


_TIMEOUT_SECONDS = 60.0
"""Rules are compiled, and files on a slow disk read."""


def reload(socket: Socket = None) -> None:
    """Make the running agent reload configuration and rules. If they are invalid, the old ones stay in force.

    Exit status: 0 reloaded (notes are on standard error), 1 refused (the reason is on standard error), or the agent
    does not answer.
    """
    answer = ask_agent("POST", "/api/v1/reload", socket, timeout_seconds=_TIMEOUT_SECONDS, also=(409,))
    if answer.get("error"):
        typer.echo(f"Refused; the old configuration stays in force:\n{answer['error']}", err=True)
        raise typer.Exit(1)
    for note in answer.get("notes", ()):
        typer.echo(f"note: {clean(note)}", err=True)
    typer.echo("The configuration was reloaded.")


rules_app = typer.Typer(no_args_is_help=True, help="Check Prometheus rule files, or run their unit tests.")

_RuleFiles = Annotated[list[Path], typer.Argument(help="Rule files", show_default=False)]


@rules_app.command("check")
def check_rules(files: _RuleFiles) -> None:
    """Check Prometheus rule files as the agent would load them. Files that pass also load in Prometheus 2.42.

    Metrics that the agent does not export, comparisons that no figure can meet or that mean another unit, and rules
    that are no grounds for disruptive remedies, are notes, not errors.

    Exit status: 0 valid, 1 errors (on standard error).
    """
    from gpuagent.config.rules import implausible_rules, rules_without_grounds, unknown_metrics
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
    for note in (*unknown_metrics(loaded), *implausible_rules(loaded), *rules_without_grounds(loaded)):
        typer.echo(f"note: {note}", err=True)
    if failed:
        raise typer.Exit(EXIT_FAULTY)


@rules_app.command("test")
def test_rules(files: _RuleFiles) -> None:
    """Run rule unit tests in promtool's format.

    Exit status: 0 all passed, 1 a test failed or a file could not be read.
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
