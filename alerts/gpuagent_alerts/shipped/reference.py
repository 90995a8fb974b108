"""The table of the shipped rules, made from their file.

Run `python -m gpuagent_alerts.shipped.reference docs/rules.md` after a change of the rules: it writes the table between
the two marks on that page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from gpuagent_alerts.rules.file import load_rule_file
from gpuagent_alerts.rules.formats import format_milliseconds
from gpuagent_alerts.rules.model import AlertRule, RuleGroup
from gpuagent_alerts.shipped import RULES_FILE

_BEGIN = re.compile(r"(<!-- shipped rules: [^>]*-->\n).*(<!-- end of shipped rules -->)", re.DOTALL)
_ACTION = re.compile(r"\{\{-?\s*\$(?:labels\.)?(\w+)[^}]*\}\}")


def render(groups: Sequence[RuleGroup]) -> str:
    """Render a table in Markdown; what is filled into a text is in italics."""
    lines = ["| alert | severity | `for` | kept for | tells |", "|---|---|---|---|---|"]
    lines += [_row(rule) for group in groups for rule in group.rules if isinstance(rule, AlertRule)]
    return "\n".join(lines) + "\n"


def update(page: str, groups: Sequence[RuleGroup]) -> str:
    """Return the page with the table of these rules. Raise ValueError where it has no place for one."""
    table = render(groups)
    updated, places = _BEGIN.subn(lambda marks: f"{marks[1]}\n{table}\n{marks[2]}", page)
    if places != 1:
        raise ValueError("the page needs the marks of the shipped rules, once")
    return updated


def _row(rule: AlertRule) -> str:
    summary = rule.annotations["summary"].text if "summary" in rule.annotations else ""
    cells = (
        f"`{rule.name}`",
        rule.label_texts.get("severity", ""),
        _duration(rule.for_seconds),
        _duration(rule.keep_firing_for_seconds),
        _ACTION.sub(r"*\1*", " ".join(summary.split())).replace("|", r"\|"),
    )
    return f"| {' | '.join(cells)} |"


def _duration(seconds: float) -> str:
    return format_milliseconds(round(seconds * 1000)) if seconds else ""


def main(arguments: Sequence[str]) -> None:
    """Bring the named page up to date."""
    page = Path(arguments[0])
    page.write_text(update(page.read_text(encoding="utf-8"), load_rule_file(RULES_FILE)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
