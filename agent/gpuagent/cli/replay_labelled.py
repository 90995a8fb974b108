"""`gpuagent replay --labelled`: how each sensitivity would have done on histories that people have labelled."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gpuagent.cli.cells import Paint, clean, cut, fit
from gpuagent.cli.source import tell
from gpuagent.core.units import format_duration

if TYPE_CHECKING:
    from gpuagent_alerts.leak.replay.score import Labelled, Outcome, Score

EXIT_NONE = 3
_NAME_CELLS = 28
_CELLS = 11


def labelled(files: Sequence[Path], socket: Path | None, url: str | None) -> list[Labelled]:
    """Return the histories of these files, or those that the agent keeps where there are none.

    What cannot be used is named on standard error. Where there is nothing to score, the command ends with status 3.
    """
    from gpuagent_alerts.leak.replay.exported import read_document
    from gpuagent_alerts.leak.replay.rows import TraceError
    from gpuagent_alerts.leak.replay.score import Labelled

    found: list[Labelled] = []
    for name, entry in _entries(files, socket, url):
        try:
            is_leak = {"true": True, "false": False}[entry["label"]]
            found.append(Labelled(name, is_leak, read_document(entry["trace"])))
        except (TraceError, KeyError, TypeError) as error:
            tell(f"{clean(name)}: {error if isinstance(error, TraceError) else 'no labelled history'}")
    if not found:
        tell("no labelled history: `gpuagent leaks feedback PID --false` (or --true) keeps one")
        raise typer.Exit(EXIT_NONE)
    return found


def show(scores: Sequence[Score], width: int, paint: Paint, *, as_json: bool) -> None:
    """Print how each sensitivity did, and what it would have said of each history."""
    if as_json:
        typer.echo(json.dumps({"schema": 1, "scores": [_document(each) for each in scores]}, indent=1))
        return
    for each in scores:
        silent = len(each.outcomes) - each.leaks
        found = f"{each.true_positives} of {each.leaks} leaks found"
        wrong = f"{each.false_positives} false {'alarm' if each.false_positives == 1 else 'alarms'} of {silent}"
        typer.echo(paint.text(cut(f"{each.sensitivity:<10} {found}, {wrong}", width)))
    typer.echo("")
    heads = "".join(f"  {fit(each.sensitivity, _CELLS)}" for each in scores)
    typer.echo(cut(f"{fit('first alarm after', _NAME_CELLS)}  {'is':<8}{heads}", width).rstrip())
    for outcomes in zip(*(each.outcomes for each in scores), strict=True):
        first = outcomes[0]
        cells = "".join(f"  {fit(_said(one), _CELLS)}" for one in outcomes)
        label = "leak" if first.is_leak else "no leak"
        typer.echo(paint.text(cut(f"{fit(first.process, _NAME_CELLS)}  {label:<8}{cells}", width).rstrip()))


def _entries(files: Sequence[Path], socket: Path | None, url: str | None) -> list[tuple[str, dict[str, Any]]]:
    if files:
        from gpuagent.alerting.leak_feedback import read_entry

        return [(file.name, read_entry(file) or {}) for file in files]
    from urllib.parse import quote

    from gpuagent.cli.leaks import ask_to_read

    listed = ask_to_read("/api/v1/leaks/feedback", socket, url)["feedback"]
    return [
        (
            each["id"],
            ask_to_read(f"/api/v1/leaks/feedback/{quote(each['id'], safe='')}", socket, url),
        )
        for each in listed
    ]


def _said(outcome: Outcome) -> str:
    """When it would have spoken, from the history's begin; `!` where that is wrong."""
    wrong = "" if outcome.right else " !"
    if outcome.alarm_seconds is None:
        return f"silent{wrong}"
    return f"{format_duration(max(0.0, outcome.alarm_seconds - outcome.begin_seconds))}{wrong}"


def _document(score: Score) -> dict[str, Any]:
    return {
        "sensitivity": score.sensitivity,
        "histories": len(score.outcomes),
        "leaks": score.leaks,
        "true_positives": score.true_positives,
        "false_positives": score.false_positives,
        "outcomes": [
            {
                "name": one.name,
                "process": one.process,
                "label": "true" if one.is_leak else "false",
                "alarm_seconds": one.alarm_seconds,
                "begin_seconds": one.begin_seconds,
                "right": one.right,
            }
            for one in score.outcomes
        ],
    }
