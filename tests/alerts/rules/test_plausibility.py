"""Comparisons that no figure can meet, and amounts of memory in another unit, are told with what to write."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuagent_alerts.promql.expression import compile_expression
from gpuagent_alerts.promql.values import ExpressionError
from gpuagent_alerts.rules.file import load_rule_file
from gpuagent_alerts.rules.plausibility import implausible_comparisons
from gpuagent_alerts.shipped import RULES_FILE

ROOT = Path(__file__).parents[3]
RATIO, USED, FREE = (
    f"gpuagent_{name}" for name in ("gpu_memory_used_ratio", "process_memory_used_bytes", "gpu_memory_free_bytes")
)
UTILIZATION = "gpuagent_gpu_utilization_ratio"
PID = "on (gpu, uuid, pid)"
TOTAL, GPU_USED, BUDGET_USED, BUDGET, MIG_USED, MIG_TOTAL = (
    f"gpuagent_{name}_bytes"
    for name in (
        "gpu_memory_total", "gpu_memory_used", "budget_used", "budget_limit", "mig_memory_used", "mig_memory_total"
    )
)  # fmt: skip
GPU = "on (gpu, uuid)"
NEVER = "can never be true"
PERCENT = "can never be true: a ratio is between 0 and 1; write"


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (f"{RATIO} > 90", f"{RATIO} > 90 {PERCENT} 0.9"),
        (f"90 < {RATIO}", f"90 < {RATIO} {PERCENT} 0.9"),
        (f"{RATIO} > 1", f"{RATIO} > 1 can never be true: a ratio is between 0 and 1"),
        (f"max by (gpu, uuid) ({RATIO}) >= 95", f"{RATIO} >= 95 {PERCENT} 0.95"),
        (f"{RATIO} > 0.9 and {UTILIZATION} == 100", f"{UTILIZATION} == 100 {PERCENT} 1"),
        (f"{RATIO} > 0.9 or {RATIO} > 80", f"{RATIO} > 80 {PERCENT} 0.8"),
        (f"{RATIO} > 0.9 unless on (gpu, uuid) {UTILIZATION} > 5", f"{UTILIZATION} > 5 {PERCENT} 0.05"),
        (f"{RATIO} < 95", f"{RATIO} < 95 is always true: a ratio is between 0 and 1; write 0.95"),
        (f"100 * {RATIO} > 101", f"({RATIO}) > 101 can never be true: it is between 0 and 100"),
        (f"1 - {RATIO} < 0", f"({RATIO}) < 0 can never be true: it is between 0 and 1"),
        ("gpuagent_gpu_lost == 2", "gpuagent_gpu_lost == 2 can never be true: it is between 0 and 1"),
        (f"clamp_max({RATIO}, 0.5) > 0.6", f"({RATIO}) > 0.6 can never be true: it is between 0 and 0.5"),
        (f"{FREE} < 0", f"{FREE} < 0 can never be true: it is between 0 B and 64.0 TiB"),
        (f"{USED} > 8e15", f"{USED} > 8e+15 can never be true: it is between 0 B and 64.0 TiB"),
        ("gpuagent_gpu_power_watts < 0", "gpuagent_gpu_power_watts < 0 can never be true: it is never below 0"),
        (f"{USED} > 20000", f"{USED} > 20000 compares bytes with 19.5 KiB: if MiB are meant, write 20000 * 1024^2"),
        (f"{USED} > 40", f"{USED} > 40 compares bytes with 40 B: if GiB are meant, write 40 * 1024^3"),
        (f"{USED} > 2e7", f"{USED} > 20000000 compares bytes with 19.1 MiB: if KiB are meant, write 20000000 * 1024"),
        (
            f"{USED} > 40 * 1024^2",
            f"{USED} > 41943040 compares bytes with 40.0 MiB: if GiB are meant, write 40 * 1024^3",
        ),
        (f"{FREE} < 500", f"{FREE} < 500 compares bytes with 500 B: if MiB are meant, write 500 * 1024^2"),
        (
            f"{USED} * {PID} group_left (unit) gpuagent_process_info > 40960",
            f"{USED} > 40960 compares bytes with 40.0 KiB: if MiB are meant, write 40960 * 1024^2",
        ),
        (
            f"sum by (user) ({USED}) > 20000",
            f"{USED} > 20000 compares bytes with 19.5 KiB: if MiB are meant, write 20000 * 1024^2",
        ),
        # Shares in percent
        *(
            (
                text.format(part=part, whole=whole),
                f"{told.format(part=part, whole=whole)} {NEVER}: {part} is at most {whole}, so 1 times it{end}",
            )
            for part, whole in ((USED, TOTAL), (GPU_USED, TOTAL), (FREE, TOTAL), (MIG_USED, MIG_TOTAL))
            for text, told, end in (
                (f"{{part}} / {GPU} group_left () {{whole}} > 90", "({part} ... {whole}) > 90", "; write 0.9"),
                (f"90 * {{whole}} < {GPU} group_right () {{part}}", "({whole}) < {part}", "; write 0.9"),
                (f"95 <= {{part}} / 1024 / {GPU} ({{whole}} / 2^10)", "95 <= ({part} ... {whole})", "; write 0.95"),
                (f"{{part}} * 100 / {GPU} {{whole}} > 9000", "({part} ... {whole}) > 9000", ""),
            )
        ),
        (
            f"max by (gpu, uuid) (({TOTAL} - {FREE}) / {TOTAL}) > 90",
            f"({TOTAL} ... {FREE}) > 90 can never be true: {GPU_USED} is at most {TOTAL}, so 1 times it; write 0.9",
        ),
        (
            f"{GPU_USED} / ({FREE} + {GPU_USED}) > 90",
            f"({GPU_USED} ... {FREE}) > 90 can never be true: {GPU_USED} is at most {TOTAL}, so 1 times it; write 0.9",
        ),
        (
            f"{GPU_USED} / {TOTAL} < 90",
            f"({GPU_USED} ... {TOTAL}) < 90 is always true: {GPU_USED} is at most {TOTAL}, so 1 times it; write 0.9",
        ),
        (f"1 - {FREE} / {TOTAL} > 90", f"({FREE} ... {TOTAL}) > 90 can never be true: it is between 0 and 1"),
        *(
            (text, f"{told} will hardly ever be true: {part} is seldom much more than {whole}; write 0.9")
            for part, whole in (
                (BUDGET_USED, BUDGET),
                ("gpuagent_gpu_power_watts", "gpuagent_gpu_power_limit_watts"),
                ("gpuagent_gpu_clock_hertz", "gpuagent_gpu_clock_max_hertz"),
            )
            for text, told in (
                (f"{part} / {whole} > 90", f"({part} ... {whole}) > 90"),
                (f"{part} >= 90 * {whole}", f"{part} >= ({whole})"),
            )
        ),
        (
            f"sum by (gpu, uuid) ({USED}) / {TOTAL} > 90",
            f"({USED} ... {TOTAL}) > 90 will hardly ever be true: {USED} is seldom much more than {TOTAL}; write 0.9",
        ),
        ("gpuagent_gpu_fan_speed_ratio > 90", f"gpuagent_gpu_fan_speed_ratio > 90 {PERCENT} 0.9"),
        # Conditions that are always true
        *(
            (f"{RATIO} > 0.9 and on (gpu, uuid) {condition}", f"{condition} is always true: {why}")
            for condition, why in (
                ("gpuagent_gpu_performance_state >= 0", "it is never below 0"),
                ("gpuagent_gpu_clock_hertz > 0", "it is above 0"),
                ("0 < gpuagent_gpu_temperature_celsius", "it is above 0"),
                ("gpuagent_gpu_power_watts != 0", "it is above 0"),
                (f"{UTILIZATION} <= 1", "a ratio is between 0 and 1"),
                (f"{FREE} < 1e+15", "it is between 0 B and 64.0 TiB"),
            )
        ),
        (f"100 * {UTILIZATION} < 500", f"({UTILIZATION}) < 500 is always true: it is between 0 and 100"),
    ],
)
def test_what_is_told(text: str, note: str) -> None:
    """A ratio in percent and memory in MiB are what people mean and do not write: the note has both."""
    assert implausible_comparisons(compile_expression(text)) == [note]


@pytest.mark.parametrize(
    "text",
    [
        f"{RATIO} > 0.98",
        f"{RATIO} >= 1",
        f"{RATIO} == 1",
        f"100 * {RATIO} > 90",
        f"sum({RATIO}) > 2",
        f"count({RATIO}) > 7",
        f"{RATIO} > bool 90",
        f"{RATIO} / {UTILIZATION} > 10",
        f"{RATIO} > on (gpu, uuid) group_left () (avg by (gpu, uuid) ({RATIO}) + 0.2)",
        f"abs({RATIO} - 0.5) > 0.4",
        "gpuagent_gpu_fan_speed_ratio > 1",
        f"{USED} > 0",
        f"{USED} > 8 * 1024^3",
        f"{USED} / 1024^3 > 40",
        f"{USED} / 2^20 > 20000",
        f"{FREE} < 50e6",
        f"{FREE} == 0",
        "gpuagent_gpu_memory_dead_processes_bytes > 2e6",
        "3600 * gpuagent_process_memory_growth_bytes_per_second > 1000",
        "gpuagent_gpu_pcie_transmit_bytes_total > 1000",
        "gpuagent_gpu_temperature_celsius < 0",
        "node_memory_used_ratio > 90",
        f"{GPU_USED} / {TOTAL} > 0.9",
        f"{USED} > {GPU} group_left () (0.9 * {TOTAL})",
        f"{GPU_USED} / {TOTAL} * 100 > 90",
        f"{BUDGET_USED} / {BUDGET} > 1.5",
        f"{BUDGET_USED} / {BUDGET} * 100 > 110",
        f"{TOTAL} / {USED} > 90",
        f"gpuagent_process_resident_memory_bytes / {USED} > 20",
        f"sum by (gpu, uuid) ({USED}) / {TOTAL} > 1",
        "vector(1)",
        "time() - gpuagent_process_start_time_seconds > 86400",
    ],
)
def test_what_can_be(text: str) -> None:
    """Nothing is told of what some figure can meet, or of which nobody knows."""
    assert implausible_comparisons(compile_expression(text)) == []


def test_shipped_rules_can_fire() -> None:
    """No shipped rule has a comparison that is told of."""
    rules = [rule for group in load_rule_file(RULES_FILE) for rule in group.rules]
    assert len(rules) > 30
    assert [note for rule in rules for note in implausible_comparisons(rule.expression)] == []


def test_examples_of_the_documentation_can_fire() -> None:
    """Whoever copies an expression of the documentation is told nothing of it, unless it is there as a bad example."""
    found = []
    for file in sorted((*(ROOT / "docs").rglob("*.md"), ROOT / "README.md")):
        for text in re.findall(r"(?:expr: |`)([^`\n]*gpuagent_[^`\n]*[<>=][^`\n]*)", file.read_text(encoding="utf-8")):
            try:
                found.append(compile_expression(text))
            except ExpressionError:  # a piece of an expression, or no PromQL
                continue
    assert len(found) > 20
    assert {note.partition(":")[0] for each in found for note in implausible_comparisons(each)} <= {
        f"{RATIO} > 90 can never be true",
        f"{USED} > 20000 compares bytes with 19.5 KiB",
        "gpuagent_process_sm_utilization_ratio < 5 is always true",
        "gpuagent_gpu_clock_hertz > 0 is always true",
    }
