"""Which rules may be a reason to disrupt a process, and whom their alerts are about."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuagent_alerts.promql.expression import compile_expression
from gpuagent_alerts.remedies.safeguards.rule_analysis import RuleAnalysis, Subject, analyze, analyze_rule
from gpuagent_alerts.remedies.safeguards.rule_matchers import WRITERS
from gpuagent_alerts.remedies.safeguards.rule_sampling import LABELS, PROCESSES
from gpuagent_alerts.rules.file import load_rule_file
from gpuagent_alerts.rules.model import AlertRule
from gpuagent_alerts.rules.template import parse_template
from gpuagent_alerts.shipped import RULES_FILE

USED = "gpuagent_process_memory_used_bytes"
SM = "gpuagent_process_sm_utilization_ratio"
RATIO = "gpuagent_gpu_memory_used_ratio"
FULL = f"{RATIO} > 0.9"
HOT = "gpuagent_gpu_temperature_celsius > 80"
PID = "on (gpu, uuid, pid, gpu_instance_id, compute_instance_id)"
JOINED = f"{USED} * {PID} group_left (container_id, unit) gpuagent_process_info"

ACCEPTED = [
    (FULL, Subject.GPU),
    (f'{USED}{{process="whisper-server"}} > 8 * 1024^3', Subject.PROCESS),
    (f"{JOINED} > 1e9", Subject.PROCESS),
    (f"sum by (gpu, uuid, pid, process) ({USED}) > 1e9", Subject.PROCESS),
    (f"sum without (process) ({USED}) > 1e9", Subject.PROCESS),
    (f"{USED} > 1e9 and {PID} {SM} == 0", Subject.PROCESS),
    (f"{USED} > 1e9 and on (gpu, uuid) {FULL}", Subject.PROCESS),
    (f"{USED} / on (gpu, uuid) group_left gpuagent_gpu_memory_total_bytes > 0.5", Subject.PROCESS),
    (f"{FULL} unless on (gpu, uuid) gpuagent_gpu_memory_preallocated == 1", Subject.GPU),
    (f"{USED} > 1e9 and ignoring (process) {USED} < 2e9", Subject.PROCESS),
    ("gpuagent_budget_used_bytes > gpuagent_budget_limit_bytes", Subject.GPU),
    ("gpuagent_gpu_memory_used_bytes > 1e9 or gpuagent_gpu_memory_free_bytes < 1e9", Subject.GPU),
    (f'label_replace({FULL}, "room", "a", "gpu", ".*")', Subject.GPU),
    ("gpuagent_mig_memory_used_bytes / gpuagent_mig_memory_total_bytes > 0.9", Subject.GPU),
    ("max by (gpu, uuid, gpu_instance_id) (gpuagent_mig_memory_used_bytes) > 1e9", Subject.GPU),
    ('gpuagent_gpu_memory_used_ratio{gpu="1", uuid="GPU-1"} > 0.5', Subject.GPU),
    (f"{FULL} unless ({FULL} unless on (gpu, uuid) gpuagent_mig_memory_total_bytes)", Subject.GPU),
    ("clamp_min(gpuagent_gpu_memory_used_ratio, 0.5) > 0.6", Subject.GPU),
    (f"{FULL} and on (uuid) gpuagent_gpu_memory_free_bytes < 1e9", Subject.GPU),
    (f"{USED} > on () group_left () vector(5e9)", Subject.PROCESS),
    (f"{FULL} and on () vector(1)", Subject.GPU),
]

REFUSED = [
    # Old data, and series that the agent does not measure
    ("user:memory:sum > 1", "does not measure"),
    (f'{USED} > 1 and on (pid) ALERTS{{alertname="X"}}', "ALERTS"),
    ("ALERTS_FOR_STATE > 1", "ALERTS_FOR_STATE"),
    ('{__name__=~"gpuagent_process.*"} > 1', "pattern of their names"),
    ("gpuagent_alerts > 0", "concluded or did"),
    ("gpuagent_remedy_end_timestamp_seconds > 0", "concluded or did"),
    # What programs say of themselves
    (f"{USED} > {PID} group_left (app) gpuagent_torch_memory_declared_typical_bytes", "say of themselves"),
    (f"{FULL} and on () gpuagent_source_requests_running == 0", "say of themselves"),
    ("gpuagent_clients > 1", "say of themselves"),
    (f"{USED} unless {PID} gpuagent_process_preallocates == 1", "say of themselves"),
    (f"{FULL} and on (gpu, uuid) gpuagent_gpu_memory_preallocated == 1", "names of processes"),
    (f"{FULL} unless on (gpu, uuid) gpuagent_gpu_memory_preallocated == 0", "may only withhold"),
    (f"{FULL} unless ({FULL} unless gpuagent_gpu_memory_preallocated == 1)", "names of processes"),
    # Labels that were not measured
    *(
        (f'label_replace({USED}, "{label}", "$1", "process", "(.*)") > 1', f"writes the label {label}")
        for label in (
            "pid",
            "gpu",
            "uuid",
            "gpu_instance_id",
            "compute_instance_id",
            "user",
            "uid",
            "unit",
            "container_id",
            "slurm_job",
            "budget",
            "job",
        )
    ),
    (f'label_join({USED}, "pid", "", "process")', "writes the label pid"),
    (f'count_values("pid", {USED})', "writes the label pid"),
    (f'sum by (gpu, uuid, team) (label_replace({USED}, "team", "$1", "process", "(.*)")) > 1', "sums up processes"),
    (f"gpuagent_gpu_lost * on (gpu, uuid) group_left (pid) {USED}", "takes the label pid"),
    (f"gpuagent_gpu_lost * on (gpu, uuid) group_left (user) {USED}", "takes the label user"),
    # Sums of processes: who is in one is said by labels, and those of a container are chosen in it
    *(
        (f"{how} by (gpu, uuid, {by}) ({JOINED}) > 1", "sums up processes")
        for how in ("sum", "max", "count")
        for by in ("user", "uid", "unit", "container_id", "slurm_job", "pod_uid", "process", "user, unit", "team")
    ),
    (f"sum without (pid) ({USED}) > 1", "sums up processes"),
    (f"sum by (gpu, uuid) ({USED}) > 1e9", "sums up processes"),
    (f'sum by (gpu, uuid) ({USED} and {PID} gpuagent_process_info{{command="x"}}) > 1', "sums up processes"),
    (f"sum by (gpu, uuid) (topk by (process) (1, {USED})) > 1", "by topk"),
    (f"sum by (gpu, uuid) ({USED}) / gpuagent_gpu_memory_total_bytes > 0.5", "sums up processes"),
    (f"-sum by (gpu, uuid) ({USED}) < -1", "sums up processes"),
    (f"abs(sum by (gpu, uuid) ({USED})) > 1", "sums up processes"),
    (f"sum by (gpu, uuid) ({USED}) or sum by (gpu, uuid) ({SM})", "sums up processes"),
    (f'count_values by (gpu, uuid) ("size", {USED}) > 2', "sums up processes"),
    (f"sum by (user) ({USED}) > 1", "name no GPU"),
    ("vector(1)", "name no GPU"),
    # Shares in percent that are compared as ratios
    ("100 * gpuagent_budget_used_bytes / gpuagent_budget_limit_bytes > 0.9", "with the limit itself"),
    ("gpuagent_mig_memory_used_bytes / gpuagent_mig_memory_total_bytes * 100 >= 0.95", "write 95"),
    (f"0.5 < {USED} * 100 / on (gpu, uuid) group_left gpuagent_gpu_memory_total_bytes", "write 50"),
    (f"{USED} / on (gpu, uuid) group_left () (gpuagent_gpu_memory_total_bytes / 100) > 1", "write 100"),
    # Counts of what others did
    (f'{USED} > 5e9 and on (gpu, uuid) gpuagent_xid_events_total{{xid="31"}} > 0', "others may have raised"),
    (f"{USED} > 5e9 and on (gpu, uuid) gpuagent_gpu_ecc_errors_total > 0", "others may have raised"),
    (f"{FULL} and on (gpu, uuid) gpuagent_processes > 8", "others may have raised"),
    ("sum by (gpu, uuid) (gpuagent_budget_used_bytes) > 1", "label budget"),
    (f"{FULL} and on (gpu, uuid) gpuagent_budget_used_bytes > gpuagent_budget_limit_bytes", "label budget"),
    (f"scalar({USED}) + gpuagent_gpu_lost", "scalar()"),
    (f"{USED} > 1 or {FULL}", "different things"),
    # Matching processes with other processes
    (f'{USED} > 1 and on (gpu, uuid, process) {USED}{{process="evil"}}', "match them by pid"),
    (f"{USED} > 1 unless ignoring (pid) {USED} < 5", "match them by pid"),
    (f"{USED} > on (gpu, uuid) group_left avg by (gpu, uuid) ({USED})", "match them by pid"),
    (f"{USED} > 1 and on (process, uuid) gpuagent_gpu_lost", "by gpu and uuid"),
    *((f"{how} by (gpu, uuid) (1, {USED}) > 5e9", f"by {how}") for how in ("topk", "bottomk")),
    # GPUs with other GPUs, indices, parts of a GPU
    (f"{FULL} and on () gpuagent_gpu_memory_used_ratio > 0.1", "one GPU with another"),
    (f"{FULL} and ignoring (uuid) gpuagent_gpu_memory_used_ratio > 0.1", "one GPU with another"),
    (f"{USED} > 1 and on (pid) {SM} == 0", "one GPU with another"),
    # What all GPUs together, or the node, come to
    (f"{USED} and on () gpuagent_gpus > 1", "one GPU with another"),
    (f"{USED} > 10e9 and on () gpuagent_gpus < 8", "one GPU with another"),
    (f"{FULL} and on () gpuagent_gpus_readable == 8", "one GPU with another"),
    (f"{USED} > 10e9 and on () (max(gpuagent_gpu_memory_used_ratio) > 0.95)", "one GPU with another"),
    (f"{USED} > 10e9 and on () (sum(gpuagent_gpu_memory_free_bytes) < 20e9)", "one GPU with another"),
    (f"{USED} > 10e9 and on (gpu) (max by (gpu) (gpuagent_gpu_memory_used_ratio) > 0.95)", "one GPU with another"),
    (f"{RATIO} > on () group_left () (avg({RATIO}) + 0.2)", "one GPU with another"),
    (f"{RATIO} - on () group_left () avg({RATIO}) > 0.2", "one GPU with another"),
    (f"avg({RATIO}) < on () group_right () {RATIO} - 0.2", "one GPU with another"),
    (f"{HOT} and on () (max({RATIO}) > 0.5)", "one GPU with another"),
    (f"gpuagent_gpu_temperature_celsius > on () group_left () max({RATIO})", "one GPU with another"),
    (f"{FULL} unless on () (min({RATIO}) < 0.5)", "one GPU with another"),
    (f"{FULL} or on () gpuagent_gpu_memory_free_bytes < 1e9", "one GPU with another"),
    (f"{FULL} or max by (gpu) ({RATIO}) > 0.8", "one GPU with another"),
    (f"{FULL} or ignoring (uuid) gpuagent_gpu_memory_free_bytes < 1e9", "one GPU with another"),
    (f"topk(1, {RATIO}) > 0.8", "compares GPUs with each other by topk"),
    ("bottomk by (gpu, uuid) (1, gpuagent_gpu_memory_free_bytes) < 5e9", "compares GPUs with each other by bottomk"),
    # Sides of `or` that are about more than each other
    (f"{FULL} or gpuagent_mig_memory_used_bytes > 1e9", "gpu_instance_id"),
    (f"{FULL} or gpuagent_budget_used_bytes > gpuagent_budget_limit_bytes", "label budget"),
    ('gpuagent_gpu_memory_used_ratio{gpu="1"} > 0.5', "by its index"),
    (f'{FULL} and on (gpu, uuid) gpuagent_gpu_memory_used_ratio{{gpu=~"1|2"}} > 0.1', "by its index"),
    ("max by (gpu, uuid) (gpuagent_mig_memory_used_bytes) > 1e9", "gpu_instance_id"),
    (f"{USED} > 1 and on (gpu, uuid) gpuagent_mig_memory_used_bytes > 1e9", "gpu_instance_id"),
    (f"{FULL} and on (gpu, uuid) gpuagent_mig_memory_used_bytes > 1e9", "gpu_instance_id"),
    # No memory that a process could give back
    ("gpuagent_gpu_row_remap_pending == 1", "no memory that the end"),
    ("gpuagent_gpu_lost == 1", "no memory that the end"),
    ("gpuagent_gpu_memory_dead_processes_bytes > 1e9", "no memory that the end"),
    ("gpuagent_gpu_memory_unattributed_bytes > 1e9", "no memory that the end"),
    # The wall clock
    ("time() - gpuagent_process_start_time_seconds > 86400", "wall clock"),
    *(
        (f"{USED} > 1 and on () ({function}() >= 0)", "wall clock")
        for function in (
            "minute",
            "hour",
            "day_of_week",
            "day_of_month",
            "day_of_year",
            "days_in_month",
            "month",
            "year",
        )
    ),
    (f"{USED} * on () group_left () hour() > 1e9", "wall clock"),
    ("hour(gpuagent_process_start_time_seconds) < 6", "wall clock"),
    ("gpuagent_process_start_time_seconds > 1.7e9", "wall clock"),
    (f"{USED} > 1 and {PID} gpuagent_process_memory_leak_since_seconds > 1.7e9", "wall clock"),
    (f"{FULL} and on (gpu, uuid) gpuagent_gpu_memory_leak_since_seconds > 1.7e9", "wall clock"),
    (f"{FULL} and on () gpuagent_snapshot_timestamp_seconds > 1.7e9", "wall clock"),
    # Missing data
    (f"{FULL} unless on (gpu, uuid) gpuagent_gpu_profile_sm_active_ratio > 0.05", "missing sample"),
    (f"{USED} > 1 unless on (gpu, uuid) gpuagent_gpu_utilization_ratio > 0.01", "missing sample"),
    ("gpuagent_gpu_utilization_ratio or gpuagent_gpu_memory_used_ratio", "missing sample"),
    ("gpuagent_gpu_memory_used_ratio > scalar(gpuagent_gpu_utilization_ratio)", "scalar()"),
    (f"{USED} > 1 unless {PID} {SM} > 0", "missing sample"),
    (f"{FULL} unless on (gpu, uuid) {SM} > 0", "missing sample"),
    (f"({SM} or 0 * {USED}) == 0", "missing sample"),
    (f"{USED} > 1 unless {PID} gpuagent_process_memory_growth_bytes_per_second > 0", "missing sample"),
    (f"{USED} > 1 unless {PID} gpuagent_process_memory_leak_evidence == 1", "missing sample"),
    (f'{USED} > 1 unless {PID} gpuagent_process_memory_verdict{{verdict="steady"}} == 1', "missing sample"),
    (f'absent({USED}{{process="guard"}})', "absent()"),
    (f'{FULL} and on () absent(gpuagent_gpu_lost{{uuid="a"}})', "absent()"),
    # GPUs that processes choose
    (f'{USED} > 1 and on (gpu) count by (gpu) ({USED}{{process="evil"}}) > 2', "match them by pid"),
    (f'{FULL} and on (gpu, uuid) {USED}{{process="evil"}} > 1', "processes choose its GPUs"),
    (f"{FULL} and on (gpu, uuid) ({USED} and {PID} {SM} > 0)", "processes choose its GPUs"),
    (f"max by (gpu, uuid) ({FULL} and ignoring (user, pid, process, uid) {USED})", "processes choose its GPUs"),
    (f'{USED}{{process="evil"}} > on (gpu, uuid) gpuagent_gpu_memory_free_bytes', "sums up processes"),
    (f'{FULL} unless ({FULL} unless on (gpu, uuid) {USED}{{process="evil"}})', "processes choose its GPUs"),
]

SENSIBLE = {
    "GpuMemoryHigh": Subject.GPU,
    "GpuMemoryFull": Subject.GPU,
    "GpuInstanceMemoryFull": Subject.GPU,
    "GpuProcessMemoryLeak": Subject.PROCESS,
    "GpuProcessIdleHoldingMemory": Subject.PROCESS,
    "GpuBudgetExceeded": Subject.GPU,
    "GpuMemoryStallImminent": Subject.GPU,
}


def of(text: str) -> RuleAnalysis:
    """Return the analysis of an expression in text."""
    return analyze(compile_expression(text))


@pytest.mark.parametrize(("text", "subject"), ACCEPTED)
def test_who_it_is_about(text: str, subject: Subject) -> None:
    """An expression over what is measured is about the process that its labels keep, or else about the GPU."""
    found = of(text)
    assert (found.refusal, found.subject) == ("", subject)


@pytest.mark.parametrize(("text", "words"), REFUSED)
def test_no_reason_to_act(text: str, words: str) -> None:
    """Chosen names, frames, old data and missing data are never a reason to disrupt a process, and it says which."""
    assert words in of(text).refusal


def test_shipped_rules() -> None:
    """Every shipped rule that a ladder is meant for is a reason, and about the process or GPU that it names."""
    rules = [rule for group in load_rule_file(RULES_FILE) for rule in group.rules if isinstance(rule, AlertRule)]
    assert {rule.name for rule in rules} >= SENSIBLE.keys()
    found = {(rule.name, analyze_rule(rule)) for rule in rules if rule.name in SENSIBLE}
    about_growth, about_idleness = {"GpuProcessMemoryLeak"}, {"GpuProcessIdleHoldingMemory"}
    assert found == {
        (name, RuleAnalysis("", subject, about_growth=name in about_growth, about_idleness=name in about_idleness))
        for name, subject in SENSIBLE.items()
    }
    forecasts = [analyze_rule(rule).refusal for rule in rules if rule.name == "GpuMemoryExhaustionSoon"]
    assert len(forecasts) == 6
    assert all("a forecast" in refusal for refusal in forecasts)


@pytest.mark.parametrize(
    ("text", "label", "value", "words"),
    [
        (f"{USED} > 1e9", "pid", "{{ $labels.process }}", "is a template"),
        (f"{USED} > 1e9", "unit", "{{ $labels.process }}", "is a template"),
        (f"{USED} > 1e9", "pid", "1", "in the place"),
        (FULL, "uuid", "GPU-1", "in the place"),
        (FULL, "budget", "all", "in the place"),
        (f"{USED} > 1e9", "user", "alice", ""),
        (FULL, "unit", "gpu-team", ""),
        (FULL, "team", "{{ $labels.gpu }}", ""),
    ],
)
def test_labels_of_the_rule(text: str, label: str, value: str, words: str) -> None:
    """A label that the rule writes itself never takes the place of one that was measured."""
    rule = AlertRule("Mine", compile_expression(text), labels={label: parse_template(value)}, file=str(Path("a.yaml")))
    refusal = analyze_rule(rule).refusal
    assert words in refusal if words else refusal == ""


def test_every_label_of_processes_has_a_writer() -> None:
    """A new label of process series fails here until somebody has said who can write it."""
    assert WRITERS.keys() == {label for name in PROCESSES for label in LABELS[name]}
