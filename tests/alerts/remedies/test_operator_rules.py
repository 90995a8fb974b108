"""Rules as operators write them: what would end an innocent is no reason to act, and what is sensible is one."""

from __future__ import annotations

import pytest

from gpuagent.core.metrics import FAMILIES
from gpuagent.core.metrics.family import MetricType
from gpuagent_alerts.promql.expression import compile_expression
from gpuagent_alerts.remedies.safeguards.plausible_values import LASTING, NOBODYS, UNREAD
from gpuagent_alerts.remedies.safeguards.rule_analysis import analyze

USED, RESIDENT, INFO, SM = (
    f"gpuagent_process_{name}"
    for name in ("memory_used_bytes", "resident_memory_bytes", "info", "sm_utilization_ratio")
)
RATIO, FREE, TOTAL, GPU_USED = (
    f"gpuagent_gpu_memory_{name}" for name in ("used_ratio", "free_bytes", "total_bytes", "used_bytes")
)
LIVING, DEAD = "gpuagent_gpu_memory_processes_bytes", "gpuagent_gpu_memory_dead_processes_bytes"
BUDGET_USED, BUDGET = "gpuagent_budget_used_bytes", "gpuagent_budget_limit_bytes"
MIG_USED, MIG_TOTAL = "gpuagent_mig_memory_used_bytes", "gpuagent_mig_memory_total_bytes"
UTILIZATION = "gpuagent_gpu_utilization_ratio"
PID, GPU, MIG = "on (gpu, uuid, pid)", "on (gpu, uuid)", "on (gpu, uuid, gpu_instance_id)"
FULL = f"{GPU} {RATIO} > 0.95"

