"""A rule that disrupts has to test something: a finding about the process, or about memory that it could give back."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuagent.core.metrics import FAMILIES
from gpuagent_alerts.promql.expression import compile_expression
from gpuagent_alerts.promql.functions import _FUNCTIONS as EVERY_FUNCTION
from gpuagent_alerts.promql.functions import CALENDAR_FUNCTIONS
from gpuagent_alerts.promql.series import SeriesIndex
from gpuagent_alerts.promql.values import EvaluationError
from gpuagent_alerts.remedies.safeguards import plausible_values, rule_reading, rule_sampling
from gpuagent_alerts.remedies.safeguards.rule_analysis import analyze

USED = "gpuagent_process_memory_used_bytes"
RATIO = "gpuagent_gpu_memory_used_ratio"
TOTAL = "gpuagent_gpu_memory_total_bytes"
HOT = "gpuagent_gpu_temperature_celsius > 80"
SUSPECTED = "gpuagent_process_memory_leak_suspected"
INFO = "gpuagent_process_info"
SM = "gpuagent_process_sm_utilization_ratio"
PID = "on (gpu, uuid, pid)"
GPU = "on (gpu, uuid)"
MIG_USED = "gpuagent_mig_memory_used_bytes"
MIG = "on (gpu, uuid, gpu_instance_id)"

NOTHING_OF_WORK = """
build_info simulated snapshot_age_seconds snapshot_timestamp_seconds gpu_reading_age_seconds
gpu_lost_timestamp_seconds collector_success collector_duration_seconds nvml_up nvml_initializations_total driver_info
pause_remaining_seconds
usage_held_seconds_total usage_memory_byte_seconds_total usage_untouched_memory_byte_seconds_total
usage_observed_seconds_total usage_busy_seconds_total usage_idle_seconds_total usage_energy_joules_total
usage_idle_duration_seconds usage_idle_limit_seconds usage_gpu_hour_price gpu_accounted_seconds_total
gpu_busy_seconds_total
gpus gpus_readable gpus_expected pci_gpus processes dead_processes dead_process_memory_used_bytes
gpu_memory_preallocated gpu_memory_fast_growth_expected processes_seen_total host_pid_namespace xid_events_total
xid_last_timestamp_seconds ticks_total ticks_late_total gpu_info gpu_lost gpu_xid_unrepaired_timestamp_seconds
gpu_blind gpu_processes_trusted gpu_figures_trusted gpu_memory_total_bytes gpu_memory_used_bytes gpu_memory_free_bytes
gpu_memory_reserved_bytes gpu_memory_used_ratio gpu_bar1_memory_total_bytes gpu_bar1_memory_used_bytes
gpu_memory_processes_bytes gpu_memory_dead_processes_bytes gpu_memory_unattributed_bytes gpu_memory_host_bytes
gpu_memory_own_limit_bytes
host_memory_total_bytes host_memory_available_bytes host_memory_free_bytes host_memory_page_cache_bytes
host_memory_kernel_bytes host_memory_swap_total_bytes host_memory_swap_free_bytes host_memory_pressure_ratio
host_memory_exhaustion_seconds gpu_memory_stall_imminent
gpu_pcie_replays_total
gpu_ecc_enabled gpu_ecc_errors_total gpu_ecc_sram_threshold_exceeded gpu_remapped_rows gpu_row_remap_pending
gpu_row_remap_failed gpu_retired_pages gpu_retired_pages_pending gpu_recovery_action gpu_recovery_action_advised
gpu_nvlink_links gpu_nvlink_active gpu_nvlink_errors_total gpu_nvlink_link_errors_total
gpu_nvlink_speed_bytes_per_second gpu_c2c_active gpu_c2c_errors_total gpu_c2c_speed_bytes_per_second
mig_info mig_memory_total_bytes mig_memory_used_bytes mig_memory_free_bytes
process_memory_used_bytes process_resident_memory_bytes process_start_time_seconds process_info process_preallocates
gpu_memory_leak_suspected gpu_memory_verdict gpu_memory_growth_bytes_per_second gpu_memory_exhaustion_seconds
gpu_memory_leak_since_seconds gpu_memory_fast_exhaustion_seconds mig_memory_leak_suspected mig_memory_verdict
mig_memory_growth_bytes_per_second mig_memory_exhaustion_seconds mig_memory_leak_since_seconds
mig_memory_fast_exhaustion_seconds process_memory_leak_suspected process_memory_verdict
process_memory_growth_bytes_per_second process_memory_exhaustion_seconds process_memory_leak_since_seconds
process_memory_fast_exhaustion_seconds process_memory_leak_evidence leak_histories leak_histories_refused_total alerts
rules rule_evaluation_duration_seconds rule_evaluation_failures_total notifications_sent_total
notification_failures_total notifications_dropped_total notifications_held_back_total notifications_queued
notifications_dead notification_oldest_undelivered_seconds receiver_undelivered store_healthy
store_rows_set_aside_total client_socket_up clients client_connections_total client_connections_refused_total
client_connections_dropped_total client_lines_total client_events_total client_throttlings_total client_commands_total
source_up source_memory_bytes source_model_memory_bytes torch_memory_allocated_bytes torch_memory_allocated_peak_bytes
torch_memory_reserved_bytes torch_memory_reserved_peak_bytes torch_memory_active_bytes
torch_memory_inactive_split_bytes torch_memory_cached_bytes torch_memory_outside_bytes torch_memory_limit_ratio
torch_memory_segments torch_alloc_retries_total torch_ooms_total torch_memory_declared_minimum_bytes
torch_memory_declared_typical_bytes torch_info remedy_ladders remedies_running remedies_stopped remedy_owners_left_alone
remedy_released_bytes_total remedies_total remedy_end_timestamp_seconds remedy_announced_timestamp_seconds
remedy_outstanding_timestamp_seconds budget_limit_bytes budget_used_bytes
"""
"""Families that say nothing of work, without `gpuagent_`: amounts of memory, states and records."""

TESTS_NOTHING = [
    SUSPECTED,
    USED,
    RATIO,
    INFO,
    f"-{RATIO}",
    f"abs({RATIO})",
    f'label_replace({USED}, "room", "a", "gpu", ".*")',
    f"max by (gpu, uuid) ({RATIO})",
    "gpuagent_gpu_memory_leak_suspected",
    "gpuagent_budget_used_bytes",
    f"{USED} unless {PID} {USED} > 5e9",
    f"{RATIO} > 0.9 or gpuagent_gpu_memory_used_bytes",
    f"{RATIO} or {RATIO} > 0.9",
    f"{USED} and {PID} {INFO}",
    f"{USED} * {PID} group_left (unit) {INFO}",
    f"{USED} / {GPU} group_left () {TOTAL}",
]
NO_FINDING = [
    f"{TOTAL} > 1",
    f"{TOTAL} and {GPU} {HOT}",
    f"{RATIO} and {GPU} {HOT}",
    f"{USED} and {GPU} {HOT}",
    f"{INFO} == 1",
    "gpuagent_process_memory_verdict == 1",
    "gpuagent_mig_memory_total_bytes > 1",
    "gpuagent_budget_limit_bytes > 1",
    "gpuagent_gpu_memory_reserved_bytes > 1",
    f"{RATIO} > 0.9 or {HOT}",
    f"count by (gpu, uuid, pid) ({USED}) > 0",
    f"group by (gpu, uuid, pid) ({USED}) == 1",
    f"stddev by (gpu, uuid, pid) ({USED}) == 0",
]
FORECAST = [
    f"gpuagent_{of}_memory_{name} < 600"
    for of in ("gpu", "process")
    for name in ("exhaustion_seconds", "fast_exhaustion_seconds")
]
FORECAST += [
    f"{RATIO} > 0.9 and {GPU} {FORECAST[1]}",
    f"{USED} > 5e9 and {PID} {FORECAST[2]}",
    f"{RATIO} > 0.9 or {FORECAST[0]}",
]
FILTERS = [
    f"{SUSPECTED} == 1",
    f"100 * ({RATIO} > 0.9)",
    f"-({RATIO} > 0.9)",
    f"({USED} > 5e9) * {PID} group_left (unit) {INFO}",
    f"{INFO} * {PID} ({USED} > 5e9)",
    f"{USED} and {PID} {SUSPECTED} == 1",
    f'gpuagent_process_info{{unit="notebooks.service"}} and {GPU} {RATIO} > 0.9',
    f"{USED} > 5e9 unless {PID} {USED} > 9e9",
    f"({RATIO} or gpuagent_gpu_memory_used_bytes) and {GPU} {RATIO} > 0.9",
    f"{RATIO} > 0.9 or gpuagent_gpu_memory_free_bytes < 1e9",
    f"sum by (gpu, uuid, pid) ({USED} > 5e9)",
    f"count by (gpu, uuid, pid) ({USED} > 5e9)",
    f"sort_desc({USED} > 5e9)",
    'gpuagent_process_memory_verdict{verdict="leaking"} == 1',
    "gpuagent_process_memory_leak_evidence",
    "3600 * gpuagent_process_memory_leak_evidence",
    "gpuagent_budget_used_bytes > gpuagent_budget_limit_bytes",
]

ALWAYS_TRUE = [
    f"clamp_min({USED}, 30e9) > 20e9",
    f"{USED} / {USED} == 1",
    f"1 <= {USED} / {USED}",
    f"{USED} > {USED} - 1",
    f"exp({USED} * 0) == 1",
    f"({USED} > 1) * 0 == 0",
    f"{USED} atan2 {USED} > 0",
    f"{USED} < Inf",
    f"{USED} * -1 < 0",
    f"{USED} > 0",
    f"{USED} >= 0 or {USED} < 0",
    f"{RATIO} >= 0",
    f"{RATIO} <= 1",
    f"{USED} <= {GPU} group_left () {TOTAL}",
    f"gpuagent_gpu_memory_used_bytes <= {TOTAL}",
    f"{SM} >= 0",
    f"clamp({SM}, 0.5, 1) > 0.4",
    f"round({USED} / 1e15) == 0",
    f"{USED} > 1 and {GPU} {HOT}",
    f"{USED} > 1 and {PID} {INFO} == 1",
    f"{USED} > 20000",
    f"{USED} > 40 * 1024",
    f"{USED} > 60e6",
    f"{USED} * {PID} group_left (unit) {INFO} > 40960",
    f"{RATIO} > 0.005",
    f"{RATIO} > 0.01",
    f"{RATIO} < 95",
    f"{RATIO} < 1",
    "gpuagent_gpu_memory_free_bytes > 0",
    "gpuagent_gpu_memory_used_bytes > 70000",
    f"{MIG_USED} > 10000",
    "gpuagent_budget_used_bytes > 100",
    "gpuagent_process_resident_memory_bytes > 1000000",
]
"""They compare something that a process is measured by, and are true whatever it comes to."""
ABOUT_REST = [
    f"{SM} == 0",
    f"{SM} < 0.05",
    f"0.1 > {SM}",
    f"1 - {SM} > 0.9",
    f"{USED} > 20e9 and {PID} {SM} == 0",
    f"{USED} > 70e9 or {SM} < 0.05",
    f"gpuagent_process_encoder_utilization_ratio + {SM} == 0",
    f"{USED} > 20e9 and {PID} ({SM} > 0 and {SM} < 0.02)",
    f"{USED} > 20e9 and {PID} gpuagent_process_uninterruptible == 1",
    f"{USED} > 20e9 and {GPU} gpuagent_gpu_utilization_ratio == 0",
    f"gpuagent_gpu_utilization_ratio == 0 and {RATIO} > 0.5",
    f"{RATIO} - gpuagent_gpu_utilization_ratio > 0.8",
    f"{RATIO} / gpuagent_gpu_utilization_ratio > 10",
    f"{USED} / {GPU} group_left () clamp_min(gpuagent_gpu_utilization_ratio, 0.001) > 1e12",
    *(
        f"{RATIO} > 0.5 and {GPU} gpuagent_gpu_{idle}"
        for idle in (
            "memory_utilization_ratio < 0.01",
            "encoder_utilization_ratio == 0",
            "decoder_utilization_ratio == 0",
            "jpeg_utilization_ratio == 0",
            "ofa_utilization_ratio == 0",
            "power_watts < 100",
            "power_instant_watts < 60",
            "power_watts / gpuagent_gpu_power_limit_watts < 0.2",
            "performance_state > 5",
            "performance_state == 8",
            'clock_hertz{domain="sm"} < 500e6',
            'clock_hertz{domain="sm"} / gpuagent_gpu_clock_max_hertz < 0.3',
            'clock_event_reason{reason="gpu_idle"} == 1',
            'clock_event_reason{reason=~"gpu_.*"} == 1',
            "clock_event_reason == 1",
            'clock_event_reason{reason="sw_power_cap"} == 0',
            "temperature_celsius < 35",
            "temperature_margin_celsius > 50",
            "fan_speed_ratio < 0.3",
            "pcie_link_generation < gpuagent_gpu_pcie_link_generation_max",
            "profile_sm_active_ratio < 0.01",
            "profile_graphics_active_ratio == 0",
            "profile_tensor_active_ratio < 0.01",
            "profile_dram_bandwidth_ratio < 0.02",
            "profile_pcie_receive_bytes_per_second < 1e6",
            "profile_nvlink_transmit_bytes_per_second == 0",
            "utilization_ratio < 0.01 and gpuagent_gpu_power_instant_watts < 90",
        )
    ),
    f"{MIG_USED} > 5e9 and {MIG} gpuagent_mig_profile_sm_active_ratio == 0",
]


def refusal(text: str) -> str:
    """Return why an expression is no reason to act; "" where it may be one."""
    return analyze(compile_expression(text)).refusal


@pytest.mark.parametrize("text", TESTS_NOTHING)
def test_what_compares_nothing(text: str) -> None:
    """Without a comparison a value of 0 would be true, and all processes meant; the refusal shows a way out."""
    assert "it tests nothing, so that 0 counts as true: compare it, as in `" in refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        f"{RATIO} > bool 0.9",
        f"({RATIO} > bool 0.9) == 1",
        f"({RATIO} > bool 0.9) <= 1",
        f"({USED} > 5e9) > bool 9e9",
        f"{USED} > 5e9 unless {PID} {USED} > bool 9e9",
        f"{USED} > 5e9 * (1 > bool 0)",
    ],
)
def test_bool(text: str) -> None:
    """With `bool` a comparison that does not hold has the result 0, which an alert takes for true."""
    assert "its `bool` gives 0" in refusal(text)


def test_a_flag_is_compared_with_one() -> None:
    """Of what is 1 or 0 the refusal says `== 1`, of what is a figure that it needs a limit."""
    assert f"`{SUSPECTED} == 1`" in refusal(SUSPECTED)
    assert f"`{RATIO} > LIMIT`" in refusal(RATIO)


@pytest.mark.parametrize("text", NO_FINDING)
def test_what_finds_nothing_out(text: str) -> None:
    """What is the same whoever holds the memory, and what is not about memory, accuses no process."""
    assert "no memory that the end of a process would give back" in refusal(text)


@pytest.mark.parametrize("text", FORECAST)
def test_a_forecast(text: str) -> None:
    """What would be if growth went on is no reason, alone or beside another one: a load looks the same."""
    assert "a forecast" in refusal(text)


@pytest.mark.parametrize("text", FILTERS)
def test_what_filters(text: str) -> None:
    """A comparison stays one under arithmetic, functions, aggregations and `and`."""
    assert refusal(text) == ""


@pytest.mark.parametrize(
    ("text", "about_growth"),
    [
        (f"{USED} > 5e9", False),
        (f"{RATIO} > 0.9 unless {GPU} gpuagent_gpu_memory_fast_growth_expected == 1", False),
        ("gpuagent_process_memory_growth_bytes_per_second > 2e7", True),
        ("gpuagent_process_memory_growth_bytes_per_second * 3600 > 1e9", True),
        (f"{SUSPECTED} == 1", True),
        (f"{USED} > 5e9 and {PID} {SUSPECTED} == 1", True),
        ('gpuagent_process_memory_verdict{verdict=~"growing|leaking"} == 1', True),
        ("gpuagent_gpu_memory_growth_bytes_per_second > 2e7", True),
        ("gpuagent_gpu_memory_leak_suspected == 1", True),
        (f"{RATIO} > 0.9 and {GPU} gpuagent_gpu_memory_leak_suspected == 1", True),
    ],
)
def test_what_is_about_growth(text: str, about_growth: bool) -> None:
    """That a rule acts on a leak follows from what it reads, and from no name."""
    found = analyze(compile_expression(text))
    assert (found.refusal, found.about_growth) == ("", about_growth)


@pytest.mark.parametrize("text", ALWAYS_TRUE)
def test_what_is_always_true(text: str) -> None:
    """A comparison that holds whatever a process, or the memory of its GPU, comes to is no finding."""
    assert "it is true whatever a process or the memory of its GPU comes to" in refusal(text)


def test_an_amount_in_another_unit() -> None:
    """What everybody passes because MiB were meant is refused with what to write."""
    assert refusal(f"{USED} > 20000").endswith("if MiB are meant, write 20000 * 1024^2")


@pytest.mark.parametrize("text", ABOUT_REST)
def test_what_is_about_idleness(text: str) -> None:
    """A rule that is true of a process because that does not work is told from its figures, however it is written."""
    assert analyze(compile_expression(text)).about_idleness


@pytest.mark.parametrize(
    "text",
    [
        f"{USED} > 1e9",
        f"{USED} > 1e9 and {PID} {SM} > 0.5",
        f"{RATIO} > 0.9",
        f"{RATIO} > 0.9 and {GPU} gpuagent_gpu_utilization_ratio > 0.5 and {GPU} gpuagent_gpu_power_watts > 300",
        f"{RATIO} > 0.9 and {GPU} {HOT}",
        f"{RATIO} > 0.9 and {GPU} gpuagent_gpu_temperature_margin_celsius < 5",
        f"{RATIO} > 0.9 and {GPU} gpuagent_gpu_power_watts / gpuagent_gpu_power_limit_watts > 0.9",
        f'{RATIO} > 0.9 and {GPU} gpuagent_gpu_clock_event_reason{{reason="hw_thermal_slowdown"}} == 1',
        f"{RATIO} > 0.9 and {GPU} gpuagent_gpu_ecc_enabled == 1",
    ],
)
def test_what_is_not_about_idleness(text: str) -> None:
    """A rule on memory, or on work, asks nobody to be at rest."""
    found = analyze(compile_expression(text))
    assert (found.refusal, found.about_idleness) == ("", False)


def test_every_family_tells_of_work_or_does_not() -> None:
    """A new family fails here until somebody has said whether a rule on it may be a rule on idleness."""
    tables = [
        set(plausible_values.ACTIVITY),
        set(plausible_values.LIMITS),
        {f"gpuagent_{name}" for name in NOTHING_OF_WORK.split()},
    ]
    named = [name.partition(":")[0] for table in tables for name in table if ":" not in name]
    assert sorted(named) == sorted(family.name for family in FAMILIES)


@pytest.mark.parametrize("name", plausible_values.ACTIVITY)
def test_whatever_tells_of_work_tells_of_rest(name: str) -> None:
    """KILL-08: of every family the value at rest, asked for beside much memory, makes a rule on idleness."""
    family, _, reason = name.partition(":")
    labels = rule_sampling.LABELS[family]
    if family in rule_sampling.TOLD | rule_sampling.COUNTS:
        return
    held, by = (f"{USED} > 5e9", PID) if "pid" in labels else (f"{RATIO} > 0.5", GPU)
    if "gpu_instance_id" in labels and "pid" not in labels:
        held, by = f"{MIG_USED} > 5e9", MIG
    matcher = f'{{reason="{reason}"}}' if reason else '{reason="sync_boost"}' if "reason" in labels else ""
    asked = f"{held} and {by} {family}{matcher} == {plausible_values.ACTIVITY[name][0]:g}"
    found = analyze(compile_expression(asked))
    assert (found.refusal, found.about_idleness) == ("", True)


def test_moments_of_the_wall_clock() -> None:
    """Every family whose value is Unix time is known as one, also those to come."""
    assert {each.name for each in FAMILIES if each.help.startswith("Unix time")} == rule_sampling.UNIX_TIMES


def test_functions_are_refused_until_they_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that the engine learns is refused in rules that choose processes until somebody has thought of it."""
    assert EVERY_FUNCTION.keys() - rule_reading._FUNCTIONS == {"time", "absent", *CALENDAR_FUNCTIONS}
    assert refusal(f"abs({USED}) > 5e9") == ""
    monkeypatch.setattr(rule_reading, "_FUNCTIONS", rule_reading._FUNCTIONS - {"abs"})
    assert "it uses abs(), which no rule that chooses a process may use" in refusal(f"abs({USED}) > 5e9")


