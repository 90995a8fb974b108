"""Unit tests of rules: promtool's verdicts, file by file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from gpuagent.cli.config import rules_app
from gpuagent_alerts.rules.unit_test import UnitTestResult, run_unit_tests
from tests.alerts.promql.promtool import is_newer
from tests.alerts.rules import promtool

DATA: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("verdicts.yaml").read_text())
CASES: dict[str, dict[str, Any]] = {case["name"]: case for case in DATA["cases"]}


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    (tmp_path / "rules.yaml").write_text(DATA["rules"])
    (tmp_path / "broken.yaml").write_text("groups: [{name: g, rules: [{alert: A, expr: '>'}]}]")
    return tmp_path


def write(folder: Path, name: str, text: str) -> Path:
    """A test file beside the rules."""
    path = folder / f"{name}.test.yaml"
    path.write_text(text)
    return path


def text_of(name: str) -> str:
    """A whole test file."""
    case = CASES[name]
    head = {"rule_files": ["rules.yaml"], "group_eval_order": ["one", "two"]}
    return case["text"] if "text" in case else yaml.safe_dump({**head, "tests": case["tests"]})


@pytest.mark.parametrize("name", CASES)
def test_verdicts(folder: Path, name: str) -> None:
    """What passes and what fails."""
    verdict = run_unit_tests(write(folder, "case", text_of(name)))
    assert verdict.passed is CASES[name]["passes"], verdict.problems


@pytest.mark.needs("promtool")
def test_the_verdicts_are_promtools(folder: Path) -> None:
    """Every case, judged by both."""
    files = {write(folder, str(number), text_of(name)): name for number, name in enumerate(CASES)}
    reports = promtool.run_unit_tests(list(files))
    differ = {name: reports[file] for file, name in files.items() if bool(reports[file]) is CASES[name]["passes"]}
    # Without an interval it takes one minute where Prometheus 2.42 takes 0 s.
    changed = {"without an interval all samples are at 0"} if is_newer() else set[str]()
    assert set(differ) == changed, differ


def test_a_pattern_without_a_file_is_a_warning(folder: Path) -> None:
    """As in promtool: nothing is tested, which nobody may miss."""
    verdict = run_unit_tests(write(folder, "case", "rule_files: [nothing.yaml]\ntests: []"))
    assert verdict == UnitTestResult(verdict.file, [], [f"  WARNING: no file match pattern {folder / 'nothing.yaml'}"])


def test_a_rule_that_fails_ends_the_test(folder: Path) -> None:
    """With its name and the time."""
    (folder / "dup.yaml").write_text("groups: [{name: g, rules: [{alert: A, expr: m, labels: {a: same}}]}]")
    test = {"interval": "1m", "input_series": DATA["series"], "promql_expr_test": [{"expr": ">", "eval_time": "1m"}]}
    text = yaml.safe_dump({"rule_files": ["dup.yaml"], "tests": [test]})
    (problem,) = run_unit_tests(write(folder, "case", text)).problems
    assert (
        problem
        == "    rule: A, time: 0s, err: vector contains metrics with the same labelset after applying alert labels"
    )


def test_problems_read_like_promtools(folder: Path) -> None:
    """Who knows one report knows the other."""
    alert, samples = run_unit_tests(write(folder, "case", text_of("two things wrong"))).problems
    assert alert.splitlines() == [
        "    name: n,",
        "    alertname: High, time: 2m, ",
        "        exp:[], ",
        "        got:[",
        "            0:",
        '              Labels:{a="y", alertname="High", severity="y"}',
        '              Annotations:{empty="", gpuagent_missing_data="keep", summary="y: 5"}',
        "            ]",
    ]
    assert samples.splitlines() == [
        '    expr: "m", time: 1m,',
        "        exp: nil",
        '        got: {__name__="m", a="x"} 2E+00, {__name__="m", a="y"} 5E+00',
    ]


def test_an_endless_test_is_refused(folder: Path) -> None:
    """A year in steps of a second is a mistake."""
    text = "evaluation_interval: 1s\ntests: [{promql_expr_test: [{expr: '1', eval_time: 1y, exp_samples: []}]}]"
    (problem,) = run_unit_tests(write(folder, "case", text)).problems
    assert "100000 evaluations" in problem


def test_the_command_tests(folder: Path) -> None:
    """Exit status 0 when all pass, 1 when one does not; the report says which."""
    good = write(folder, "good", text_of("fires"))
    bad = write(folder, "bad", text_of("not yet, but expected"))
    passed = CliRunner().invoke(rules_app, ["test", str(good)])
    assert (passed.exit_code, passed.stdout) == (0, f"Unit Testing:  {good}\n  SUCCESS\n\n")
    failed = CliRunner().invoke(rules_app, ["test", str(good), str(bad)])
    assert failed.exit_code == 1
    assert "alertname: High, time: 1m" in failed.stderr


def test_the_command_checks(folder: Path) -> None:
    """Every fault of every file, and 1; a metric that the agent lacks is a note, and 0."""
    checked = CliRunner().invoke(rules_app, ["check", str(folder / "rules.yaml")])
    assert (checked.exit_code, checked.stdout) == (0, f"{folder / 'rules.yaml'}: ok, 4 rules\n")
    assert "the agent has no metric m: here this rule may never have a result" in checked.stderr
    failed = CliRunner().invoke(rules_app, ["check", str(folder / "rules.yaml"), str(folder / "broken.yaml")])
    assert failed.exit_code == 1
    assert 'broken.yaml:1: group "g", rule "A": expr:' in failed.stderr
