"""`gpuagent rules check`, as it is typed."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from gpuagent.cli.app import app
from gpuagent.core.metrics.alerting import ALERTING_FAMILIES


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
    (line,) = [line for line in errors.splitlines() if "no reason to act" not in line]
    assert line == (
        f'note: {odd}:4: group "g", rule "A0": the agent has no metric gpuagent_gpu_lots: '
        "here this rule may never fire; did you mean gpuagent_gpu_lost?"
    )


def test_a_rule_that_is_no_reason_to_act_is_a_note(tmp_path: Path) -> None:
    """Who writes a rule for a ladder learns before it fires that no process would be disrupted because of it."""
    texts = ("gpuagent_process_memory_leak_suspected", "gpuagent_gpu_memory_used_ratio > 0.9", "gpuagent_gpu_lost == 1")
    file = rule_file(tmp_path, "mine.yaml", *texts)
    code, output, errors = check(file)

    assert (code, output) == (0, f"{file}: ok, 3 rules\n")
    bare, lost = errors.splitlines()
    assert bare == (
        f'note: {file}:4: group "g", rule "A0": no reason to act: it tests nothing, so that 0 counts as true: '
        "compare it, as in `gpuagent_process_memory_leak_suspected == 1`"
    )
    assert lost.startswith(f'note: {file}:6: group "g", rule "A2": no reason to act: what it compares is no memory')


def test_what_can_never_be_true_is_a_note(tmp_path: Path) -> None:
    """ALERT-06: a ratio in percent never fires: the note says what to write, and the rule is no fault."""
    file = rule_file(tmp_path, "mine.yaml", "gpuagent_gpu_memory_used_ratio > 90")
    code, output, errors = check(file)

    assert (code, output) == (0, f"{file}: ok, 1 rule\n")
    assert errors == (
        f'note: {file}:4: group "g", rule "A0": gpuagent_gpu_memory_used_ratio > 90 can never be true: '
        "a ratio is between 0 and 1; write 0.9\n"
    )


def test_every_file_is_looked_at(tmp_path: Path) -> None:
    """A fault in one does not hide those of the next; the status is 1."""
    bad = [rule_file(tmp_path, f"{number}.yaml", "rate(m[5m])") for number in range(2)]
    good = rule_file(tmp_path, "good.yaml", "gpuagent_gpu_memory_used_ratio > 0.9")
    code, output, errors = check(bad[0], good, bad[1])

    assert (code, output) == (1, f"{good}: ok, 1 rule\n")
    assert [line.split(":")[0] for line in errors.splitlines()] == [str(path) for path in bad]
