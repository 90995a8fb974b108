"""`gpuagent rules check`, as it is typed."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from gpuagent.catalogue.alerting import ALERTING_FAMILIES
from gpuagent.cli.app import app


def check(*files: Path) -> tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    result = CliRunner().invoke(app, ["rules", "check", *map(str, files)])
    return result.exit_code, result.stdout, result.stderr


def rule_file(folder: Path, name: str, *expressions: str) -> Path:
    """A file with an alert for each expression."""
    path = folder / name
    lines = "".join(f"  - {{alert: A{number}, expr: {text}}}\n" for number, text in enumerate(expressions))
    path.write_text(f"groups:\n- name: g\n  rules:\n{lines}", encoding="utf-8")
    return path


def test_a_metric_that_is_not_there_is_a_note(tmp_path: Path) -> None:
    """ALERT-06: told, with what was probably meant, and no fault: a Prometheus may have it."""
    good = rule_file(tmp_path, "good.yaml", *(family.name for family in ALERTING_FAMILIES))
    odd = rule_file(tmp_path, "odd.yaml", "gpuagent_gpu_lots == 1")
    code, output, errors = check(good, odd)

    assert (code, output) == (0, f"{good}: ok, {len(ALERTING_FAMILIES)} rules\n{odd}: ok, 1 rule\n")
    assert errors == (
        f'note: {odd}:4: group "g", rule "A0": the agent has no metric gpuagent_gpu_lots: '
        "here this rule may never fire; did you mean gpuagent_gpu_lost?\n"
    )


def test_every_file_is_looked_at(tmp_path: Path) -> None:
    """A fault in one does not hide those of the next; the status is 1."""
    bad = [rule_file(tmp_path, f"{number}.yaml", "rate(m[5m])") for number in range(2)]
    good = rule_file(tmp_path, "good.yaml", "vector(1)")
    code, output, errors = check(bad[0], good, bad[1])

    assert (code, output) == (1, f"{good}: ok, 1 rule\n")
    assert [line.split(":")[0] for line in errors.splitlines()] == [str(path) for path in bad]