REFUSED = {
    "it is true of a GPU on which next to nothing is used": [
        f"{RATIO} < 0.9",
        f"{FREE} > 5e9",
        f"{GPU_USED} < 70e9",
        f"abs({RATIO} - 0.5) > 0.4",
        f"{MIG_USED} / {MIG_TOTAL} < 0.5",
        f"{FREE} < 1e9 or {RATIO} < 0.05",
        f"exp(-{RATIO}) > 0.5",
        "gpuagent_mig_memory_free_bytes > 1e9",
    ],
    "it is true of a process that holds next to nothing": [
        f"{USED} < 40e9",
        f"{USED} > 1e9 or {USED} < 100e6",
        f"{USED} / {GPU} group_left () {TOTAL} < 0.9",
        f"{USED} / {GPU} group_left () {GPU_USED} > 0.5",
        f"{USED} > {GPU} group_left () {FREE}",
        f"{USED} > {GPU} group_left () (0.5 * {FREE})",
        f"{USED} > {GPU} group_left () gpuagent_gpu_memory_reserved_bytes",
        f"{USED} > {GPU} group_left () gpuagent_gpu_bar1_memory_used_bytes",
        f"{USED} > {PID} {RESIDENT}",
        f"{USED} / {PID} {RESIDENT} > 3",
        f"{USED} != 5e9",
        f"{USED} > 0 and {MIG} gpuagent_mig_memory_free_bytes < 1e9",
        f"{INFO} and {FULL}",
        f"{USED} > 1 and {FULL}",
        f"{USED} > 0 and {GPU} {FREE} < 2e9",
        f'{USED}{{process=~".*"}} > 0 and {FULL}',
        f'{USED}{{user!="root"}} > 0 and {FULL}',
        f'{USED}{{uuid="GPU-1"}} > 0 and {FULL}',
    ],
    "memory has no living owner": [
        f"{GPU_USED} - {LIVING} > 5e9",
        f"1 - {LIVING} / {GPU_USED} > 0.2",
        f"{DEAD} / {GPU_USED} > 0.3",
        f"{RATIO} > 0.5 and {GPU} gpuagent_gpu_memory_unattributed_bytes > 10e9",
        f"{RATIO} > 0.8 and {GPU} gpuagent_dead_processes > 0",
        f"{USED} > 1e9 and {GPU} {DEAD} > 1e9",
    ],
    "a GPU cannot be read well": [
        f"{RATIO} > 0.9 and {GPU} gpuagent_gpu_reading_age_seconds > 30",
        f'{USED} > 10e9 and {GPU} gpuagent_collector_success{{collector="processes"}} == 0',
        f"{RATIO} > 0.5 and {GPU} gpuagent_gpu_blind == 1",
        f"{RATIO} > 0.5 and {GPU} gpuagent_gpu_figures_trusted == 0",
    ],
    "numbers are given again": [
        f'{USED}{{pid="4242"}} > 1e9',
        f'{USED} > 1e9 and {PID} {INFO}{{parent_pid="1"}}',
    ],
    "for an answer, and that is missing where it cannot be read": [
        f'{USED} > 1e9 and {PID} {INFO}{{slurm_job=""}}',
        f'{USED} > 1e9 unless {PID} {INFO}{{slurm_job!=""}}',
        f'{USED} > 1e9 and {PID} {INFO}{{unit!="prod.service"}}',
        f'{USED} > 1e9 unless {PID} {INFO}{{unit="prod.service"}}',
        f'{USED} > 1e9 and {PID} {INFO}{{container_id!~".+"}}',
        f'{USED} > 1e9 and {PID} {INFO}{{pod_name=""}}',
    ],
    "which programs write and change themselves": [
        f'{USED}{{process!="trainer"}} > 0 and {FULL}',
        f'{USED}{{process!="vllm"}} > 30e9',
        f'{USED}{{process!~"vllm.*|Xorg"}} > 30e9',
        f'{USED}{{process=~"[^v].*"}} > 30e9',
        f'{USED}{{process!~"[v][l][l][m]"}} > 30e9',
        f'{USED} > 30e9 and {PID} {INFO}{{command!~".*serve.*"}}',
        f'{USED} > 30e9 unless {PID} {USED}{{process="vllm"}}',
        f'{USED} > 30e9 unless {PID} {USED}{{process=~"vllm.*"}} > 1e9',
        f'{USED} > 1e9 unless {PID} {INFO}{{command=~".*serve.*"}}',
        f'{USED} > 1e9 unless {PID} {INFO}{{command=~".*serve.*|"}}',
        f'{USED} > 1e9 unless {PID} ({USED} unless {PID} {USED}{{process!="vllm"}})',
    ],
    "a defect of a GPU, which stays": [
        f"{USED} > 2e9 and {GPU} gpuagent_gpu_{defect}"
        for defect in (
            "retired_pages > 0",
            'retired_pages{error="uncorrected"} >= 10',
            "retired_pages_pending == 1",
            'remapped_rows{error="uncorrected"} > 2',
            "row_remap_pending == 1",
            "row_remap_failed > 0",
            "recovery_action > 0",
            "recovery_action == 1",
            "recovery_action_advised == 1",
            "ecc_sram_threshold_exceeded != 0",
            "nvlink_active == 0",
        )
    ]
    + [
        f"{RATIO} > 0.5 and {GPU} gpuagent_gpu_row_remap_pending == 1",
        f"{USED} * {GPU} group_left () gpuagent_gpu_row_remap_pending > 2e9",
        f"{BUDGET_USED} > 2e9 and {GPU} gpuagent_gpu_recovery_action > 0",
        f"{USED} > 2e9 and {GPU} sum by (gpu, uuid) (gpuagent_gpu_nvlink_active) < 1",
    ],
    "which everybody who computes on a GPU holds: for GiB write 80 * 1024^3": [
        amount
        for family in (USED, RESIDENT, GPU_USED, BUDGET_USED, MIG_USED)
        for amount in (
            f"{family} > 80 * 1024^2",
            f"83886080 <= {family}",
            f"{family} / 1024 > 81920",
            f"{family} / 2^20 >= 80",
        )
    ]
    + [
        f"{USED} > 80 * 1024^2 and {FULL}",
        f'{USED} > 80 * 1024^2 and {PID} {INFO}{{container_id=~".+"}}',
        f'{USED}{{user="guest"}} > 80 * 1024^2',
        f'{USED}{{user="guest"}} > 80 * 1024^2 and {FULL}',
        f'{USED} * {PID} group_left (unit) {INFO}{{unit="a.service"}} > 80 * 1024^2 and {FULL}',
        f"max by (gpu, uuid, gpu_instance_id) ({MIG_USED}) > 80 * 1024^2 and {MIG} {MIG_TOTAL} < 9e9",
        f"{BUDGET_USED} > 80 * 1024^2 and {FULL}",
    ],
    "it is true ": [
        f"{USED} / {GPU} group_left () {TOTAL} > 0.009",
        f"{USED} / {GPU} group_left () {TOTAL} > 0.005 and {FULL}",
        f"{BUDGET_USED} > 0.009 * {BUDGET}",
        f"{MIG_USED} / {MIG_TOTAL} > 0.008",
        f"{BUDGET_USED} / {BUDGET} > 0.005 and {FULL}",
    ],
    "others may have raised": [
        f"{RATIO} > 0.5 and on () gpuagent_processes_seen_total > 100",
        f'{RATIO} > 0.5 and {GPU} gpuagent_xid_events_total{{xid="31"}} > 0',
    ],
    "it is true of a budget that is not exceeded": [
        f"{BUDGET_USED} < {BUDGET}",
        f"{BUDGET_USED} / {BUDGET} < 1",
        f"1 - {BUDGET_USED} / {BUDGET} < 0.9",
        f"1 - {BUDGET_USED} / {BUDGET} < 0.05",
        f"({BUDGET} - {BUDGET_USED}) / {BUDGET} < 0.9",
        f"{BUDGET_USED} / {BUDGET} > 0.9",
        f"100 * {BUDGET_USED} / {BUDGET} > 90",
        f"{BUDGET} - {BUDGET_USED} < 5 * 1024^3",
        f"{BUDGET_USED} > {BUDGET} - 5e9",
        f"{BUDGET_USED} + 5e9 > {BUDGET}",
        f"{BUDGET} < {BUDGET_USED} + 5e9",
        f"{BUDGET} - {BUDGET_USED} < 100 * 1024^2 and {FULL}",
        f"clamp_min({BUDGET} - {BUDGET_USED}, 0) < 5e9",
        f"max by (gpu, uuid, budget) ({BUDGET_USED}) > max by (gpu, uuid, budget) ({BUDGET}) - 5e9",
    ],
    "because that works, however little it holds": [
        f"{SM} > 0.9",
        f"100 * {SM} >= 90",
        f"{USED} > 30e9 or {SM} > 0.9",
        f"{SM} > 0.9 and {FULL}",
        f"{SM} > 0.5 and {PID} gpuagent_process_encoder_utilization_ratio > 0.5",
        f"gpuagent_process_memory_utilization_ratio > 0.5 and {PID} {INFO} == 1",
        f"max by (gpu, uuid, pid) ({SM}) > 0.9",
    ],
    "so that the act comes when there is no need": [
        f"{USED} > 1e9 and {GPU} {RATIO} < 0.9",
        f"{USED} > 1e9 unless {GPU} {RATIO} > 0.9",
        f"{USED} > 1e9 and {GPU} {FREE} > 5e9",
        f"{USED} > 1e9 and {GPU} {FREE} / {TOTAL} > 0.1",
        f"{USED} > 1e9 and {GPU} {GPU_USED} < 70e9",
        f'{USED}{{user="guest"}} > 1e9 and {GPU} 1 - {RATIO} > 0.1',
        f"{RATIO} > 0.3 and {RATIO} < 0.9",
        f"{RATIO} > 0.3 unless {RATIO} > 0.9",
        f"{MIG_USED} > 2e9 and {MIG} gpuagent_mig_memory_free_bytes > 5e9",
        f"{BUDGET_USED} > 5e9 unless {GPU} {RATIO} > 0.9",
    ],
    "where memory that two of them share counts twice": [
        f"{LIVING} / {TOTAL} > 0.3",
        f"{LIVING} > 0.3 * {TOTAL}",
        f"{LIVING} > 30e9",
    ],
    "compares a percentage with": [
        f"10 * 10 * {BUDGET_USED} / {BUDGET} > 0.9",
        f"{USED} / {GPU} group_left () {TOTAL} / (1 / 100) > 9 / 10",
        f"100 * {RATIO} > 0.95 and {GPU} gpuagent_gpu_temperature_celsius > 80",
    ],
    "one GPU with another": [
        f"{RATIO} > 0.9 and on () (count({RATIO} > 0.9) > 4)",
        f"{RATIO} == on () group_left () max({RATIO})",
        f"{USED} / on () group_left () sum({TOTAL}) > 0.1",
        f"{USED} > 10e9 and on () gpuagent_gpus_readable < gpuagent_gpus_expected",
    ],
    "has a label usr, so that usr": [
        f'{USED}{{usr!="7602"}} > 1e9',
        f'{USED}{{usr!~"7602|root"}} > 1e9 and {FULL}',
        f'{USED}{{usr="7602"}} > 1e9',
        f'{USED} > 1e9 unless on (uuid, pid) {USED}{{usr="7602"}}',
    ],
    "; did you mean uuid?": [f'{RATIO}{{uid!="GPU-x"}} > 0.3', f'{RATIO}{{UUID!~"GPU-x.*"}} > 0.3'],
    "; did you mean budget?": [
        f'{BUDGET_USED}{{budgt!="big"}} > 1e9',
        f'{BUDGET_USED} > 1e9 unless {BUDGET}{{Budget="x"}}',
    ],
    "has it, which is joined `on (gpu, uuid, pid)`": [
        f'{USED}{{unit!="prod.service"}} > 1e9',
        f'{USED} > 1e9 and {PID} {SM}{{container_id!="3f4e1c9a7b20"}} > 0.1',
    ],
    "Prometheus adds it, and the agent reads its own series": [f'{USED}{{instance!="prod:9400"}} > 1e9'],
    "nothing that `": [
        f"sum by (gpu, uuid, pid, usr) ({USED}) > 1e9",
        f"max without (prcess) ({USED}) > 1e9",
        f"{USED} > 1e9 and on (gpu, uuid, pid, contaner) {INFO} == 1",
        f"{USED} > 1e9 and ignoring (prcess) {USED} < 2e9",
        f"{USED} * {PID} group_left (units) {INFO} > 1e9",
        f"{BUDGET_USED} > ignoring (budgets) {BUDGET}",
    ],
    "what belongs to other budgets": [
        f"{BUDGET_USED} > on (uuid) group_left () {how} by (uuid) ({BUDGET})" for how in ("min", "avg", "sum", "max")
    ]
    + [
        f"{BUDGET_USED} > ignoring (budget) group_left () min without (budget) ({BUDGET})",
        f"min by (gpu, uuid) ({BUDGET}) < {GPU} group_right () {BUDGET_USED}",
        f"{BUDGET_USED} / {GPU} group_left () max by (gpu, uuid) ({BUDGET}) > 0.9",
        f"{BUDGET_USED} > {GPU} group_left () (0.5 * avg by (gpu, uuid) ({BUDGET_USED}))",
        f"{BUDGET_USED} > 1e9 and {GPU} {BUDGET_USED} > {BUDGET}",
        f"{BUDGET_USED} > 1e9 unless ({BUDGET_USED} unless {GPU} {BUDGET_USED} > {BUDGET})",
    ],
    "compares bytes with 1000 B": [f"{USED} * {PID} group_left (unit) {INFO} > 1000 and {FULL}"],
    "is always true: ": [
        f"{USED} > 10e9 and {PID} {SM} < 5",
        f"{USED} > 10e9 and {GPU} {UTILIZATION} < 5",
        f"{USED} > 10e9 and {GPU} 10 >= {UTILIZATION}",
        f"{USED} > 10e9 and {GPU} 100 * {UTILIZATION} < 500",
        f"{RATIO} > 0.3 and {GPU} 1 - {UTILIZATION} < 95",
        f"{USED} > 10e9 and {GPU} {FREE} / {TOTAL} < 10",
    ],
    "can never be true": [
        f"{RATIO} > 0.3 unless {GPU} {RATIO} > 90",
        f"{USED} > 10e9 or {USED} > 90e15",
    ],
    "ask for a free share of 0.5 at most": [
        f"{FREE} / {TOTAL} < 0.9",
        f"100 * {FREE} / {TOTAL} <= 90",
        f"{FREE} < 0.9 * {TOTAL}",
        f"0.9 > {FREE} / {TOTAL}",
        f"1 - {RATIO} < 0.9",
        f"100 * (1 - {RATIO}) < 90",
        f"100 - 100 * {RATIO} < 90",
        f"1 - {GPU_USED} / {TOTAL} < 0.9",
        f"({TOTAL} - {GPU_USED}) / {TOTAL} < 0.6",
        f"1 - {MIG_USED} / {MIG_TOTAL} < 0.9",
        f"{USED} > 5e9 and {GPU} {FREE} / {TOTAL} < 0.9",
        f"-{FREE} / {TOTAL} > -0.9",
        f"clamp_max({FREE} / {TOTAL}, 1) < 0.9",
        f"{FREE} - 0.9 * {TOTAL} < 0",
        f"{TOTAL} / {FREE} > 1.2",
        f"1 - {FREE} / {TOTAL} > 0.1",
        f"{FREE} - {GPU_USED} < 0.8 * {TOTAL}",
        f"{GPU_USED} - {FREE} > -0.8 * {TOTAL}",
        f"({FREE} - {GPU_USED}) / {TOTAL} < 0.8",
    ],
    "it is true whatever": [
        f"{USED} / 1024 > 20000",
        f"{USED} * 8 > 1e6",
        f"{USED} == {USED}",
        f"{USED} ^ 0 == 1",
        f"{RATIO} > {RATIO} / 2",
    ],
}
SENSIBLE = [
    f"{USED} > 512 * 1024^2",
    f"{BUDGET_USED} > 2 * 1024^3",
    f"{RATIO} > 0.9 and {GPU} gpuagent_gpu_row_remap_pending == 0",
    f"{USED} > 5e9 and {GPU} gpuagent_gpu_recovery_action == 0",
    f'{USED}{{process=~".+"}} > 5e9',
    f'{USED}{{process!=""}} > 5e9',
    f'{USED}{{process!="[dead]"}} > 5e9',
    rf'{USED}{{process!~"\\[.*\\]"}} > 5e9',
    f'{USED}{{user!~"root|svc-.*"}} > 40e9',
    f'{USED} > 5e9 and {PID} {INFO}{{command=~".*ipykernel.*"}}',
    f"{USED} > 40 * 1024^3",
    f"{USED} / 1024^3 > 40",
    f"{USED} > 10e9 and {FULL}",
    f"{USED} / {GPU} group_left () {TOTAL} > 0.5",
    f"{USED} / {MIG} group_left () {MIG_TOTAL} > 0.5",
    f"{USED} * {PID} group_left (container_id, unit) {INFO} > 30e9",
    f"{RESIDENT} > 200e9",
    f"{SM} > 0.9 and {PID} {USED} > 20e9",
    f'{SM}{{user="guest"}} > 0.9',
    f"{RATIO} > 0.95",
    f"{USED} > 10e9 and {USED} < 40e9",
    f"{USED} > 10e9 and {GPU} {RATIO} > 0.3",
    f"{RATIO} > 0.5 and {GPU} {LIVING} / {GPU_USED} > 0.9",
    f"{FREE} + 5e9 < {GPU_USED}",
    f"{GPU_USED} + 5e9 > {TOTAL}",
    f"{RATIO} > 0.8 and {RATIO} < 0.95",
    f"{FREE} < 2e9",
    f"{FREE} / {TOTAL} < 0.1",
    f"1 - {RATIO} < 0.1",
    f"100 * (1 - {GPU_USED} / {TOTAL}) < 5",
    f"1 - {FREE} / {TOTAL} > 0.9",
    f"{FREE} - 0.1 * {TOTAL} < 0",
    f"{TOTAL} / {FREE} > 10",
    f"{FREE} < 40e9",
    f"{FREE} < 0.05 * {TOTAL} or {FREE} < 1e9",
    f"{USED} > 5e9 and {GPU} gpuagent_gpu_performance_state >= 0",
    f"{USED} > 5e9 and {GPU} gpuagent_gpu_temperature_celsius > 0",
    f"floor({RATIO} * 10) > 8",
    f"round({FREE} / 1e9) == 0",
    f"{RATIO} > 0.9 unless {GPU} {FREE} > 50e9",
    f"{USED} / {GPU} group_left () {GPU_USED} > 0.5 and {USED} > 10e9",
    f"{USED} > 5e9 and {MIG} gpuagent_mig_memory_free_bytes < 1e9",
    f'max by (gpu, uuid, pid) ({USED}{{process="vllm"}}) > 0 and {FULL}',
    f'{USED} > 1e9 unless {PID} {INFO}{{pod_namespace=~"prod|"}}',
    f"{TOTAL} - {FREE} > 75e9",
    f"{MIG_USED} / {MIG_TOTAL} > 0.95",
    "gpuagent_mig_memory_free_bytes < 500e6",
    f"{BUDGET_USED} > {BUDGET}",
    f"{BUDGET_USED} >= {BUDGET}",
    f"{BUDGET_USED} / {BUDGET} > 1.1 and {FULL}",
    f"{BUDGET} - {BUDGET_USED} < 0",
    f"{BUDGET_USED} > {BUDGET} + 1e9",
    f"{BUDGET_USED} > on (gpu, uuid, budget) {BUDGET}",
    f"{BUDGET_USED} > {GPU} group_left () (0.5 * {TOTAL})",
    f"{USED} > 5e9 and on (job, instance, gpu, uuid, pid) {INFO} == 1",
    f'{RATIO}{{uuid!="GPU-b0a1"}} > 0.9',
    f'{USED}{{user!="7602"}} > 1e9 and {FULL}',
    f'{BUDGET_USED}{{budget!="big"}} > 5e9',
    'gpuagent_process_memory_verdict{verdict="leaking"} == 1',
    f"gpuagent_process_memory_leak_suspected == 1 and {PID} {USED} < 5e9",
    f"{RATIO} > 0.9 and {GPU} gpuagent_gpu_memory_leak_suspected == 1",
    f'{USED}{{process=~"jupyter.*"}} > 0 and {FULL}',
    f'{USED}{{user="guest"}} > 5e9 and {FULL}',
    f'{INFO}{{unit="notebooks.service"}} and {FULL}',
    f'{USED} > 1e9 and {PID} {INFO}{{unit=~"batch-.*"}}',
    f"{RATIO} > 0.95 unless {GPU} gpuagent_gpu_memory_preallocated == 1",
    f"{RATIO} > 0.95 and {GPU} gpuagent_gpu_temperature_celsius > 85",
    f"{RATIO} > 0.9 and {GPU} {DEAD} == 0",
    f"{RATIO} > 0.9 and {GPU} gpuagent_gpu_figures_trusted == 1",
    f'{USED} > 5e9 and {GPU} gpuagent_gpu_info{{name=~".*A100.*"}}',
]
IDLE = [
    f"{USED} > 1e9 and {PID} {SM} < 0.05",
    f"{USED} < 1e9 and {PID} {SM} == 0",
    f"{RATIO} < 0.1 and {GPU} {UTILIZATION} == 0",
    f"{USED} * {GPU} group_left () (1 - {UTILIZATION}) > 20e9",
    f"{USED} > 20e9 and {PID} {SM} != 1",
    f"{USED} > 20e9 and {PID} floor({SM} * 100) == 0",
    f"clamp_max({SM}, 0.5) < 0.1",
    f"{RATIO} * {GPU} (1 - {UTILIZATION}) > 0.6",
    f"{BUDGET_USED} > 1e9 and {GPU} {UTILIZATION} == 0",
    f"{RATIO} > 0.6 and {GPU} gpuagent_gpu_temperature_slowdown_celsius - gpuagent_gpu_temperature_celsius > 50",
    f"{RATIO} > 0.5 and {GPU} {UTILIZATION} < gpuagent_gpu_memory_utilization_ratio",
]


