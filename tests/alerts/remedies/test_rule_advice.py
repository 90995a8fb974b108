"""What the refusal of a rule advises is accepted when it is followed, and can fire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from gpuagent_alerts.promql.expression import compile_expression
from gpuagent_alerts.promql.series import SeriesIndex
from gpuagent_alerts.remedies.safeguards.rule_analysis import analyze
from gpuagent_alerts.rules.plausibility import implausible_comparisons

USED, INFO, SM, RATIO, FREE, TOTAL = (
    f"gpuagent_{name}"
    for name in (
        "process_memory_used_bytes",
        "process_info",
        "process_sm_utilization_ratio",
        "gpu_memory_used_ratio",
        "gpu_memory_free_bytes",
        "gpu_memory_total_bytes",
    )
)
BUDGET_USED, BUDGET = "gpuagent_budget_used_bytes", "gpuagent_budget_limit_bytes"
MIG_USED, MIG_FREE, MIG_TOTAL = (f"gpuagent_mig_memory_{name}_bytes" for name in ("used", "free", "total"))
GPU, PID, MIG = "on (gpu, uuid)", "on (gpu, uuid, pid)", "on (gpu, uuid, gpu_instance_id)"
INSTANCE = "gpu, uuid, gpu_instance_id"
WHOLE = "which is of the whole and has no label gpu_instance_id: compare figures of the instance alone"

FOLLOWED = [
    # MIG instances
    (f"{MIG_USED} / {MIG_TOTAL} > 0.9 and {GPU} {RATIO} > 0.2", WHOLE, f"{MIG_USED} / {MIG_TOTAL} > 0.9"),
    (f"{MIG_USED} / {MIG_TOTAL} > 0.9 and {MIG} {RATIO} > 0.2", WHOLE, f"{MIG_USED} / {MIG_TOTAL} > 0.9"),
    (f"{MIG_USED} > 5e9 and {RATIO} > 0.2", WHOLE, f"{MIG_USED} > 5e9"),
    (f"{RATIO} > 0.9 and {GPU} {MIG_USED} > 5e9", WHOLE, f"{MIG_USED} > 5e9"),
    (f"{MIG_USED} / {GPU} group_left () {TOTAL} > 0.1", WHOLE, f"{MIG_USED} / {MIG_TOTAL} > 0.1"),
    (
        f"{USED} > 5e9 and {GPU} {MIG_FREE} < 1e9",
        "match by gpu_instance_id too",
        f"{USED} > 5e9 and {MIG} {MIG_FREE} < 1e9",
    ),
    (
        f"{USED} / {GPU} group_left () {MIG_TOTAL} > 0.5",
        "match by gpu_instance_id too",
        f"{USED} / {MIG} group_left () {MIG_TOTAL} > 0.5",
    ),
    (
        f"max by (gpu, uuid) ({MIG_USED}) > 5e9",
        "it drops the label gpu_instance_id: keep it",
        f"max by (gpu, uuid, gpu_instance_id) ({MIG_USED}) > 5e9",
    ),
    (
        f"max by (gpu, uuid) ({MIG_USED}) / {GPU} max by (gpu, uuid) ({MIG_TOTAL}) > 0.5",
        "it drops the label gpu_instance_id, by which parts of a GPU are matched: keep it",
        f"max by (gpu, uuid, gpu_instance_id) ({MIG_USED}) / {MIG} max by ({INSTANCE}) ({MIG_TOTAL}) > 0.5",
    ),
    # Budgets
    (
        f"{RATIO} > 0.9 and {GPU} {BUDGET_USED} > {BUDGET}",
        "keep it, so that the budget's own",
        f"{BUDGET_USED} > {BUDGET} and {GPU} {RATIO} > 0.9",
    ),
    (
        f"{BUDGET_USED} > {BUDGET} and {RATIO} > 0.9",
        "has no label budget: match them `on (gpu, uuid)`",
        f"{BUDGET_USED} > {BUDGET} and {GPU} {RATIO} > 0.9",
    ),
    (
        f"sum by (gpu, uuid) ({BUDGET_USED}) > 5e9",
        "it drops the label budget: keep it",
        f"sum by (gpu, uuid, budget) ({BUDGET_USED}) > 5e9",
    ),
    (f"{BUDGET_USED} > 70 * 1024^2", "for GiB write 70 * 1024^3", f"{BUDGET_USED} > 70 * 1024^3"),
    (f"100 * {BUDGET_USED} / {BUDGET} > 0.9", f"as in `{BUDGET_USED} > {BUDGET}`", f"{BUDGET_USED} > {BUDGET}"),
    (f"{BUDGET_USED} / {BUDGET} > 90", f"as in `{BUDGET_USED} > {BUDGET}`", f"{BUDGET_USED} > {BUDGET}"),
    (f"{BUDGET} - {BUDGET_USED} < 5e9", f"as in `{BUDGET_USED} > {BUDGET}`", f"{BUDGET_USED} > {BUDGET}"),
    (f"100 * {MIG_USED} / {MIG_TOTAL} > 0.9", "write 90", f"100 * {MIG_USED} / {MIG_TOTAL} > 90"),
    (f"100 * {MIG_USED} / {MIG_TOTAL} > 0.9", "or leave out the 100", f"{MIG_USED} / {MIG_TOTAL} > 0.9"),
    # Work, and a full GPU turned round
    (f"{SM} > 0.9", f"`... and {PID} {USED} > LIMIT`", f"{SM} > 0.6 and {PID} {USED} > 20e9"),
    (
        f"{USED} > 1e9 and {GPU} {RATIO} < 0.9",
        f"`... and {GPU} {RATIO} > 0.9`",
        f"{USED} > 1e9 and {GPU} {RATIO} > 0.9",
    ),
    (f"{USED} > 1e9 unless {GPU} {RATIO} > 0.9", "or leave it out", f"{USED} > 1e9"),
    (f"gpuagent_gpu_memory_processes_bytes / {TOTAL} > 0.3", f"`{RATIO} > 0.9`", f"{RATIO} > 0.9"),
    # Units, containers, users
    (
        f"sum by (gpu, uuid, unit) ({USED} * {PID} group_left (unit) {INFO}) > 5e9",
        "keep pid",
        f"sum by (gpu, uuid, unit, pid) ({USED} * {PID} group_left (unit) {INFO}) > 5e9",
    ),
    (f"sum by (gpu, uuid, user) ({USED}) > 5e9", "set a budget", f"{BUDGET_USED} > 5e9"),
    (
        f'{USED} > 5e9 and {PID} {INFO}{{unit!="prod.service"}}',
        "name whom you mean in the matcher",
        f'{USED} > 5e9 and {PID} {INFO}{{unit=~"a.*"}}',
    ),
    (
        f'{USED} > 5e9 and {PID} {INFO}{{container_id=""}}',
        "whom you spare in remedies.never",
        f"{USED} > 5e9 and {PID} {INFO} == 1",
    ),
    (
        f'{USED}{{process!="vllm"}} > 5e9',
        "name whom you mean in the matcher",
        f'{USED}{{process="python"}} > 5e9',
    ),
    (f"{USED} > 5e9 and {INFO} == 1", "match them `on (", f"{USED} > 5e9 and {PID} {INFO} == 1"),
    (f"{USED} > 5e9 and {RATIO} > 0.9", "match them `on (gpu, uuid)`", f"{USED} > 5e9 and {GPU} {RATIO} > 0.9"),
    (
        f"{USED} > 5e9 and {GPU} {SM} > 0.5",
        "match them by pid, as in `on (uuid, pid)`",
        f"{USED} > 5e9 and on (uuid, pid) {SM} > 0.5",
    ),
    (
        f"{RATIO} > 0.9 and {GPU} {USED} > 5e9",
        "compare each process by pid",
        f"{USED} > 5e9 and {GPU} {RATIO} > 0.9",
    ),
    (
        f"{USED} > 5e9 unless {PID} {SM} < 0.5",
        "with `and` and the comparison turned round",
        f"{USED} > 5e9 and {PID} {SM} >= 0.5",
    ),
    # Defects, amounts, and what tests nothing
    (
        f"{USED} > 5e9 and {GPU} gpuagent_gpu_recovery_action > 0",
        "ask for a GPU without it (`and ... == 0`)",
        f"{USED} > 5e9 and {GPU} gpuagent_gpu_recovery_action == 0",
    ),
    (f"{USED} > 20 * 1024^2", "write 20 * 1024^3", f"{USED} > 20 * 1024^3"),
    (f"{USED} > 20000", "write 20000 * 1024^2", f"{USED} > 20000 * 1024^2"),
    (f"{RATIO} < 95", "write 0.95", f"{RATIO} > 0.95"),
    (
        f"{INFO} and {GPU} {RATIO} > 0.9",
        "compare its own memory with an amount",
        f"{INFO} and {PID} {USED} > 5e9 and {GPU} {RATIO} > 0.9",
    ),
    (f"{INFO} and {GPU} {RATIO} > 0.9", "or read the GPU alone", f"{RATIO} > 0.9"),
    (f"{RATIO}", f"`{RATIO} > LIMIT`", f"{RATIO} > 0.9"),
]


def node() -> Iterator[tuple[str, Mapping[str, str], float]]:
    """Series of a GPU that is nearly full, with a process and a budget, and of one with a MIG instance."""
    full, parted = {"gpu": "0", "uuid": "a"}, {"gpu": "1", "uuid": "b"}
    for gpu, free in ((full, 1.0), (parted, 3.0)):
        yield TOTAL, gpu, 80 * 2.0**30
        yield FREE, gpu, free * 2**30
        yield RATIO, gpu, 1 - free / 80
        yield "gpuagent_gpu_recovery_action", gpu, 0.0
    instance = {**parted, "gpu_instance_id": "1", "profile": "3g.40gb"}
    yield MIG_TOTAL, instance, 40 * 2.0**30
    yield MIG_USED, instance, 39.5 * 2**30
    yield MIG_FREE, instance, 0.5 * 2**30
    for pid, place in (("7", full), ("8", {**parted, "gpu_instance_id": "1", "compute_instance_id": "0"})):
        process = {**place, "pid": pid, "process": "python", "user": "ann"}
        yield USED, process, (75 if pid == "7" else 39) * 2.0**30
        yield SM, process, 0.7
        yield INFO, {**process, "unit": "a.service", "container_id": "", "type": "C"}, 1.0
    budget = {**full, "budget": "team"}
    yield BUDGET, budget, 60 * 2.0**30
    yield BUDGET_USED, budget, 75 * 2.0**30


@pytest.mark.parametrize(("text", "advice", "followed"), FOLLOWED)
def test_advice_is_accepted_when_it_is_followed(text: str, advice: str, followed: str) -> None:
    """Who does what the refusal says has a rule that is a reason to act, of which nothing is noted, and that fires."""
    assert advice in analyze(compile_expression(text)).refusal
    then = compile_expression(followed)
    assert (analyze(then).refusal, implausible_comparisons(then)) == ("", [])
    assert then.rows(SeriesIndex(node()), 0)
