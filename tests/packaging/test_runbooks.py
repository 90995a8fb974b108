"""Runbooks: one page for each shipped alert, reached by the link that the alert carries."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuagent_alerts.rules.file import load_rule_file
from gpuagent_alerts.rules.model import AlertRule
from gpuagent_alerts.shipped import RULES_FILE, RUNBOOK_ANNOTATION, RUNBOOKS_URL
from tests.packaging.documented import ROOT, RUNBOOKS, commands

FOLDER = ROOT / "docs" / "runbooks"
RULES = [rule for group in load_rule_file(RULES_FILE) for rule in group.rules if isinstance(rule, AlertRule)]
PAGES = [page for page in RUNBOOKS if page.name != "README.md"]
SECTIONS = ["What it means", "How bad it is", "What to check", "What to do", "How to prevent it"]
SEVERITIES = re.compile(r"^\| \[(\w+)\]\(\1\.md\) \| (\w+) \|", re.MULTILINE)


def test_every_alert_has_a_page_and_every_page_an_alert() -> None:
    """Nobody is led to a page that is not there, and no page outlives its alert."""
    assert {page.stem for page in PAGES} == {rule.name for rule in RULES}


@pytest.mark.parametrize("rule", RULES, ids=[f"{rule.name}-{rule.line}" for rule in RULES])
def test_every_rule_links_to_its_page(rule: AlertRule) -> None:
    """The annotation leads to the page of this very alert, below the one address that the code knows."""
    assert rule.annotations[RUNBOOK_ANNOTATION].text == f"{RUNBOOKS_URL}{rule.name}.md"
    assert rule.annotations[RUNBOOK_ANNOTATION].is_constant


def test_the_address_is_that_of_the_folder() -> None:
    """What follows the branch in the address is the folder of the pages."""
    assert RUNBOOKS_URL.endswith(f"/main/{FOLDER.relative_to(ROOT).as_posix()}/")


def test_the_index_lists_all_with_their_worst_severity() -> None:
    """The index leads to each page once and says what the rule file says."""
    listed = SEVERITIES.findall((FOLDER / "README.md").read_text())
    worst: dict[str, str] = {}
    order = ["none", "info", "warning", "critical"]
    for rule in RULES:
        worst[rule.name] = max(worst.get(rule.name, "none"), rule.label_texts["severity"], key=order.index)
    assert len(listed) == len(dict(listed))
    assert dict(listed) == worst


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_answers_five_questions_in_order(page: Path) -> None:
    """Whoever is called at night finds the same sections on every page, short, and commands among them."""
    text = page.read_text()
    assert text.startswith(f"# {page.stem}\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    assert len(text.splitlines()) <= 60
    checks = text.partition("## What to check")[2].partition("## ")[0]
    assert "    gpuagent " in checks
    assert any(command.text.startswith("gpuagent ") for command in commands(page))