VECTORS = [USED, SUSPECTED, INFO, SM]
GPUS = [RATIO, TOTAL, "gpuagent_gpu_memory_used_bytes", "gpuagent_gpu_temperature_celsius"]


def combined(side: st.SearchStrategy[str], on: str) -> st.SearchStrategy[str]:
    """Return larger expressions of these."""
    return st.one_of(
        st.builds("({}) {} {}".format, side, st.sampled_from(["*", "+", ">", "<="]), st.sampled_from([1, 5, 1e9])),
        st.builds(
            f"({{}}) {{}} {on} ({{}})".format, side, st.sampled_from(["and", "or", "unless", "*", ">", "<"]), side
        ),
        st.builds("{}({})".format, st.sampled_from(["abs", "-", "sort", "sgn", "round", "sqrt"]), side),
        st.builds("{} by (gpu, uuid, pid) ({})".format, st.sampled_from(["max", "count", "sum", "group"]), side),
    )


EXPRESSIONS = st.one_of(
    st.recursive(st.sampled_from(VECTORS), lambda side: combined(side, PID), max_leaves=5),
    st.recursive(st.sampled_from(GPUS), lambda side: combined(side, GPU), max_leaves=5),
)


def true_of(text: str, figure: float) -> bool:
    """Return whether a rule is true where every series has this value."""
    labels = {"gpu": "0", "uuid": "a", "pid": "1"}
    series = SeriesIndex((name, labels, figure) for name in (*VECTORS, *GPUS))
    with suppress(EvaluationError):
        return bool(compile_expression(text).rows(series, 0))
    return False


@given(EXPRESSIONS)
@example(f"({USED}) and {PID} ({SUSPECTED})")
@example(f"({RATIO} > 5) unless {GPU} ({RATIO} > 1e9)")
@example(f"({RATIO} > 5) or ({RATIO} <= 1)")
@example(f"({RATIO} > 0.5) or ({RATIO} <= 0.5)")
@example(f"({USED}) <= {PID} ({USED})")
def test_no_accepted_rule_is_true_of_every_figure(text: str) -> None:
    """Where nothing compares (NaN), a rule that may choose a process has no result; nor is it true of all figures."""
    if refusal(text):
        return
    assert not true_of(text, math.nan)
    if compile_expression(text).metric_names == {USED}:
        assert not all(true_of(text, figure) for figure in (4096, 1e7, 1e9, 1e10, 1e11, 1e12))
