"""docs/rules.md says what is so: its rules load, its tests pass, its tables are complete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuagent.config.rules import load_rules
from gpuagent.core.metrics import FAMILIES
from gpuagent_alerts.promql.aggregate import FOLDS, RANKINGS
from gpuagent_alerts.promql.expression import compile_expression
from gpuagent_alerts.promql.functions import _FUNCTIONS
from gpuagent_alerts.promql.values import ExpressionError
from gpuagent_alerts.rules.file import load_rule_file, load_rule_text
from gpuagent_alerts.rules.template import parse_template
from gpuagent_alerts.rules.unit_test import run_unit_tests
from gpuagent_alerts.shipped import RULES_FILE
from gpuagent_alerts.shipped.reference import render, update
from tests.agent.config.loading import load, write
from tests.alerts.rules import promtool

PAGE = (Path(__file__).parents[3] / "docs" / "rules.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
RULES = [block for block in BLOCKS if block.startswith("groups:")]
CONFIGS = [block for block in BLOCKS if re.match(r"rule_files: \[/etc", block)]
(TESTS,) = [block for block in BLOCKS if "\ntests:" in block]


def rows(title: str) -> list[list[str]]:
    """Cells of the table whose first column has this title."""
    table = PAGE.partition(f"\n| {title} |")[2].partition("\n\n")[0]
    return [re.split(r"(?<!\\) \| ", line.strip("| ")) for line in table.splitlines()[2:]]


def codes(cell: str) -> list[str]:
    """What stands in backquotes, without the marks that a table needs."""
    return [code.replace(r"\|", "|") for code in re.findall(r"`([^`]+)`", cell)]


def site(folder: Path) -> Path:
    """The page's first rule file and its unit tests, under the names that they have there."""
    (folder / "my.rules.yaml").write_text(RULES[0], encoding="utf-8")
    tests = folder / "my.test.yaml"
    tests.write_text(TESTS, encoding="utf-8")
    return tests


def test_every_block_is_of_a_known_kind() -> None:
    """So that none of them goes untried."""
    assert sorted([*RULES, *CONFIGS, TESTS]) == sorted(BLOCKS)


@pytest.mark.parametrize("block", RULES)
def test_its_rules_load(block: str) -> None:
    """Every rule on the page is one that can be copied."""
    assert load_rule_text(block)


@pytest.mark.parametrize("block", CONFIGS)
def test_its_configurations_load(block: str, tmp_path: Path) -> None:
    """Every configuration on the page is one that can be copied, names of shipped rules included."""
    site(tmp_path)
    config = load(write(tmp_path, block.replace("/etc/gpuagent/", "")))

    assert {rule.name for group in load_rules(config) for rule in group.rules} >= {"UserHoldsTooMuch", "GpuLost"}


def test_its_unit_tests_pass(tmp_path: Path) -> None:
    """And would not, if the rule were another."""
    tests = site(tmp_path)
    assert run_unit_tests(tests).problems == []

    rules = tmp_path / "my.rules.yaml"
    rules.write_text(RULES[0].replace("for: 10m", "for: 11m"), encoding="utf-8")
    assert run_unit_tests(tests).problems


@pytest.mark.needs("promtool")
def test_prometheus_says_the_same_of_them(tmp_path: Path) -> None:
    """The page promises that promtool agrees."""
    tests = site(tmp_path)

    assert promtool.run_unit_tests([tests]) == {tests: ""}


def test_what_is_there_is_all_of_it() -> None:
    """Functions and aggregations are those that the engine has, and every expression in the table is taken."""
    table = {row[0]: codes(row[1]) for row in rows("what is there")}

    assert table["functions"] == sorted(_FUNCTIONS)
    aggregations = {code for code in table["aggregation"] if "(" not in code}
    assert aggregations == {*FOLDS, *RANKINGS, "quantile", "count_values"}
    for expression in (*table["series"], *table["the rules' own"][:2]):
        compile_expression(expression)


@pytest.mark.parametrize("row", rows("refused"), ids=lambda row: row[0])
def test_what_is_refused_is_refused_and_the_way_out_is_one(row: list[str]) -> None:
    """Each example is refused, each expression beside it is taken."""
    assert codes(row[1])
    for expression in codes(row[1]):
        with pytest.raises(ExpressionError):
            compile_expression(expression)
    for expression in codes(row[2]):
        if expression.startswith("gpuagent_"):
            compile_expression(expression)


def test_its_metrics_are_in_the_catalogue() -> None:
    """EXP-09: a name that does not exist would teach a rule that never fires."""
    named = set(re.findall(r"(?<![:\w])gpuagent_[a-z_]+(?![\w.+])", PAGE))

    assert named - {family.name for family in FAMILIES} == {"gpuagent_missing_data"}


@pytest.mark.parametrize("row", rows("template"), ids=lambda row: row[0])
def test_templates_give_what_the_table_says(row: list[str]) -> None:
    """The forms for people, by example."""
    (template,) = codes(row[0])
    assert parse_template(template).fill({}, float(row[1])) == row[2]


def test_the_table_of_shipped_rules_is_up_to_date() -> None:
    """It is what `python -m gpuagent_alerts.shipped.reference docs/rules.md` writes."""
    assert update(PAGE, load_rule_file(RULES_FILE)) == PAGE


def test_the_table_has_every_rule_in_whole_rows() -> None:
    """One row for each alert of the file, five cells each, whatever is in their texts."""
    alerts = [
        rule["alert"]
        for group in yaml.safe_load(RULES_FILE.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    table: list[Any] = [re.split(r"(?<!\\)\|", line)[1:-1] for line in render(load_rule_file(RULES_FILE)).splitlines()]

    assert [row[0].strip(" `") for row in table[2:]] == alerts
    assert {len(row) for row in table} == {5}
    assert all(row[4].strip() for row in table)


def test_a_page_without_its_marks_is_refused() -> None:
    """Rather than losing its table in silence."""
    with pytest.raises(ValueError, match="needs the marks"):
        update("# Rules\n", [])
