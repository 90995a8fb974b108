"""Conditions that are combined otherwise than they look get a note, and what is written with brackets gets none."""

from __future__ import annotations

import pytest

from gpuagent_alerts.promql.expression import compile_expression
from gpuagent_alerts.rules.expression_notes import condition_notes
from gpuagent_alerts.rules.file import load_rule_file
from gpuagent_alerts.shipped import RULES_FILE

USED, RATIO, FREE, TOTAL = (
    f"gpuagent_{name}"
    for name in (
        "process_memory_used_bytes",
        "gpu_memory_used_ratio",
        "gpu_memory_free_bytes",
        "gpu_memory_total_bytes",
    )
)
FULL = f"on (gpu, uuid) {RATIO} > 0.9"
WEAKER, SPARED = "`or` binds weaker than `and`", "and so the largest, is spared"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"{USED} > 20e9 and {FULL} or {USED} > 1e9", [WEAKER]),
        (f"{USED} > 1e9 or {USED} > 20e9 and {FULL}", [WEAKER]),
        (f"{USED} > 20e9 unless {FULL} or {USED} / 1024^3 > 1", [WEAKER]),
        (f"{FREE} < 1e9 and {RATIO} > 0.5 or 5e9 > {FREE}", [WEAKER]),
        (f"{FREE} / {TOTAL} < 0.1 and {RATIO} > 0.5 or {FREE} / {TOTAL} < 0.3", [WEAKER]),
        (f"sum by (gpu) ({USED} > 20e9 and {FULL} or {USED} > 1e9) > 0", [WEAKER]),
        (f"({USED} > 20e9 and {FULL}) or {USED} > 1e9", []),
        (f"{USED} > 20e9 and {FULL} or {USED} > 40e9", []),
        (f"({USED} > 20e9 or {USED} > 1e9) and {FULL}", []),
        (f"{USED} > 20e9 or {USED} > 1e9", []),
        (f'{USED}{{process="a and b or c"}} > 1e9', []),
        (f"{USED} < 20e9 > 1e9", [SPARED]),
        (f"{USED} > 1e9 < 20e9", [SPARED]),
        (f"{USED} / 1024^3 < 20 > 1 and {FULL}", [SPARED]),
        (f"{USED} > 1e9 > 2e9", []),
        (f"{RATIO} < 0.9 > 0.5", []),
        (f"{USED} > 1e9 and {USED} < 20e9", []),
    ],
)
def test_what_is_combined(text: str, told: list[str]) -> None:
    """KILL-08: what is enough by itself, and whom a range leaves out, is told before it is noticed."""
    found = condition_notes(compile_expression(text))
    assert len(found) == len(told)
    assert all(words in note for words, note in zip(told, found, strict=True))


def test_shipped_rules_have_none() -> None:
    """No shipped rule is combined otherwise than it looks."""
    rules = [rule for group in load_rule_file(RULES_FILE) for rule in group.rules]
    assert [note for rule in rules for note in condition_notes(rule.expression)] == []