@pytest.mark.parametrize(("words", "text"), [(words, text) for words, texts in REFUSED.items() for text in texts])
def test_what_would_end_an_innocent(words: str, text: str) -> None:
    """A wrong sign, a share of what others leave, nobody's memory, a missing name: no reason, and it says which."""
    assert words in analyze(compile_expression(text)).refusal


@pytest.mark.parametrize("text", SENSIBLE)
def test_what_is_sensible(text: str) -> None:
    """What people rightly write is a reason, and asks nobody to be at rest."""
    found = analyze(compile_expression(text))
    assert (found.refusal, found.about_idleness) == ("", False)


@pytest.mark.parametrize("text", IDLE)
def test_what_asks_for_rest(text: str) -> None:
    """KILL-08: a rule on little work, however it is computed, is a reason against those alone who are at rest."""
    found = analyze(compile_expression(text))
    assert (found.refusal, found.about_idleness) == ("", True)


def test_doubtful_families_are_in_the_catalogue() -> None:
    """A family that is renamed fails here."""
    assert NOBODYS.keys() | UNREAD.keys() | LASTING.keys() <= {family.name for family in FAMILIES}


def test_every_family_of_defects_is_known() -> None:
    """A new gauge on errors of memory or links fails here until somebody has said whether it stays until a repair."""
    gauges = {
        each.name for each in FAMILIES if each.collector in {"ecc", "nvlink", "c2c"} and each.kind is MetricType.GAUGE
    }
    assert gauges == LASTING.keys() | {"gpuagent_gpu_ecc_enabled"}
